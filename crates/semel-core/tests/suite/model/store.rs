//! The store of the model: the product's transition function, optionally with one guard removed.

use std::time::Duration;

use semel_core::transition::{self, Answer, Transition};
use semel_core::{Decision, Event, Fence, Record, Reserve, State, Status, Timestamp, Unresolved};

/// A rule that can be removed, to test that the search finds the violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// A holder's write must name the current attempt.
    Fence,
    /// A late owner that releases an unknown record must name the current attempt.
    LateReleaseFence,
    /// An expired lease makes the record unknown.
    UnknownOnExpiry,
    /// A request must have the record's fingerprint.
    Fingerprint,
    /// The fingerprint is compared before anything else.
    FingerprintFirst,
    /// Records that are in progress or unknown are not removed by age.
    Prune,
    /// A request does not change an unknown record.
    UnknownIsClosed,
    /// A verdict must be about the current attempt.
    VerdictFence,
    /// A completed record is not completed again with a different response.
    Immutable,
    /// Only the first attempt may evict a record.
    EvictFirstAttemptOnly,
    /// A claim of a resume job is a new attempt.
    ClaimIsAnAttempt,
    /// A resume job claims a record only after its lease expired.
    ClaimAfterTheLease,
    /// A resume job claims only records that can be resumed.
    ClaimResumableOnly,
}

/// Applies one event, as the product does, or as it would without one guard.
pub(crate) fn apply(
    removed_guard: Option<Guard>,
    record: Option<Record>,
    event: Event,
    now: Timestamp,
) -> Transition<Answer> {
    match (removed_guard, record) {
        (Some(guard), Some(record)) => apply_without(guard, record, event, now),
        (_, record) => transition::apply(record, event, now),
    }
}

/// Changes the record or the event so that the guard of the real function does not apply. Where
/// that is impossible, returns the outcome directly.
fn apply_without(
    guard: Guard,
    mut record: Record,
    mut event: Event,
    now: Timestamp,
) -> Transition<Answer> {
    match guard {
        Guard::Fence => {
            if let Some(fence) = holder_fence(&mut event) {
                fence.attempt = record.attempt;
            }
        }
        Guard::LateReleaseFence => {
            if let Event::Release(fence, _) | Event::Evict(fence, _) = &mut event
                && record.state.status() == Status::Unknown
            {
                fence.attempt = record.attempt;
            }
        }
        Guard::UnknownOnExpiry => {
            let over =
                matches!(&record.state, State::InProgress(lease) if lease.locked_until <= now);
            if over && is_same_request(&event, &record) {
                record.state = retryable_state(now);
            }
        }
        Guard::Fingerprint => ignore_fingerprint(&mut event, &record),
        Guard::FingerprintFirst => {
            if matches!(&record.state, State::InProgress(lease) if now < lease.locked_until) {
                ignore_fingerprint(&mut event, &record);
            }
        }
        Guard::Prune => {
            let unfinished = matches!(record.state.status(), Status::InProgress | Status::Unknown);
            let old = record.created_at.saturating_add(record.windows.replay) <= now;
            if event == Event::Expire && unfinished && old {
                return Transition {
                    record: None,
                    answer: Answer::Applied(true),
                };
            }
        }
        Guard::UnknownIsClosed => {
            let unknown = record.state.status() == Status::Unknown;
            if unknown && is_same_request(&event, &record) {
                record.state = retryable_state(now);
            }
        }
        Guard::VerdictFence => {
            if let Event::Resolve(resolve) = &mut event {
                resolve.fence = record.fence();
            }
        }
        Guard::Immutable => {
            let again = matches!(&event, Event::Complete(fence, _) if *fence == record.fence());
            if again && record.state.status() == Status::Completed {
                record.state = unknown_state(now);
            }
        }
        Guard::EvictFirstAttemptOnly => {
            let running = record.state.status() == Status::InProgress;
            if matches!(&event, Event::Evict(fence, _) if *fence == record.fence()) && running {
                return Transition {
                    record: None,
                    answer: Answer::Held(semel_core::Held::Applied),
                };
            }
        }
        Guard::ClaimIsAnAttempt | Guard::ClaimAfterTheLease | Guard::ClaimResumableOnly => {
            if matches!(event, Event::ClaimAbandoned(..)) {
                return claim_without(guard, record, event, now);
            }
        }
    }
    transition::apply(Some(record), event, now)
}

/// A claim as it would be without one of its guards.
fn claim_without(
    guard: Guard,
    mut record: Record,
    event: Event,
    now: Timestamp,
) -> Transition<Answer> {
    let attempt = record.attempt;
    if let State::InProgress(lease) = &mut record.state {
        if guard == Guard::ClaimAfterTheLease {
            lease.locked_until = lease.locked_until.min(now);
        }
        if guard == Guard::ClaimResumableOnly {
            lease.resume_within = Some(Duration::ZERO);
        }
    }
    let mut claimed = transition::apply(Some(record), event, now);
    if guard == Guard::ClaimIsAnAttempt
        && let Some(record) = &mut claimed.record
    {
        record.attempt = attempt;
    }
    claimed
}

/// The fence that a holder's write names.
fn holder_fence(event: &mut Event) -> Option<&mut Fence> {
    match event {
        Event::Complete(fence, _)
        | Event::Release(fence, _)
        | Event::Evict(fence, _)
        | Event::MarkUnknown(fence, ..)
        | Event::Heartbeat(fence, _)
        | Event::Advance(fence, _) => Some(fence),
        Event::Reserve(_)
        | Event::Sweep
        | Event::ClaimAbandoned(..)
        | Event::ClaimDue(_)
        | Event::Resolve(_)
        | Event::DeadLetter(..)
        | Event::Expire
        | Event::DropBody
        | Event::Purge
        | Event::Erase(_)
        | Event::Reveal(_) => None,
    }
}

fn is_same_request(event: &Event, record: &Record) -> bool {
    matches!(event, Event::Reserve(request) if request.fingerprints == record.fingerprint.into())
}

fn ignore_fingerprint(event: &mut Event, record: &Record) {
    if let Event::Reserve(Reserve { fingerprints, .. }) = event {
        *fingerprints = record.fingerprint.into();
    }
}

/// A state in which the next request executes.
fn retryable_state(now: Timestamp) -> State {
    State::FailedRetryable { expires_at: now }
}

/// A state in which the holder's completion is applied.
fn unknown_state(now: Timestamp) -> State {
    State::Unknown(Unresolved {
        reconcile_after: now,
        reconcile_attempts: 0,
        dead_lettered_at: None,
    })
}

/// The fence of the grant, if the decision is one.
pub(crate) fn granted_fence(decision: &Decision) -> Option<Fence> {
    match decision {
        Decision::Execute(grant) | Decision::Resume(grant) => Some(grant.fence),
        Decision::Replay(_)
        | Decision::InProgress(_)
        | Decision::Unknown(_)
        | Decision::KeyMisuse { .. }
        | Decision::OtherRules { .. }
        | Decision::Expired(_) => None,
    }
}
