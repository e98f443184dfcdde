//! The simulation is deterministic, finds nothing in the product, and detects every removed guard.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reports a failure by panicking"
)]

use std::process::Command;

use semel_simulation::{INVARIANTS, Sabotage, run, run_many};

/// The seeds within which a removed guard must be detected.
const WITHIN: u64 = 400;

#[test]
fn a_seed_gives_the_same_run_twice() {
    for seed in 1..=200 {
        let [first, second] = [(); 2].map(|()| run(seed, Sabotage::None, false).unwrap());
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.steps, second.steps, "seed {seed}");
        assert_eq!(first.outcomes, second.outcomes, "seed {seed}");
    }
}

#[test]
fn a_seed_gives_the_same_run_in_another_process() {
    for seed in [3, 11, 42] {
        let here = run(seed, Sabotage::None, false).unwrap();
        let there = Command::new(env!("CARGO_BIN_EXE_semel-simulation"))
            .args(["--seed", &seed.to_string()])
            .output()
            .unwrap();
        let output = String::from_utf8(there.stdout).unwrap();
        let hash = format!("hash {:016x}", here.hash);
        assert!(output.contains(&hash), "{output}");
    }
}

#[test]
fn a_trace_does_not_change_the_run() {
    let quiet = run(5, Sabotage::None, false).unwrap();
    let traced = run(5, Sabotage::None, true).unwrap();
    assert_eq!(quiet.hash, traced.hash);
    assert!(quiet.trace.is_empty());
    assert_eq!(traced.trace.len() as u64, traced.steps);
}

#[test]
fn the_product_breaks_no_invariant() {
    let summary = run_many(std::slice::from_ref(&(1..301)), 2, Sabotage::None, |_| {});
    assert!(summary.failing.is_empty(), "{:?}", summary.failing);
    assert_eq!(summary.seeds, 300);
    assert_eq!(summary.violations.len(), INVARIANTS.len());
    // The run proves something only if every fault and every result occurred.
    assert_eq!(summary.missing_coverage(), [""; 0]);
    assert!(summary.passed());
    for outcome in ["executed_201", "replayed_201"] {
        let count = summary.outcomes.get(outcome).copied().unwrap_or(0);
        assert!(count > 500, "{outcome}: {count}");
    }
}

/// Checks that a removed guard breaks each of these invariants.
#[track_caller]
fn assert_detected(sabotage: Sabotage, invariants: &[&'static str]) {
    let mut wanted = invariants.to_vec();
    for seed in 1..=WITHIN {
        let run = run(seed, sabotage, false).unwrap();
        for (name, _) in run.violations {
            wanted.retain(|wanted| *wanted != name);
        }
        if wanted.is_empty() {
            return;
        }
    }
    panic!("{sabotage:?} did not break {wanted:?} in {WITHIN} seeds");
}

macro_rules! each_is_detected {
    ($($test:ident: $sabotage:ident by $($invariant:literal)+;)*) => {
        $(#[test]
        fn $test() {
            assert_detected(Sabotage::$sabotage, &[$($invariant),+]);
        })*

        #[test]
        fn every_sabotage_has_a_test() {
            assert_eq!(Sabotage::ALL, [$(Sabotage::$sabotage),*]);
        }

        /// The invariants that some sabotage breaks.
        const BROKEN: &[&str] = &[$($($invariant),+),*];
    };
}

each_is_detected! {
    ignored_fences_are_detected: IgnoresFences by "fence_ignored";
    reexecution_of_expired_leases_is_detected: ReexecutesExpiredLeases by "duplicate_effects" "effects_never_surfaced";
    releasing_swept_records_is_detected: ReleasesSweptRecords by "duplicate_effects" "executed_after_unknown";
    ignored_fingerprints_are_detected: IgnoresFingerprints by "misuse_accepted";
    ignored_tenants_are_detected: IgnoresTenants by "answers_across_tenants";
    failing_open_is_detected: FailsOpen by "executed_after_store_error" "effects_of_what_was_not_granted";
    trusting_absence_is_detected: TrustsAbsence by "duplicate_effects";
    pruning_unknown_records_is_detected: PrunesUnknowns by "duplicate_effects" "executed_after_unknown";
    evicting_later_attempts_is_detected: ForgetsLaterAttempts by "granted_without_proof";
    acknowledging_before_writing_is_detected: AcknowledgesBeforeWriting by "sent_before_stored";
    overwriting_responses_is_detected: OverwritesAnswers by "altered_replays";
    repeated_attempt_numbers_are_detected: RepeatsAttempts by "attempts_not_monotone" "attempt_executed_twice"
        "decided_against_the_record";
    missing_reconciliation_is_detected: NeverReconciles by "stuck_keys";
    altered_replays_are_detected: AltersReplays by "altered_replays";
}

/// Invariants that no sabotage breaks, and the mutant of the product that does.
const BY_A_MUTANT: [(&str, &str); 2] = [
    ("history_broken", "unknown-is-closed"),
    ("success_without_effect", "store-before-send"),
];

/// Invariants that no sabotage and no mutant breaks: nothing shows that the check can fail.
const NEVER_BROKEN: [&str; 5] = [
    "bodies_lost",
    "executed_after_giving_up",
    "executed_unguarded",
    "not_deterministic",
    // Only the test of its hook breaks it.
    "product_panicked",
];

/// A failure of the simulation itself is not an invariant.
const OWN: [&str; 1] = ["simulation_failed"];

#[test]
fn every_invariant_is_broken_by_a_test_or_listed() {
    let by_a_mutant = BY_A_MUTANT.map(|(invariant, _)| invariant);
    let others = [&by_a_mutant[..], &NEVER_BROKEN, &OWN].concat();
    for invariant in INVARIANTS {
        let broken = BROKEN.contains(&invariant);
        assert_ne!(broken, others.contains(&invariant), "{invariant}");
    }
    assert!(others.iter().all(|name| INVARIANTS.contains(name)));
}

/// `cargo xtask mutants` checks what the lists of mutants require.
#[test]
fn the_lists_of_mutants_require_these_violations() {
    let lists = concat!(
        include_str!("../../mutants/boundary.toml"),
        include_str!("../../mutants/state-machine.toml"),
    );
    for (invariant, name) in BY_A_MUTANT {
        let named = format!("name = {name:?}\n");
        let mutant = lists.split("[[mutant]]").find(|text| text.contains(&named));
        let simulation =
            mutant.and_then(|text| text.lines().find(|line| line.starts_with("simulation = ")));
        assert!(
            simulation.is_some_and(|line| line.contains(invariant)),
            "{name}"
        );
    }
}
