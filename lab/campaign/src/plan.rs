//! The schedule of faults, drawn from the seed before anything is started.

mod cluster;

use serde_json::{Value, json};

use crate::chaos::Mode as Upstream;
use crate::client::Traffic;
use crate::cluster::ClusterFault;
use crate::deploy::Deploy;
use crate::operation::Leg;
use crate::random::Random;

/// How long a holder may be silent, as in the gateways' configuration.
pub(crate) const LEASE_MS: u64 = 2_000;
const HOUR: i64 = 3_600;
const YEAR: i64 = 365 * 24 * HOUR;

/// How many gateways share the PostgreSQL store.
pub(crate) const GATEWAYS: usize = 3;

/// The target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Gateway(usize),
    Worker,
    App,
    Sqlite,
}

/// The connections to PostgreSQL of a gateway, or, after the last gateway, of the worker.
pub(crate) type Link = usize;

/// A fault.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// SIGKILL, and an immediate restart.
    Kill(Target),
    /// SIGSTOP, and SIGCONT this many milliseconds later, after its leases.
    Stop(Target, u64),
    /// PostgreSQL crashes, and is started again this many milliseconds later.
    CrashPostgres(u64),
    /// The server terminates this many connections, chosen by the number, busy ones first.
    Terminate(i64, i64),
    /// The next commit of a write is performed, and its answer is lost.
    CutAfterCommit(Link, &'static str),
    /// The next answer to a reservation is lost.
    CutAfterReserve(Link),
    /// The next answer to a statement of a worker with this text is lost.
    CutAfterVerdict(Link, &'static str),
    /// The next statement with this text is delayed.
    Hold(Link, &'static str, u64),
    /// Every message to and from the store is delayed, for a while.
    SlowStore(Link, u64, u64),
    /// Nothing passes for a while.
    Freeze(Link, u64),
    /// The last gateway's clock is off by this many seconds from now on.
    MoveClock(i64),
    /// How the application's answers fail from now on.
    Upstream(Upstream),
    FlushRedis,
    /// Killed, and started again this many milliseconds later.
    KillRedis(u64),
    /// The disk of the SQLite store is full for this long.
    FillDisk(u64),
    /// Another configuration.
    Deploy(Deploy),
    /// Clients that hold or waste what a gateway has, until the phase ends.
    Attack(Target),
    /// A fault of the cluster.
    Cluster(ClusterFault),
}

/// What the gateways' shared store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One PostgreSQL server.
    Server,
    /// A cluster with failover.
    Cluster,
}

/// A phase of the campaign.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) ms: u64,
    pub(crate) traffic: Traffic,
    /// The faults, with their time since the start of the phase.
    pub(crate) actions: Vec<(u64, Action)>,
}

/// A phase before it is drawn: name, seconds in the long run and in the short one, and how.
type Sketch = (&'static str, u64, u64, fn(&mut Drawing<'_>));

const SKETCHES: [Sketch; 18] = [
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
    ("sqlite_kills", 30, 5, sqlite_kills),
    ("disk_full", 30, 6, disk_full),
    ("deploys", 90, 14, deploys),
    ("sqlite_deploys", 30, 8, |drawing| {
        drawing.traffic.leg = Leg::Sqlite;
        deploys(drawing);
    }),
];

impl Mode {
    fn sketches(self) -> &'static [Sketch] {
        match self {
            Self::Server => &SKETCHES,
            Self::Cluster => &cluster::SKETCHES,
        }
    }

    /// The names of all phases.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        self.sketches().iter().map(|(name, ..)| *name)
    }

    /// Whether a run without a list of phases has this one.
    fn has_by_default(self, short: bool, name: &str) -> bool {
        match self {
            Self::Cluster if short => cluster::SHORT.contains(&name),
            Self::Server | Self::Cluster => true,
        }
    }
}

/// The requested phases, or all. Each has its own generator, so that a phase alone is the same as
/// within a complete run.
pub(crate) fn draw(seed: u64, mode: Mode, short: bool, only: &[String]) -> Vec<Phase> {
    let mut random = Random::new(seed);
    let wanted = |name: &str| match only {
        [] => mode.has_by_default(short, name),
        only => only.iter().any(|asked| asked == name),
    };
    let drawn = mode.sketches().iter().map(|&(name, long, brief, how)| {
        let mut own = random.fork();
        let traffic = Traffic {
            leg: Leg::Postgres,
            badly: 30,
            provider: 60,
            again: 0,
            earlier: 0,
            disguised: 0,
        };
        let mut drawing = Drawing {
            random: &mut own,
            ms: 1_000 * if short { brief } else { long },
            traffic,
            actions: Vec::new(),
        };
        how(&mut drawing);
        let (ms, traffic, mut actions) = (drawing.ms, drawing.traffic, drawing.actions);
        actions.sort_by_key(|(at, _)| *at);
        Phase {
            name,
            ms,
            traffic,
            actions,
        }
    });
    drawn.filter(|phase| wanted(phase.name)).collect()
}

