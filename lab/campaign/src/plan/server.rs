//! The phases of a campaign against one PostgreSQL server.

use super::{Action, Drawing, GATEWAYS, HOUR, LEASE_MS, Link, Sketch, Target};
use crate::chaos::Mode as Upstream;
use crate::deploy::Deploy;
use crate::operation::Leg;
use crate::random::Random;

const YEAR: i64 = 365 * 24 * HOUR;

pub(super) const SKETCHES: [Sketch; 20] = [
    ("warm_up", 20, 3, |_| {}),
    ("steady", 45, 5, |_| {}),
    ("kills", 200, 14, kills),
    ("stops", 50, 8, stops),
    ("postgres_crashes", 45, 7, postgres_crashes),
    ("terminated_backends", 20, 3, terminated_backends),
    ("ambiguous_commits", 85, 8, ambiguous_commits),
    ("held_statements", 35, 6, held_statements),
    ("slow_store", 25, 4, slow_store),
    ("clocks", 35, 5, clocks),
    ("clients", 35, 5, |drawing| drawing.traffic.badly = 2),
    ("upstream", 40, 6, upstream),
    ("hostile_clients", 60, 12, hostile_clients),
    ("redis", 60, 7, redis),
    ("redis_failover", 60, 12, redis_failover),
    ("brokers", 60, 12, brokers),
    ("sqlite_kills", 30, 5, sqlite_kills),
    ("disk_full", 30, 6, disk_full),
    ("deploys", 90, 14, deploys),
    ("sqlite_deploys", 30, 8, |drawing| {
        drawing.traffic.leg = Leg::Sqlite;
        deploys(drawing);
    }),
];

fn gateway(random: &mut Random) -> Target {
    Target::Gateway(random.index(GATEWAYS))
}

/// Mostly a gateway, sometimes the worker or the application.
pub(super) fn any_target(random: &mut Random) -> Target {
    match random.below(12) {
        0 => Target::Worker,
        1 => Target::App,
        _ => gateway(random),
    }
}

pub(super) fn link(random: &mut Random) -> Link {
    random.index(GATEWAYS)
}

fn kills(drawing: &mut Drawing<'_>) {
    drawing.every(340, 0, |random| Action::Kill(any_target(random)));
}

fn stops(drawing: &mut Drawing<'_>) {
    drawing.every(1_500, LEASE_MS + LEASE_MS / 2, |random| {
        let ms = LEASE_MS + random.between(LEASE_MS / 2, LEASE_MS);
        Action::Stop(any_target(random), ms)
    });
}

fn postgres_crashes(drawing: &mut Drawing<'_>) {
    drawing.every(6_000, 3_000, |random| {
        Action::CrashPostgres(random.between(0, 1_500))
    });
}

fn terminated_backends(drawing: &mut Drawing<'_>) {
    drawing.every(250, 0, |random| {
        let count = i64::try_from(random.between(1, 4)).unwrap_or(1);
        // As many bits as a positive number of PostgreSQL's has.
        let chosen = i64::try_from(random.next() >> 1).unwrap_or(0);
        Action::Terminate(count, chosen)
    });
}

fn ambiguous_commits(drawing: &mut Drawing<'_>) {
    // By the number of rows that the server reports as changed.
    const CHANGED: [&str; 4] = ["UPDATE 1", "UPDATE 1", "UPDATE 1", "UPDATE 2"];
    // Verdicts of the reconciler, sweeps and claims: by the worker that is alone, and by the one
    // inside the first gateway.
    const OF_WORKERS: [&str; 4] = [
        "'resolved_completed'",
        "'resolved_not_executed'",
        "'asked'",
        "'sweeper'",
    ];
    drawing.every(40, 500, |random| {
        let tag = *random.pick(&CHANGED);
        Action::CutAfterCommit(link(random), tag)
    });
    drawing.every(400, 500, |random| Action::CutAfterReserve(link(random)));
    drawing.every(600, 500, |random| {
        let text = *random.pick(&OF_WORKERS);
        Action::CutAfterVerdict(*random.pick(&[0, GATEWAYS]), text)
    });
    // Creates unknown outcomes to reconcile.
    drawing.traffic.provider = 20;
}

fn held_statements(drawing: &mut Drawing<'_>) {
    // A completion, a reservation, a sign of life, a hand-over to reconciliation.
    const TEXTS: [&str; 4] = [
        "SET status = 'completed'",
        "Reserves for many requests",
        "SET locked_until",
        "SET status = 'unknown'",
    ];
    drawing.every(450, LEASE_MS, |random| {
        let text = *random.pick(&TEXTS);
        let ms = random.between(LEASE_MS / 2, LEASE_MS * 3);
        Action::Hold(link(random), text, ms)
    });
}

