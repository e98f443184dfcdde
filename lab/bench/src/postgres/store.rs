//! Reserve and complete, and replay, without HTTP and without a cache in front.

use std::sync::Arc;

use anyhow::Result;
use tokio::runtime::Runtime;

use super::hand::Hand;
use super::limit::Limit;
use super::server::Server;
use super::{Extent, HAND, SEMEL, subject};
use crate::load::{Contender, all_at_once, completed, new_operations, replays};
use crate::measure::{Lines, Measurement};
use crate::report::Report;
use crate::target::{self, Target};

const CALLERS: [usize; 4] = [1, 8, 64, 256];
const REPLAY_CALLERS: [usize; 3] = [1, 64, 256];
const LIMIT_CONNECTIONS: [usize; 3] = [1, 2, 4];

/// Operations that are replayed before there are more: enough for every connection of a pool
/// to settle for a plan.
const FIRST_REPLAYED: usize = 256;

/// The most that an operation writes to the log: 0.85 of the layout whose completions wrote index entries.
const MOST_LOG_BYTES: f64 = 2_000.0;

/// How far the order of the cases moves on from round to round; prime to their number.
const STRIDE: usize = 5;

/// One case of either side.
type Of = fn(Who) -> Case;

/// The least rate beside the hand-written service, by case.
const BESIDE_HAND: [(Of, &str, f64); 6] = [
    (|who| Case::New(who, 1), "new, 1 caller", 1.0),
    (|who| Case::New(who, 8), "new, 8 callers", 1.2),
    (|who| Case::New(who, 64), "new, 64 callers", 4.0),
    (|who| Case::New(who, 256), "new, 256 callers", 7.0),
    (|who| Case::Replay(who, 1), "replay, 1 caller", 1.0),
    (|who| Case::Replay(who, 64), "replay, 64 callers", 4.0),
];

#[derive(Clone, Copy)]
enum Who {
    Semel,
    Hand,
}

#[derive(Clone, Copy)]
enum Case {
    New(Who, usize),
    Replay(Who, usize),
    Limit(usize),
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Semel => SEMEL,
            Self::Hand => HAND,
        }
    }
}

impl Case {
    fn all() -> Vec<Self> {
        let both = |case: fn(Who, usize) -> Self, callers: usize| {
            [Who::Semel, Who::Hand].map(|who| case(who, callers))
        };
        let new = CALLERS.iter().flat_map(|callers| both(Self::New, *callers));
        let replay = REPLAY_CALLERS
            .iter()
            .flat_map(|callers| both(Self::Replay, *callers));
        let limit = LIMIT_CONNECTIONS.map(Self::Limit);
        new.chain(limit).chain(replay).collect()
    }

    fn name(self) -> String {
        match self {
            Self::New(who, callers) => format!("{}, new, {callers} callers", who.name()),
            Self::Replay(who, callers) => format!("{}, replay, {callers} callers", who.name()),
            Self::Limit(connections) => format!("limit, {connections} connections"),
        }
    }

    fn measure(self, server: &Server, extent: &Extent) -> Result<Measurement> {
        let database = server.fresh("store")?;
        let (runtime, url) = (&server.runtime, database.url.as_str());
        match self {
            Self::New(who, callers) | Self::Replay(who, callers) => match who {
                Who::Semel => {
                    let store = runtime.block_on(subject::open(url.to_owned()))?;
                    self.measure_one(server, extent, &store, callers)
                }
                Who::Hand => {
                    let hand = runtime.block_on(Hand::open(url))?;
                    let measurement = self.measure_one(server, extent, &hand, callers);
                    runtime.block_on(hand.close());
                    measurement
                }
            },
            Self::Limit(connections) => {
                let limit = runtime.block_on(Limit::open(url, connections))?;
                server.measure(|| limit.operations(runtime, extent.time))
            }
        }
    }

    fn measure_one(
        self,
        server: &Server,
        extent: &Extent,
        contender: &impl Contender,
        callers: usize,
    ) -> Result<Measurement> {
        let (runtime, time) = (&server.runtime, extent.time);
        match self {
            Self::Replay(..) => {
                let keys = stored(runtime, contender, extent.replayed)?;
                server.measure(|| replays(runtime, contender, &keys, callers, time))
            }
            Self::New(..) | Self::Limit(_) => {
                server.measure(|| new_operations(runtime, contender, callers, time))
            }
        }
    }
}

/// Keys to be replayed. The first of them are replayed while they are almost alone, so that a
/// plan for an empty table, should there be one, is what the rest is replayed with.
fn stored(runtime: &Runtime, contender: &impl Contender, replayed: usize) -> Result<Arc<[String]>> {
    let few = completed(runtime, contender, FIRST_REPLAYED)?;
    all_at_once(runtime, contender, &few, |contender, key| async move {
        contender.replay(&key).await
    })?;
    completed(runtime, contender, replayed)
}

pub(super) fn run(report: &mut Report, server: &Server, extent: &Extent) -> Result<()> {
    let mut cases = Case::all();
    cases.retain(|case| extent.wants(&case.name()));
    let mut lines = Lines::default();
    // In turns, each time beginning with another: a minute in which the disk is slow is slow
    // for all.
    for round in 0..extent.rounds {
        for turn in 0..cases.len() {
            let case = cases[(turn + round * STRIDE) % cases.len()];
            lines.record(&case.name(), case.measure(server, extent)?);
        }
    }
    let best = best_limit(&lines);
    report.table("PostgreSQL: reserve and complete, 1 KiB", &lines, |name| {
        let Some(case) = name.strip_prefix(SEMEL) else {
            return Vec::new();
        };
        let limit = best
            .filter(|_| case == ", new, 256 callers")
            .map(Case::name);
        let hand = format!("{HAND}{case}");
        [hand].into_iter().chain(limit).collect()
    });
    report.targets(targets(&lines, best));
    Ok(())
}

/// The number of connections with which the raw batches are fastest.
fn best_limit(lines: &Lines) -> Option<Case> {
    let limits = LIMIT_CONNECTIONS.map(Case::Limit);
    limits.into_iter().max_by(|one, other| {
        let rate = |case: &Case| lines.median(&case.name(), |one| one.per_second);
        rate(one)
            .partial_cmp(&rate(other))
            .unwrap_or(std::cmp::Ordering::Equal)
    })
}

fn targets(lines: &Lines, best: Option<Case>) -> Vec<Target> {
    let rate =
        |case: Case, other: Case| lines.ratio(&case.name(), &other.name(), |one| one.per_second);
    let most = Case::New(Who::Semel, 256);
    let to_limit = Target::new(
        "PostgreSQL, new, 256 callers: rate / raw batches",
        best.and_then(|best| rate(most, best)),
        target::Limit::AtLeast(0.6),
    );
    let to_hand = BESIDE_HAND.map(|(case, name, least)| {
        let ratio = rate(case(Who::Semel), case(Who::Hand));
        let name = format!("PostgreSQL, {name}: rate / hand-written");
        Target::new(name, ratio, target::Limit::AtLeast(least))
    });
    let log = lines.median(&most.name(), |one| one.log_bytes.unwrap_or(f64::NAN));
    let log = Target::new(
        "PostgreSQL, new, 256 callers: bytes of log",
        log,
        target::Limit::AtMost(MOST_LOG_BYTES),
    );
    to_hand.into_iter().chain([to_limit, log]).collect()
}
