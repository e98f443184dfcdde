//! The same search with one guard taken out must find what the guard is for. A checker
//! that cannot find these would prove nothing by finding nothing.

use std::collections::BTreeSet;

use semel_core::Stale;
use stateright::{Checker, HasDiscoveries, Model};

use crate::rules::Rules;
use crate::store::Guard;
use crate::watch::{FORGOTTEN, Invariant, ONE_EFFECT};
use crate::world::Step;

/// Longest path that is searched for a violation. The longest of the shortest ones has 13.
const MAX_STEPS: usize = 18;

/// A delayed or repeated write of attempt 1 hits attempt 2.
#[test]
fn without_the_fence() {
    let broken = without(Guard::Fence);
    finds(&broken, Invariant::Fence.name(), 5);
    // A `release` that is written twice frees the attempt that came after it.
    finds(&broken, ONE_EFFECT, 10);
}

/// What almost every peer does: the lease is over, so run again.
#[test]
fn without_unknown_on_lease_expiry() {
    let broken = without(Guard::UnknownOnExpiry);
    finds(&broken, Invariant::OneGrant.name(), 3);
    finds(&broken, ONE_EFFECT, 7);
}

/// Another request under the same key is taken for a retry.
#[test]
fn without_the_fingerprint() {
    let broken = without(Guard::Fingerprint);
    finds(&broken, Invariant::MisuseFirst.name(), 2);
}

/// The misuser is refused in the end, but first learns that somebody is at work.
#[test]
fn without_the_fingerprint_first() {
    let broken = without(Guard::FingerprintFirst);
    finds(&broken, Invariant::MisuseFirst.name(), 2);
}

/// Deleting by age forgets a charge that nobody has accounted for yet.
#[test]
fn without_the_prune_guard() {
    let broken = without(Guard::Prune);
    finds(&broken, Invariant::NothingPrunedEarly.name(), 3);
}

/// A client's retry is let in while the first execution may have happened.
#[test]
fn without_unknown_being_closed() {
    let broken = without(Guard::UnknownIsClosed);
    finds(&broken, Invariant::UnknownIsClosed.name(), 3);
    finds(&broken, ONE_EFFECT, 7);
}

/// "Attempt 1 never happened" arrives late and frees attempt 2, which did.
#[test]
fn without_the_fence_of_verdicts() {
    let broken = without(Guard::VerdictFence);
    finds(&broken, Invariant::Fence.name(), 8);
    finds(&broken, ONE_EFFECT, 13);
}

/// The provider does not know the call *yet*: it lands after the next grant.
#[test]
fn without_doubt_about_absence() {
    let mut broken = Rules::new();
    broken.absence_is_proof = true;
    finds(&broken, Invariant::NoLateEffect.name(), 7);
    finds(&broken, ONE_EFFECT, 9);
}

/// The reconciler's answer was given to clients; the late owner replaces it.
#[test]
fn without_the_guard_on_completed() {
    let broken = without(Guard::Immutable);
    finds(&broken, Invariant::ImmutableAnswer.name(), 7);
}

/// Attempt 2 has done nothing and wants to be forgotten, but attempt 1 did or still may:
/// attempt 2 was let in because repeating the call under the same downstream key is safe.
/// The next request would be a new operation, with a new key downstream.
#[test]
fn without_the_guard_on_evicting_later_attempts() {
    let mut broken = without(Guard::EvictFirstAttemptOnly);
    broken.downstream_idempotent = true;
    finds(&broken, FORGOTTEN, 9);

    finds(&resuming(broken), FORGOTTEN, 7);
}

/// A completer that takes over without a new attempt cannot be told from the one it replaces.
#[test]
fn without_a_new_attempt_for_a_completer() {
    let broken = resuming(without(Guard::ClaimIsAnAttempt));
    finds(&broken, Invariant::OneGrant.name(), 3);
}

/// A completer takes over from an owner that is alive.
#[test]
fn without_the_lease_before_a_completer() {
    let broken = resuming(without(Guard::ClaimAfterTheLease));
    finds(&broken, Invariant::OneGrant.name(), 2);
}

/// A completer goes on with what has no points to go on from, and calls once more.
#[test]
fn without_the_guard_on_what_a_completer_takes() {
    let broken = without(Guard::ClaimResumableOnly);
    finds(&broken, Invariant::OneGrant.name(), 3);
    finds(&broken, ONE_EFFECT, 7);
}

fn resuming(mut rules: Rules) -> Rules {
    rules.downstream_idempotent = true;
    rules.policy.stale = Stale::Resume;
    rules.policy.recovery_points = true;
    rules
}

fn without(guard: Guard) -> Rules {
    let mut rules = Rules::new();
    rules.without = Some(guard);
    rules
}

/// Searches path length by path length, since the checker keeps the last path that it
/// found and not the shortest, and asks for the length that is documented.
fn finds(broken: &Rules, property: &'static str, steps: usize) {
    let path = (0..=MAX_STEPS).find_map(|length| shortest(broken, property, length));
    let path = path.unwrap_or_else(|| panic!("\"{property}\" holds without the guard"));
    println!("\"{property}\" fails after {} steps:", path.len());
    for step in &path {
        println!("    {step:?}");
    }
    assert_eq!(path.len(), steps, "\"{property}\"");
}

/// A path of at most this many steps after which the property does not hold.
fn shortest(broken: &Rules, property: &'static str, steps: usize) -> Option<Vec<Step>> {
    // The checker counts states, and looks only at those before the one it stops at.
    let depth = steps + 2;
    let checker = broken
        .clone()
        .checker()
        .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([property])))
        .target_max_depth(depth)
        .spawn_bfs()
        .join();
    let path = checker.discovery(property)?;
    Some(path.into_actions())
}
