//! A client asks to execute.

use std::time::Duration;

use super::holder::lose;
use super::{Decision, Expired, Grant, InProgress, Replay, Reserve, Transition, Unknown};
use crate::{Code, Completed, Lease, OnExpired, Owner, Record, State, Timestamp, Unresolved};

/// Decides what a client's request may do, in the order in which it must be checked: the
/// fingerprint before everything, or a misuser learns how far another request came. Only where the
/// policy lets a key start over after its window, it does so with any request.
pub fn reserve(record: Option<Record>, request: Reserve, now: Timestamp) -> Transition<Decision> {
    let Some(record) = record else {
        return begin(request, now);
    };
    if request.policy.on_expired == OnExpired::Execute && is_window_over(&record, now) {
        return begin(request, now);
    }
    if !request.fingerprints.matches(record.fingerprint) {
        let (id, rules) = (record.id, record.fingerprint.rules());
        let decision = if request.fingerprints.lacks_rules_of(record.fingerprint) {
            Decision::OtherRules { id, rules }
        } else {
            Decision::KeyMisuse { id }
        };
        return Transition::new(Some(record), decision);
    }
    match &record.state {
        State::Completed(completed) if now < completed.expires_at => {
            let replay = replay(&record, completed);
            Transition::new(Some(record), Decision::Replay(replay))
        }
        // The window is over now, whether or not the sweeper came by.
        State::Completed(_) | State::Expired { .. } => {
            let expired = Expired {
                id: record.id,
                resource: record.resource.clone(),
            };
            Transition::new(Some(record), Decision::Expired(expired))
        }
        State::InProgress(lease) if now < lease.locked_until => {
            let running = InProgress {
                fence: record.fence(),
                locked_until: lease.locked_until,
            };
            Transition::new(Some(record), Decision::InProgress(running))
        }
        State::InProgress(_) => lease_over(record, request, now),
        State::FailedRetryable { .. } => grant_again(record, request, now).map(Decision::Execute),
        State::Unknown(unresolved) => {
            let unknown = unknown(&record, *unresolved);
            Transition::new(Some(record), Decision::Unknown(unknown))
        }
    }
}

/// Nothing is remembered: the first attempt.
fn begin(request: Reserve, now: Timestamp) -> Transition<Decision> {
    let locked_until = now.saturating_add(request.policy.lease);
    let record = Record {
        id: request.id,
        identity: request.identity,
        fingerprint: request.fingerprints.newest(),
        attempt: 1,
        owner: request.owner,
        state: State::InProgress(Lease {
            locked_until,
            resume_within: request.policy.resumes_within(),
        }),
        recovery: None,
        resource: None,
        windows: request.policy.windows,
        last_error: None,
        resolved_by: None,
        created_at: now,
        updated_at: now,
    };
    let grant = Grant {
        fence: record.fence(),
        locked_until,
        recovery: None,
    };
    Transition::new(Some(record), Decision::Execute(grant))
}

/// The attempt before is proven not to have executed, or left a point to go on from.
fn grant_again(record: Record, request: Reserve, now: Timestamp) -> Transition<Grant> {
    let Reserve { owner, policy, .. } = request;
    let resume_within = policy.resumes_within();
    let record = Record {
        windows: policy.windows,
        ..next_attempt(record, owner, policy.lease, resume_within, now)
    };
    let grant = Grant {
        fence: record.fence(),
        locked_until: now.saturating_add(policy.lease),
        recovery: record.recovery.clone(),
    };
    Transition::new(Some(record), grant)
}

/// The record in the hands of its next attempt.
pub(super) fn next_attempt(
    record: Record,
    owner: Owner,
    lease: Duration,
    resume_within: Option<Duration>,
    now: Timestamp,
) -> Record {
    Record {
        attempt: record.attempt.saturating_add(1),
        owner,
        state: State::InProgress(Lease {
            locked_until: now.saturating_add(lease),
            resume_within,
        }),
        last_error: None,
        updated_at: now,
        ..record
    }
}

/// The lease has expired. The owner may have executed, so no other attempt does, unless the operation is
/// made to be resumed.
fn lease_over(record: Record, request: Reserve, now: Timestamp) -> Transition<Decision> {
    if request.policy.resumes_within().is_some() {
        return grant_again(record, request, now).map(Decision::Resume);
    }
    let (record, unresolved) = lose(record, Code::LEASE_EXPIRED, now);
    let unknown = Unknown {
        lease_expired: true,
        ..unknown(&record, unresolved)
    };
    Transition::new(Some(record), Decision::Unknown(unknown))
}

/// Whether the replay window has ended, whether or not the sweeper came by.
fn is_window_over(record: &Record, now: Timestamp) -> bool {
    match &record.state {
        State::Completed(completed) => completed.expires_at <= now,
        State::Expired { .. } => true,
        State::InProgress(_) | State::FailedRetryable { .. } | State::Unknown(_) => false,
    }
}

fn replay(record: &Record, completed: &Completed) -> Replay {
    Replay {
        id: record.id,
        response: completed.response.clone(),
        resource: record.resource.clone(),
        expires_at: completed.expires_at,
        body_expires_at: completed.body_expires_at,
    }
}

fn unknown(record: &Record, unresolved: Unresolved) -> Unknown {
    Unknown {
        id: record.id,
        reconcile_after: unresolved.reconcile_after,
        dead_lettered: unresolved.dead_lettered_at.is_some(),
        lease_expired: false,
    }
}
