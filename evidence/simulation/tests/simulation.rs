//! The simulation simulates the same thing twice, finds nothing in the product, and finds every
//! guard that is removed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code says what is wrong by panicking"
)]

use std::process::Command;

use semel_simulation::{INVARIANTS, Sabotage, run, run_many};

/// How many seeds a removed guard may take to be missed.
const WITHIN: u64 = 400;

#[test]
fn a_seed_is_one_world() {
    for seed in 1..=200 {
        let [first, second] = [(); 2].map(|()| run(seed, Sabotage::None, false).unwrap());
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.steps, second.steps, "seed {seed}");
        assert_eq!(first.outcomes, second.outcomes, "seed {seed}");
    }
}

#[test]
fn a_seed_is_the_same_world_in_another_process() {
    for seed in [3, 11, 42] {
        let here = run(seed, Sabotage::None, false).unwrap();
        let there = Command::new(env!("CARGO_BIN_EXE_semel-simulation"))
            .args(["--seed", &seed.to_string()])
            .output()
            .unwrap();
        let said = String::from_utf8(there.stdout).unwrap();
        assert!(said.contains(&format!("hash {:016x}", here.hash)), "{said}");
    }
}

#[test]
fn a_trace_does_not_change_the_world() {
    let quiet = run(5, Sabotage::None, false).unwrap();
    let told = run(5, Sabotage::None, true).unwrap();
    assert_eq!(quiet.hash, told.hash);
    assert!(quiet.trace.is_empty());
    assert_eq!(told.trace.len() as u64, told.steps);
}

#[test]
fn nothing_is_broken() {
    let summary = run_many(std::slice::from_ref(&(1..301)), 2, Sabotage::None, |_| {});
    assert!(summary.failing.is_empty(), "{:?}", summary.failing);
    assert_eq!(summary.seeds, 300);
    assert_eq!(summary.violations.len(), INVARIANTS.len());
    // It counts only if something went wrong in every way, and everything ended in every way.
    assert_eq!(summary.too_little(), [""; 0]);
    assert!(summary.passed());
    for outcome in ["executed_201", "replayed_201"] {
        let count = summary.outcomes.get(outcome).copied().unwrap_or(0);
        assert!(count > 500, "{outcome}: {count}");
    }
}

/// A removed guard must be missed, and by every promise that it keeps.
#[track_caller]
fn missed(sabotage: Sabotage, invariants: &[&'static str]) {
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
    panic!("{WITHIN} seeds did not find that it {sabotage:?}, by {wanted:?}");
}

macro_rules! each_is_missed {
    ($($test:ident: $sabotage:ident by $($invariant:literal)+;)*) => {
        $(#[test]
        fn $test() {
            missed(Sabotage::$sabotage, &[$($invariant),+]);
        })*

        #[test]
        fn no_sabotage_is_left_out() {
            assert_eq!(Sabotage::ALL, [$(Sabotage::$sabotage),*]);
        }

        /// What some sabotage breaks.
        const SHOWN: &[&str] = &[$($($invariant),+),*];
    };
}

each_is_missed! {
    fences: IgnoresFences by "fence_ignored";
    leases: ReexecutesExpiredLeases by "duplicate_effects" "effects_never_surfaced";
    sweeping: FreesWhatItSweeps by "duplicate_effects" "executed_after_unknown";
    fingerprints: IgnoresFingerprints by "misuse_accepted";
    tenants: IgnoresTenants by "answers_across_tenants";
    failing_closed: FailsOpen by "executed_after_store_error" "effects_of_what_was_not_granted";
    absence: TrustsAbsence by "duplicate_effects";
    pruning: PrunesUnknowns by "duplicate_effects" "executed_after_unknown";
    forgetting: ForgetsLaterAttempts by "granted_without_proof";
    storing_first: AcknowledgesBeforeWriting by "sent_before_stored";
    the_first_answer: OverwritesAnswers by "altered_replays";
    attempts: RepeatsAttempts by "attempts_not_monotone" "attempt_executed_twice"
        "decided_against_the_record";
    looking: NeverLooksAgain by "stuck_keys";
    replaying: AltersReplays by "altered_replays";
}

/// Promises that no sabotage breaks, and the mutant of the product that does.
const BY_A_MUTANT: [(&str, &str); 2] = [
    ("history_broken", "unknown-is-closed"),
    ("success_without_effect", "store-before-send"),
];

/// Promises that nothing here was ever seen to break: what they say has to be believed of the code
/// that looks.
const NEVER_SHOWN: [&str; 5] = [
    "bodies_lost",
    "executed_after_giving_up",
    "executed_unguarded",
    "not_deterministic",
    // Beside the test of its hook.
    "product_panicked",
];

/// The simulation's own failure is no promise.
const OWN: [&str; 1] = ["simulation_failed"];

#[test]
fn every_promise_is_shown_to_break_or_named_here() {
    let by_a_mutant = BY_A_MUTANT.map(|(promise, _)| promise);
    let others = [&by_a_mutant[..], &NEVER_SHOWN, &OWN].concat();
    for promise in INVARIANTS {
        let shown = SHOWN.contains(&promise);
        assert_ne!(shown, others.contains(&promise), "{promise}");
    }
    assert!(others.iter().all(|promise| INVARIANTS.contains(promise)));
}

/// What a mutant is said to break is held against it by `cargo xtask mutants`.
#[test]
fn what_a_mutant_shows_is_asked_of_it() {
    let lists = concat!(
        include_str!("../../mutants/boundary.toml"),
        include_str!("../../mutants/state-machine.toml"),
    );
    for (promise, name) in BY_A_MUTANT {
        let named = format!("name = {name:?}\n");
        let mutant = lists.split("[[mutant]]").find(|text| text.contains(&named));
        let simulation =
            mutant.and_then(|text| text.lines().find(|line| line.starts_with("simulation = ")));
        assert!(
            simulation.is_some_and(|line| line.contains(promise)),
            "{name}"
        );
    }
}
