//! The store of the model: the product's own function, and that function with one guard
//! taken out.

use std::time::Duration;

use semel_core::transition::{self, Answer, Transition};
use semel_core::{Decision, Event, Fence, Record, Reserve, State, Status, Timestamp, Unresolved};

/// A rule that can be taken out, to see that the checker misses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// A holder's write must name the current attempt.
    Fence,
    /// A lease that ran out makes the record unknown.
    UnknownOnExpiry,
    /// A request must have the record's fingerprint.
    Fingerprint,
    /// The fingerprint is compared before anything else is looked at.
    FingerprintFirst,
    /// Records that are in progress or unknown are not removed by age.
    Prune,
    /// A request does not lead out of unknown.
    UnknownIsClosed,
    /// A verdict must be about the current attempt.
    VerdictFence,
    /// A completed record is not completed again with something else.
    Immutable,
    /// Only the first attempt may make a record go away.
    EvictFirstAttemptOnly,
    /// What a completer claims is a new attempt.
    ClaimIsAnAttempt,
    /// A completer claims only where the lease is over.
    ClaimAfterTheLease,
    /// A completer claims only what is made to be resumed.
    ClaimResumableOnly,
}

/// Applies one event, as the product does, or as it would without one guard.
pub(crate) fn apply(
    without: Option<Guard>,
    record: Option<Record>,
    event: Event,
    now: Timestamp,
) -> Transition<Answer> {
    match (without, record) {
        (Some(guard), Some(record)) => weakened(guard, record, event, now),
        (_, record) => transition::apply(record, event, now),
    }
}

/// Shows the real function a record or an event on which the guard does not fire. Only
/// where it has no such argument is the outcome written out here.
fn weakened(
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
        Guard::UnknownOnExpiry => {
            let over =
                matches!(&record.state, State::InProgress(lease) if lease.locked_until <= now);
            if over && asks_for_the_same(&event, &record) {
                record.state = free(now);
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
            if unknown && asks_for_the_same(&event, &record) {
                record.state = free(now);
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
                record.state = open(now);
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
                return weakened_claim(guard, record, event, now);
            }
        }
    }
    transition::apply(Some(record), event, now)
}

/// A claim as it would be without one of its guards.
fn weakened_claim(
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
    let mut told = transition::apply(Some(record), event, now);
    if guard == Guard::ClaimIsAnAttempt
        && let Some(record) = &mut told.record
    {
        record.attempt = attempt;
    }
    told
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

fn asks_for_the_same(event: &Event, record: &Record) -> bool {
    matches!(event, Event::Reserve(request) if request.fingerprints == record.fingerprint.into())
}

fn ignore_fingerprint(event: &mut Event, record: &Record) {
    if let Event::Reserve(Reserve { fingerprints, .. }) = event {
        *fingerprints = record.fingerprint.into();
    }
}

/// A state in which the next request is let in.
fn free(now: Timestamp) -> State {
    State::FailedRetryable { expires_at: now }
}

/// A state in which the holder's completion is taken.
fn open(now: Timestamp) -> State {
    State::Unknown(Unresolved {
        reconcile_after: now,
        reconcile_attempts: 0,
        dead_lettered_at: None,
    })
}

/// The fence that a request was granted, if it was.
pub(crate) fn granted(decision: &Decision) -> Option<Fence> {
    match decision {
        Decision::Execute(grant) | Decision::Resume(grant) => Some(grant.fence),
        Decision::Replay(_)
        | Decision::InProgress(_)
        | Decision::Unknown(_)
        | Decision::KeyMisuse { .. }
        | Decision::Expired(_) => None,
    }
}
