//! An exhaustive model check of the state machine, with small bounds.
//!
//! The store in this model *is* [`semel_core::transition::apply`]. Clients, owners and the network
//! around it do everything that a real environment can. See `docs/model.md`.

mod coverage;
mod invariants;
mod key_model;
mod removed_guards;
mod state;
mod store;

use std::sync::Arc;

use semel_core::{OnExpired, Stale};
use stateright::{Checker, Model};

use self::coverage::Situation;
use self::key_model::{KeyModel, TICK};

/// The situations that every search must reach.
const ALWAYS_REACHED: [Situation; 11] = [
    Situation::Replay,
    Situation::InFlightAnswer,
    Situation::UnknownAnswer,
    Situation::MisuseRefused,
    Situation::LaterAttemptExecuted,
    Situation::LateCompletion,
    Situation::LateRelease,
    Situation::CompletionRepeated,
    Situation::WriteFenced,
    Situation::VerdictFenced,
    Situation::DeadOwnersRecordResolved,
];

/// The downstream is not idempotent: only proof releases an unknown operation.
#[test]
fn all_invariants_hold_without_downstream_idempotency() {
    let mut model = KeyModel::new();
    model.scheduling = true;
    assert_invariants_hold(
        model,
        &[
            Situation::ExpiredAnswer,
            Situation::Evicted,
            Situation::TombstonePurged,
        ],
    );
}

/// The downstream treats every attempt as the same call, so "not found" releases an unknown
/// operation, and a retry after the window starts a new record.
#[test]
fn all_invariants_hold_with_an_idempotent_downstream() {
    let mut model = KeyModel::new();
    model.downstream_idempotent = true;
    model.max_ticks = 3;
    model.policy.on_expired = OnExpired::Execute;
    assert_invariants_hold(
        model,
        &[
            Situation::BegunAnew,
            Situation::Evicted,
            Situation::TombstonePurged,
        ],
    );
}

/// The operation has phases, and the next attempt, of a client or of a resume job, continues at the
/// last recovery point.
#[test]
fn all_invariants_hold_with_resume() {
    let mut model = KeyModel::new();
    model.downstream_idempotent = true;
    model.max_ticks = 2;
    model.policy.stale = Stale::Resume;
    model.policy.recovery_points = true;
    assert_invariants_hold(
        model,
        &[
            Situation::Resumed,
            Situation::AbandonedClaimed,
            Situation::Evicted,
            Situation::TombstonePurged,
        ],
    );
}

/// The body expires before the record, and expired records are deleted at once.
#[test]
fn all_invariants_hold_with_early_body_expiry_and_no_tombstones() {
    let mut model = KeyModel::new();
    model.policy.windows.replay = 2 * TICK;
    model.policy.windows.tombstone = None;
    assert_invariants_hold(model, &[Situation::Evicted, Situation::BodyDropped]);
}

/// Searches all reachable states, and asserts that the search reached the given situations.
fn assert_invariants_hold(model: KeyModel, also_reached: &[Situation]) {
    let coverage = Arc::clone(&model.coverage);
    let checker = model.checker().spawn_bfs().join();
    println!(
        "{} states, {} steps, longest path {}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
    );
    for situation in Situation::ALL {
        println!("{:>12} {situation:?}", coverage.count(situation));
    }
    // Exhausted: no bound was set on states, depth or time, and no work is left.
    assert!(checker.is_done());
    checker.assert_properties();
    for situation in ALWAYS_REACHED.iter().chain(also_reached) {
        assert!(
            coverage.count(*situation) > 0,
            "never reached: {situation:?}"
        );
    }
}
