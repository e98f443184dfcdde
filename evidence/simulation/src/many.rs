//! Many seeds, on several threads, and what they come to together.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::world::lock;
use crate::{Run, Sabotage, enough, run};

/// Every so many seeds one is run twice, and the two must be the same, event for event.
const TWICE_EVERY: u64 = 100;

/// What all seeds came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// How many seeds were run.
    pub seeds: u64,
    /// How many events there were.
    pub steps: u64,
    /// The faults that were put in, by name.
    pub faults: BTreeMap<String, u64>,
    /// What clients were told, by name.
    pub outcomes: BTreeMap<String, u64>,
    /// The promises that were broken, by name.
    pub violations: BTreeMap<String, u64>,
    /// How many seeds were run twice and compared.
    pub replayed_twice: u64,
    /// The seeds with violations, and their first one.
    pub failing: BTreeMap<u64, String>,
}

/// Every promise that is watched, so that a report shows what was looked for and not found.
pub const INVARIANTS: [&str; 23] = [
    "altered_replays",
    "answers_across_tenants",
    "attempt_executed_twice",
    "attempts_not_monotone",
    "bodies_lost",
    "decided_against_the_record",
    "duplicate_effects",
    "effects_never_surfaced",
    "effects_of_what_was_not_granted",
    "executed_after_giving_up",
    "executed_after_store_error",
    "executed_after_unknown",
    "executed_unguarded",
    "fence_ignored",
    "granted_without_proof",
    "history_broken",
    "misuse_accepted",
    "not_deterministic",
    "product_panicked",
    "sent_before_stored",
    "simulation_failed",
    "stuck_keys",
    "success_without_effect",
];

/// The seeds that are run whatever else is: what they found once they find again.
pub const ALWAYS: Range<u64> = 1..2001;

/// Runs ranges of seeds on so many threads. `progress` hears of every seed, from any of them.
pub fn run_many(
    ranges: &[Range<u64>],
    threads: usize,
    sabotage: Sabotage,
    progress: impl Fn(u64) + Sync,
) -> Summary {
    let next = AtomicU64::new(0);
    let summary = Mutex::new(Summary {
        violations: INVARIANTS.map(|name| (name.to_owned(), 0)).into(),
        ..Summary::default()
    });
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let Some(seed) = nth(ranges, next.fetch_add(1, Ordering::Relaxed)) else {
                        return;
                    };
                    let twice = seed.is_multiple_of(TWICE_EVERY);
                    let runs = [
                        Some(run(seed, sabotage, false)),
                        twice.then(|| run(seed, sabotage, false)),
                    ];
                    let mut summary = lock(&summary);
                    summary.add(seed, runs);
                    progress(summary.seeds);
                }
            });
        }
    });
    summary.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The seed at that place, of all ranges in order.
fn nth(ranges: &[Range<u64>], mut place: u64) -> Option<u64> {
    for range in ranges {
        let length = range.end.saturating_sub(range.start);
        if place < length {
            return Some(range.start + place);
        }
        place -= length;
    }
    None
}

impl Summary {
    /// What there was too little of to say anything about it.
    pub fn too_little(&self) -> Vec<String> {
        enough::too_little(self.seeds, &self.faults, &self.outcomes)
    }

    /// Whether nothing was broken, although there was enough that could have broken it.
    pub fn passed(&self) -> bool {
        self.failing.is_empty() && self.too_little().is_empty()
    }

    fn add(&mut self, seed: u64, runs: [Option<anyhow::Result<Run>>; 2]) {
        self.seeds += 1;
        let mut first: Option<u64> = None;
        for run in runs.into_iter().flatten() {
            let run = match run {
                Ok(run) => run,
                Err(error) => {
                    self.fail(seed, "simulation_failed", &error.to_string());
                    continue;
                }
            };
            if let Some(first) = first {
                self.replayed_twice += 1;
                if first != run.hash {
                    self.fail(seed, "not_deterministic", "two runs differ");
                }
                continue;
            }
            first = Some(run.hash);
            self.steps += run.steps;
            for (name, count) in run.faults {
                *self.faults.entry(name.to_owned()).or_default() += count;
            }
            for (name, count) in run.outcomes {
                *self.outcomes.entry(name).or_default() += count;
            }
            for (name, how) in run.violations {
                self.fail(seed, name, &how);
            }
        }
    }

    fn fail(&mut self, seed: u64, name: &str, how: &str) {
        *self.violations.entry(name.to_owned()).or_default() += 1;
        let first = self.failing.entry(seed);
        first.or_insert_with(|| format!("{name}: {how}"));
    }

    /// As the evidence keeps it. `base` is where the seeds begin that are run beside [`ALWAYS`].
    pub fn to_json(&self, first_seed: u64, base: Option<u64>, seconds: f64) -> Value {
        json!({
            "first_seed": first_seed,
            "base": base,
            "seeds": self.seeds,
            "steps": self.steps,
            "faults": self.faults,
            "outcomes": self.outcomes,
            "violations": self.violations,
            "replayed_twice": self.replayed_twice,
            "seconds": seconds,
            "failing": self.failing.keys().collect::<Vec<_>>(),
            "too_little": self.too_little(),
            "passed": self.passed(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_run_one_after_the_other() {
        let ranges = [1..3, 3..3, 100..102];
        let seeds: Vec<_> = (0..5).map(|place| nth(&ranges, place)).collect();
        assert_eq!(seeds, [Some(1), Some(2), Some(100), Some(101), None]);
    }
}
