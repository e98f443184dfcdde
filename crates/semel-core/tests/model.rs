//! The state machine, searched exhaustively for small numbers.
//!
//! The store in this model *is* [`semel_core::transition::apply`]; everything around it is
//! as hostile as the world allows. See `docs/model.md`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "all of this is test code, and says what it found"
)]

#[path = "model/removed_guards.rs"]
mod removed_guards;
#[path = "model/rules.rs"]
mod rules;
#[path = "model/sightings.rs"]
mod sightings;
#[path = "model/store.rs"]
mod store;
#[path = "model/watch.rs"]
mod watch;
#[path = "model/world.rs"]
mod world;

use std::sync::Arc;

use semel_core::{OnExpired, Stale};
use stateright::{Checker, Model};

use crate::rules::{Rules, TICK};
use crate::sightings::Sight;

/// What every search must have come across.
const ALWAYS_SEEN: [Sight; 10] = [
    Sight::Replay,
    Sight::InFlightAnswer,
    Sight::UnknownAnswer,
    Sight::MisuseRefused,
    Sight::LaterAttemptExecuted,
    Sight::LateCompletion,
    Sight::CompletionRepeated,
    Sight::WriteFenced,
    Sight::VerdictFenced,
    Sight::DeadOwnersRecordResolved,
];

/// Nothing is known of the downstream: only proof frees an unknown operation.
#[test]
fn all_invariants_hold_by_default() {
    let mut rules = Rules::new();
    rules.scheduling = true;
    holds(
        rules,
        &[Sight::ExpiredAnswer, Sight::Evicted, Sight::TombstonePurged],
    );
}

/// The downstream takes every attempt for the same call, so "not found" frees an unknown
/// operation, and a retry after the window begins anew.
#[test]
fn all_invariants_hold_with_an_idempotent_downstream() {
    let mut rules = Rules::new();
    rules.downstream_idempotent = true;
    rules.max_ticks = 3;
    rules.policy.on_expired = OnExpired::Execute;
    holds(
        rules,
        &[Sight::BegunAnew, Sight::Evicted, Sight::TombstonePurged],
    );
}

/// The operation is made of phases, and the next attempt, a client's or a completer's, goes on
/// where the last one was.
#[test]
fn all_invariants_hold_with_resuming() {
    let mut rules = Rules::new();
    rules.downstream_idempotent = true;
    rules.max_ticks = 2;
    rules.policy.stale = Stale::Resume;
    rules.policy.recovery_points = true;
    holds(
        rules,
        &[
            Sight::Resumed,
            Sight::AbandonedClaimed,
            Sight::Evicted,
            Sight::TombstonePurged,
        ],
    );
}

/// The body goes before the rest, and what expires is deleted at once.
#[test]
fn all_invariants_hold_with_early_bodies_and_no_tombstones() {
    let mut rules = Rules::new();
    rules.policy.windows.replay = 2 * TICK;
    rules.policy.windows.tombstone = None;
    holds(rules, &[Sight::Evicted, Sight::BodyDropped]);
}

/// Searches the whole world, and asks that it was worth searching.
fn holds(rules: Rules, also_seen: &[Sight]) {
    let sightings = Arc::clone(&rules.sightings);
    let checker = rules.checker().spawn_bfs().join();
    println!(
        "{} states, {} steps, longest path {}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
    );
    for sight in Sight::ALL {
        println!("{:>12} {sight:?}", sightings.count(sight));
    }
    // Exhausted: no bound was set on states, depth or time, and no work is left.
    assert!(checker.is_done());
    checker.assert_properties();
    for sight in ALWAYS_SEEN.iter().chain(also_seen) {
        assert!(sightings.count(*sight) > 0, "never seen: {sight:?}");
    }
}