/// The schedule as it is printed and kept.
pub(crate) fn schedule(phases: &[Phase]) -> Vec<Value> {
    let mut begin = 0;
    let mut lines = Vec::new();
    for phase in phases {
        lines.push(json!({ "at_ms": begin, "phase": phase.name, "what": "begins" }));
        for (at, action) in &phase.actions {
            let what = format!("{action:?}");
            lines.push(json!({ "at_ms": begin + at, "phase": phase.name, "what": what }));
        }
        begin += phase.ms;
    }
    lines
}

struct Drawing<'r> {
    random: &'r mut Random,
    ms: u64,
    traffic: Traffic,
    actions: Vec<(u64, Action)>,
}

impl Drawing<'_> {
    /// Schedules actions at about this interval, but not in the last `rest` milliseconds.
    fn every(&mut self, ms: u64, rest: u64, mut what: impl FnMut(&mut Random) -> Action) {
        let mut at = ms / 2;
        while at + rest < self.ms {
            let action = what(self.random);
            self.actions.push((at, action));
            at += self.random.between(ms / 2, ms + ms / 2);
        }
    }
}

fn gateway(random: &mut Random) -> Target {
    Target::Gateway(random.index(GATEWAYS))
}

/// Mostly a gateway, sometimes the worker or the application.
fn any_target(random: &mut Random) -> Target {
    match random.below(12) {
        0 => Target::Worker,
        1 => Target::App,
        _ => gateway(random),
    }
}

fn link(random: &mut Random) -> Link {
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
        "begun AS (",
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

fn upstream(drawing: &mut Drawing<'_>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_schedule_and_a_phase_alone_is_the_same() {
        assert_eq!(
            schedule(&draw(7, Mode::Server, false, &[])),
            schedule(&draw(7, Mode::Server, false, &[]))
        );
        assert_ne!(
            schedule(&draw(7, Mode::Server, false, &[])),
            schedule(&draw(8, Mode::Server, false, &[]))
        );
        let whole = draw(7, Mode::Server, false, &[]);
        let alone = draw(7, Mode::Server, false, &["stops".to_owned()]);
        let within = whole.iter().find(|phase| phase.name == "stops").unwrap();
        assert_eq!(alone.len(), 1);
        assert_eq!(alone[0].actions, within.actions);
    }

    #[test]
    fn the_long_run_has_enough_of_what_matters_most() {
        for seed in 0..20 {
            let phases = draw(seed, Mode::Server, false, &[]);
            let actions = || phases.iter().flat_map(|phase| &phase.actions);
            let count =
                |which: fn(&Action) -> bool| actions().filter(|(_, action)| which(action)).count();
            assert!(count(|action| matches!(action, Action::Kill(_))) >= 540);
            let cuts = count(|action| matches!(action, Action::CutAfterCommit(..)));
            assert!(cuts >= 1_500, "{cuts}");
        }
    }

    #[test]
    fn the_long_run_of_a_cluster_has_ten_of_the_main_faults_and_the_short_one_two_in_all() {
        let faults = |phases: &[Phase]| -> Vec<(&'static str, usize)> {
            let broken = phases.iter().filter(|phase| !phase.actions.is_empty());
            broken
                .map(|phase| (phase.name, phase.actions.len()))
                .collect()
        };
        let long = faults(&draw(7, Mode::Cluster, false, &[]));
        assert_eq!(
            long,
            [
                ("cluster_switchovers", 10),
                ("cluster_kills", 10),
                ("cluster_freezes", 10),
                ("cluster_partitions", 10),
                ("cluster_standby_lost", 4),
                ("cluster_disk_full", 3),
                ("cluster_clocks", 4),
            ]
        );
        let short = faults(&draw(7, Mode::Cluster, true, &[]));
        assert_eq!(short, [("cluster_switchovers", 1), ("cluster_kills", 1)]);
    }
}
