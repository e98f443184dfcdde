//! The same search with one guard removed must find the violation that the guard prevents. This
//! shows that the search can detect violations at all.

use std::collections::BTreeSet;

use semel_core::Stale;
use stateright::{Checker, HasDiscoveries, Model};

use super::invariants::{Invariant, NO_EFFECT_AFTER_EVICT, ONE_EFFECT};
use super::key_model::KeyModel;
use super::state::Step;
use super::store::Guard;

/// The longest path that is searched for a violation. The longest expected one has 13 steps.
const MAX_STEPS: usize = 18;

/// A delayed or repeated write of attempt 1 hits attempt 2.
#[test]
fn removing_the_holder_fence_violates_fence_and_one_effect() {
    let weakened = model_without(Guard::Fence);
    assert_violation(&weakened, Invariant::Fence.name(), 5);
    // A `release` that arrives twice releases the attempt after it.
    assert_violation(&weakened, ONE_EFFECT, 10);
}

/// A `release` of attempt 1 arrives again while attempt 2 is unknown, and may have executed.
#[test]
fn removing_the_fence_of_late_releases_violates_fence_and_one_effect() {
    let weakened = model_without(Guard::LateReleaseFence);
    assert_violation(&weakened, Invariant::Fence.name(), 6);
    assert_violation(&weakened, ONE_EFFECT, 11);
}

/// An expired lease lets the next request execute, as in almost every comparable product.
#[test]
fn removing_unknown_on_lease_expiry_violates_one_grant_and_one_effect() {
    let weakened = model_without(Guard::UnknownOnExpiry);
    assert_violation(&weakened, Invariant::OneGrant.name(), 3);
    assert_violation(&weakened, ONE_EFFECT, 7);
}

/// A different request under the same key is treated as a retry.
#[test]
fn removing_the_fingerprint_violates_misuse_first() {
    let weakened = model_without(Guard::Fingerprint);
    assert_violation(&weakened, Invariant::MisuseFirst.name(), 2);
}

/// A misused key is refused in the end, but its client first learns that an attempt is running.
#[test]
fn comparing_the_fingerprint_late_violates_misuse_first() {
    let weakened = model_without(Guard::FingerprintFirst);
    assert_violation(&weakened, Invariant::MisuseFirst.name(), 2);
}

/// Deletion by age removes the record of a charge whose outcome is still unknown.
#[test]
fn removing_the_prune_guard_violates_nothing_pruned_early() {
    let weakened = model_without(Guard::Prune);
    assert_violation(&weakened, Invariant::NothingPrunedEarly.name(), 3);
}

/// A client's retry executes while the first attempt may have executed.
#[test]
fn reopening_unknown_violates_unknown_is_closed_and_one_effect() {
    let weakened = model_without(Guard::UnknownIsClosed);
    assert_violation(&weakened, Invariant::UnknownIsClosed.name(), 3);
    assert_violation(&weakened, ONE_EFFECT, 7);
}

/// The verdict that attempt 1 did not execute arrives late and releases attempt 2, which executed.
#[test]
fn removing_the_verdict_fence_violates_fence_and_one_effect() {
    let weakened = model_without(Guard::VerdictFence);
    assert_violation(&weakened, Invariant::Fence.name(), 8);
    assert_violation(&weakened, ONE_EFFECT, 13);
}

/// The provider does not know the call *yet*: it arrives after the next grant.
#[test]
fn taking_absence_as_proof_violates_no_late_effect_and_one_effect() {
    let mut weakened = KeyModel::new();
    weakened.absence_is_proof = true;
    assert_violation(&weakened, Invariant::NoLateEffect.name(), 7);
    assert_violation(&weakened, ONE_EFFECT, 9);
}

/// Clients got the reconciler's answer; the late owner overwrites it.
#[test]
fn overwriting_a_completion_violates_immutable_answer() {
    let weakened = model_without(Guard::Immutable);
    assert_violation(&weakened, Invariant::ImmutableAnswer.name(), 7);
}

/// Attempt 2 did nothing and evicts the record, but attempt 1 had its effect or still may:
/// attempt 2 was granted because repeating the call under the same downstream key is safe.
/// The next request would be a new operation, with a new downstream key.
#[test]
fn evicting_a_later_attempt_violates_no_effect_after_evict() {
    let mut weakened = model_without(Guard::EvictFirstAttemptOnly);
    weakened.downstream_idempotent = true;
    assert_violation(&weakened, NO_EFFECT_AFTER_EVICT, 9);

    assert_violation(&with_resume(weakened), NO_EFFECT_AFTER_EVICT, 7);
}

/// A resume job that takes over without a new attempt has the fencing token of the old owner.
#[test]
fn claiming_without_a_new_attempt_violates_one_grant() {
    let weakened = with_resume(model_without(Guard::ClaimIsAnAttempt));
    assert_violation(&weakened, Invariant::OneGrant.name(), 3);
}

/// A resume job takes over while the lease of the owner is valid.
#[test]
fn claiming_before_lease_expiry_violates_one_grant() {
    let weakened = with_resume(model_without(Guard::ClaimAfterTheLease));
    assert_violation(&weakened, Invariant::OneGrant.name(), 2);
}

/// A resume job claims a record without recovery points, and repeats the call.
#[test]
fn claiming_a_record_that_cannot_resume_violates_one_grant_and_one_effect() {
    let weakened = model_without(Guard::ClaimResumableOnly);
    assert_violation(&weakened, Invariant::OneGrant.name(), 3);
    assert_violation(&weakened, ONE_EFFECT, 7);
}

fn with_resume(mut model: KeyModel) -> KeyModel {
    model.downstream_idempotent = true;
    model.policy.stale = Stale::Resume;
    model.policy.recovery_points = true;
    model
}

fn model_without(guard: Guard) -> KeyModel {
    let mut model = KeyModel::new();
    model.removed_guard = Some(guard);
    model
}

/// Asserts that the shortest path to a violation has the documented length. Searches by path
/// length, because the checker keeps the last path that it finds, not the shortest.
fn assert_violation(model: &KeyModel, property: &'static str, steps: usize) {
    let path = (0..=MAX_STEPS).find_map(|length| find_violation(model, property, length));
    let path = path.unwrap_or_else(|| panic!("\"{property}\" holds without the guard"));
    println!("\"{property}\" fails after {} steps:", path.len());
    for step in &path {
        println!("    {step:?}");
    }
    assert_eq!(path.len(), steps, "\"{property}\"");
}

/// A path of at most this many steps to a state that violates the property.
fn find_violation(model: &KeyModel, property: &'static str, steps: usize) -> Option<Vec<Step>> {
    // The checker counts states, and does not check the last one.
    let depth = steps + 2;
    let checker = model
        .clone()
        .checker()
        .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([property])))
        .target_max_depth(depth)
        .spawn_bfs()
        .join();
    let path = checker.discovery(property)?;
    Some(path.into_actions())
}
