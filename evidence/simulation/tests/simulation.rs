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
    let summary = run_many(1..301, 2, Sabotage::None, |_| {});
    assert!(summary.failing.is_empty(), "{:?}", summary.failing);
    assert_eq!(summary.seeds, 300);
    assert_eq!(summary.violations.len(), INVARIANTS.len());
    // It counts only if something went wrong in every way, and much went well.
    for fault in [
        "store_failed_before",
        "store_answer_lost",
        "store_landed_late",
        "store_slow",
        "store_outage",
        "gateway_killed",
        "gateway_stopped",
        "gateway_drained",
        "worker_killed",
        "worker_stopped",
        "client_disconnected",
        "client_misused_key",
        "app_504_after_effect",
        "app_panicked_after_effect",
        "app_reset_after_effect",
        "app_not_executed",
        "app_gave_up_on_provider",
    ] {
        assert!(
            summary.faults.get(fault).is_some_and(|count| *count > 10),
            "{fault}: {:?}",
            summary.faults
        );
    }
    for outcome in ["executed_201", "replayed_201"] {
        let count = summary.outcomes.get(outcome).copied().unwrap_or(0);
        assert!(count > 500, "{outcome}: {count}");
    }
}

/// A removed guard must be missed, and by the promise that it keeps.
#[track_caller]
fn missed(sabotage: Sabotage, invariants: &[&'static str]) {
    for seed in 1..=WITHIN {
        let run = run(seed, sabotage, false).unwrap();
        let found = |(name, _): &(&'static str, String)| invariants.contains(name);
        if run.violations.iter().any(found) {
            return;
        }
    }
    panic!("{WITHIN} seeds did not find that it {sabotage:?}, by {invariants:?}");
}

macro_rules! each_is_missed {
    ($($test:ident: $sabotage:ident by $($invariant:literal)|+;)*) => {
        $(#[test]
        fn $test() {
            missed(Sabotage::$sabotage, &[$($invariant),+]);
        })*

        #[test]
        fn no_sabotage_is_left_out() {
            assert_eq!(Sabotage::ALL, [$(Sabotage::$sabotage),*]);
        }
    };
}

each_is_missed! {
    fences: IgnoresFences by "fence_ignored";
    leases: ReexecutesExpiredLeases by "duplicate_effects";
    sweeping: FreesWhatItSweeps by "duplicate_effects";
    fingerprints: IgnoresFingerprints by "misuse_accepted";
    tenants: IgnoresTenants by "answers_across_tenants";
    failing_closed: FailsOpen by "executed_after_store_error";
    absence: TrustsAbsence by "duplicate_effects";
    pruning: PrunesUnknowns by "duplicate_effects";
    forgetting: ForgetsLaterAttempts by "granted_without_proof";
    storing_first: AcknowledgesBeforeWriting by "sent_before_stored";
    the_first_answer: OverwritesAnswers by "altered_replays";
    attempts: RepeatsAttempts by "attempts_not_monotone";
    looking: NeverLooksAgain by "stuck_keys";
    replaying: AltersReplays by "altered_replays";
}
