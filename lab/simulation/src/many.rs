//! Many seeds, on several threads, and their summary.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::scenario::lock;
use crate::{Run, Sabotage, coverage, run};

/// Every seed that is a multiple of this is run twice, and the two runs must be equal.
const TWICE_EVERY: u64 = 100;

/// The summary of all seeds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// How many seeds were run.
    pub seeds: u64,
    /// How many events there were.
    pub steps: u64,
    /// The injected faults, by name.
    pub faults: BTreeMap<String, u64>,
    /// The results of requests, by name.
    pub outcomes: BTreeMap<String, u64>,
    /// The broken invariants, by name.
    pub violations: BTreeMap<String, u64>,
    /// How many seeds were run twice and compared.
    pub replayed_twice: u64,
    /// The seeds with violations, and their first one.
    pub failing: BTreeMap<u64, String>,
}

/// Every invariant that is checked, so that a report also shows those that hold.
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

/// The seeds that are part of every full run.
pub const FIXED_SEEDS: Range<u64> = 1..2001;

/// Runs ranges of seeds on several threads. Each thread calls `progress` after every seed.
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

/// The seed at an index in all ranges.
fn nth(ranges: &[Range<u64>], mut index: u64) -> Option<u64> {
    for range in ranges {
        let length = range.end.saturating_sub(range.start);
        if index < length {
            return Some(range.start + index);
        }
        index -= length;
    }
    None
}

impl Summary {
    /// The faults and results that were too rare for the run to prove anything.
    pub fn missing_coverage(&self) -> Vec<String> {
        coverage::missing_coverage(self.seeds, &self.faults, &self.outcomes)
    }

    /// Whether no invariant was broken, in a run with enough faults.
    pub fn passed(&self) -> bool {
        self.failing.is_empty() && self.missing_coverage().is_empty()
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

    /// The form in which the evidence stores it. `base` is the first seed after [`FIXED_SEEDS`].
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
            "too_little": self.missing_coverage(),
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
        let seeds: Vec<_> = (0..5).map(|index| nth(&ranges, index)).collect();
        assert_eq!(seeds, [Some(1), Some(2), Some(100), Some(101), None]);
    }
}
