//! The schedule of faults, drawn from the seed before anything is started.

mod cluster;
mod dynamodb;
mod server;

use serde_json::{Value, json};

use crate::chaos::Mode as Upstream;
use crate::client::Traffic;
use crate::cluster::ClusterFault;
use crate::deploy::Deploy;
use crate::dynamodb::DynamoFault;
use crate::operation::Leg;
use crate::random::Random;

/// How long a holder may be silent, as in the gateways' configuration.
pub(crate) const LEASE_MS: u64 = 2_000;
const HOUR: i64 = 3_600;

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
    /// Its replica is cut off for this many milliseconds and then promoted; whether connections to the
    /// old primary stay open.
    FailOverRedis(u64, bool),
    /// The disk of the SQLite store is full for this long.
    FillDisk(u64),
    /// Messages are published until the phase ends, drawn from this seed.
    Publish(u64),
    /// The broker is killed, and started again this many milliseconds later.
    KillBroker(u64),
    /// The consumer of messages is replaced by another one, which draws from this seed.
    KillConsumer(u64),
    /// Another configuration.
    Deploy(Deploy),
    /// Clients that hold or waste what a gateway has, until the phase ends.
    Attack(Target),
    /// A fault of the cluster.
    Cluster(ClusterFault),
    /// A fault of DynamoDB.
    Dynamodb(DynamoFault),
}

/// What the gateways' shared store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One PostgreSQL server.
    Server,
    /// A cluster with failover.
    Cluster,
    /// A DynamoDB table.
    Dynamodb,
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

impl Mode {
    fn sketches(self) -> &'static [Sketch] {
        match self {
            Self::Server => &server::SKETCHES,
            Self::Cluster => &cluster::SKETCHES,
            Self::Dynamodb => &dynamodb::SKETCHES,
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
            Self::Server | Self::Cluster | Self::Dynamodb => true,
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
            erased: 0,
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