fn slow_store(drawing: &mut Drawing<'_>) {
    drawing.every(1_500, 2_000, |random| {
        let (delay, ms) = (random.between(20, 250), random.between(1_000, 2_500));
        Action::SlowStore(link(random), delay, ms)
    });
    drawing.every(2_500, 2_000, |random| {
        let ms = random.between(500, LEASE_MS + LEASE_MS / 2);
        Action::Freeze(link(random), ms)
    });
}

fn clocks(drawing: &mut Drawing<'_>) {
    const OFFSETS: [i64; 8] = [
        HOUR,
        -HOUR,
        25 * HOUR,
        -25 * HOUR,
        31 * 24 * HOUR,
        5 * YEAR,
        -2 * YEAR,
        0,
    ];
    let mut last = 0;
    drawing.every(800, 0, |random| {
        let others: Vec<i64> = OFFSETS.into_iter().filter(|other| *other != last).collect();
        last = *random.pick(&others);
        Action::MoveClock(last)
    });
}

pub(super) fn upstream(drawing: &mut Drawing<'_>) {
    drawing.traffic.provider = 10;
    // In turns, so that even a short phase has some of each.
    let mut turn = 0;
    drawing.every(900, 400, |random| {
        let one_in = random.between(3, 10);
        turn += 1;
        Action::Upstream(match turn % 5 {
            1 => Upstream::ResetMidResponse { one_in },
            2 => Upstream::ResetBeforeResponse { one_in },
            3 => Upstream::AnswerInstead { one_in },
            4 => Upstream::RefuseSome { one_in },
            _ => Upstream::Delay {
                ms: random.between(100, 800),
            },
        })
    });
}

fn hostile_clients(drawing: &mut Drawing<'_>) {
    drawing.traffic.disguised = 3;
    let target = gateway(drawing.random);
    drawing.actions.push((0, Action::Attack(target)));
}

fn redis(drawing: &mut Drawing<'_>) {
    // The first replay fills the cache, and the others, at other gateways, are answered from it.
    drawing.traffic.again = 3;
    drawing.every(900, 500, |_| Action::FlushRedis);
    // Gateways that lost it leave it alone for five seconds, and fill it again only then.
    drawing.every(9_000, 2_000, |random| {
        Action::KillRedis(random.between(0, 1_500))
    });
}

fn redis_failover(drawing: &mut Drawing<'_>) {
    drawing.traffic.again = 3;
    drawing.traffic.erased = 8;
    // In turns, so that even a short phase has some of each.
    let mut keeps = false;
    drawing.every(5_000, 4_000, |random| {
        keeps = !keeps;
        Action::FailOverRedis(random.between(1_500, 3_000), keeps)
    });
}

fn brokers(drawing: &mut Drawing<'_>) {
    let seed = drawing.random.next();
    drawing.actions.push((0, Action::Publish(seed)));
    drawing.every(4_000, 3_000, |random| {
        Action::KillBroker(random.between(0, 1_500))
    });
    drawing.every(3_500, 3_000, |random| Action::KillConsumer(random.next()));
    // One of the two has the relay.
    drawing.every(15_000, 3_000, |random| {
        Action::Kill(*random.pick(&[Target::Gateway(0), Target::Worker]))
    });
}

fn sqlite_kills(drawing: &mut Drawing<'_>) {
    drawing.traffic.leg = Leg::Sqlite;
    drawing.every(700, 1_500, |random| {
        if random.one_in(6) {
            Action::Stop(Target::Sqlite, LEASE_MS + LEASE_MS / 2)
        } else {
            Action::Kill(Target::Sqlite)
        }
    });
}

fn disk_full(drawing: &mut Drawing<'_>) {
    drawing.traffic.leg = Leg::Sqlite;
    drawing.every(4_000, 3_000, |random| {
        Action::FillDisk(random.between(700, 2_500))
    });
    drawing.every(3_500, 4_000, |_| Action::Kill(Target::Sqlite));
}

fn deploys(drawing: &mut Drawing<'_>) {
    // Retries of what was finished under an earlier configuration.
    drawing.traffic.earlier = 3;
    let leg = drawing.traffic.leg;
    // In turns, so that even a short phase has some of each.
    let mut turn = 0;
    drawing.every(1_500, 3_000, |random| {
        turn += 1;
        Action::Deploy(Deploy::draw(leg, turn % 3 == 2, random))
    });
}
