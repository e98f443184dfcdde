//! What happens out of band: sweeping, reconciling, and the end of what is remembered.
//!
//! `in_progress` and `unknown` records are never expired, purged or overwritten, however
//! old they are: each may be the only memory of a charge.

use std::time::Duration;

use super::holder::{finish, hand_back, lose};
use super::reserve::next_attempt;
use super::{Completion, Fenced, Resolution, Resolve, Transition, Verdict};
use crate::{
    Backoff, Code, Completed, Fence, Lease, Owner, Record, Response, State, Timestamp, Unresolved,
};

/// `in_progress`, lease over → `unknown`. A resumable attempt is left to be resumed for
/// as long as it says.
pub fn sweep(record: Option<Record>, now: Timestamp) -> Transition<bool> {
    when(
        record,
        |record| match &record.state {
            State::InProgress(lease) => lease.sweep_at() <= now,
            State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => false,
        },
        |record| Some(lose(record, Code::LEASE_EXPIRED, now).0),
    )
}

/// `in_progress`, lease over, made to be resumed → the next attempt of a completer: the client may
/// never come back.
pub fn claim_abandoned(
    record: Option<Record>,
    owner: Owner,
    lease: Duration,
    now: Timestamp,
) -> Transition<bool> {
    let resume_at = |record: &Record| match &record.state {
        State::InProgress(lease) => lease.resume_at(),
        State::Completed(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_)
        | State::Expired { .. } => None,
    };
    when(
        record,
        |record| resume_at(record).is_some_and(|resume_at| resume_at <= now),
        |record| {
            let State::InProgress(Lease { resume_within, .. }) = record.state else {
                return Some(record);
            };
            Some(next_attempt(record, owner, lease, resume_within, now))
        },
    )
}

/// `unknown`, due, not dead-lettered → the same with the next look scheduled.
pub fn claim_due(record: Option<Record>, backoff: Backoff, now: Timestamp) -> Transition<bool> {
    when(
        record,
        |record| {
            unresolved(record).is_some_and(|unresolved| {
                unresolved.reconcile_after <= now && unresolved.dead_lettered_at.is_none()
            })
        },
        |record| {
            let tries = unresolved(&record)?.reconcile_attempts.saturating_add(1);
            let next = Unresolved {
                reconcile_after: now.saturating_add(backoff.delay(record.id, tries)),
                reconcile_attempts: tries,
                dead_lettered_at: None,
            };
            Some(Record {
                state: State::Unknown(next),
                updated_at: now,
                ..record
            })
        },
    )
}

/// `unknown`, dead-lettered or not → `completed`, `failed_retryable`, or still `unknown`.
pub fn resolve(record: Option<Record>, verdict: Resolve, now: Timestamp) -> Transition<Resolution> {
    let Resolve {
        fence,
        verdict,
        by,
        evidence: _,
    } = verdict;
    decide(record, fence, |record, unresolved| match verdict {
        Verdict::Completed(completion) => {
            // A reconciler often does not know the resource that the executor had named.
            let resource = completion.resource.or_else(|| record.resource.clone());
            let completion = Completion {
                resource,
                ..completion
            };
            Record {
                resolved_by: Some(by.who),
                ..finish(record, completion, now)
            }
        }
        Verdict::NotExecuted(code) => Record {
            resolved_by: Some(by.who),
            ..hand_back(record, code, now)
        },
        Verdict::StillUnknown(code, reconcile_after) => Record {
            state: State::Unknown(Unresolved {
                reconcile_after,
                ..unresolved
            }),
            last_error: Some(code),
            updated_at: now,
            ..record
        },
    })
}

/// `unknown` → the same, waiting for a person. One that waits already stays as it is.
pub fn dead_letter(
    record: Option<Record>,
    fence: Fence,
    code: Code,
    now: Timestamp,
) -> Transition<Resolution> {
    decide(record, fence, |record, unresolved| {
        if unresolved.dead_lettered_at.is_some() {
            return record;
        }
        let waiting = Unresolved {
            dead_lettered_at: Some(now),
            ..unresolved
        };
        Record {
            state: State::Unknown(waiting),
            last_error: Some(code),
            updated_at: now,
            ..record
        }
    })
}

/// `completed` or `failed_retryable`, window over → a tombstone, or nothing where the
/// windows keep none.
pub fn expire(record: Option<Record>, now: Timestamp) -> Transition<bool> {
    when(
        record,
        |record| match &record.state {
            State::Completed(Completed { expires_at, .. })
            | State::FailedRetryable { expires_at } => *expires_at <= now,
            State::InProgress(_) | State::Unknown(_) | State::Expired { .. } => false,
        },
        |record| {
            let purge_at = now.saturating_add(record.windows.tombstone?);
            Some(Record {
                state: State::Expired { purge_at },
                recovery: None,
                updated_at: now,
                ..record
            })
        },
    )
}

/// `completed`, body's time over → the same without the body.
pub fn drop_body(record: Option<Record>, now: Timestamp) -> Transition<bool> {
    when(
        record,
        |record| match &record.state {
            State::Completed(completed) => completed
                .body_expires_at
                .is_some_and(|expires_at| expires_at <= now),
            State::InProgress(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => false,
        },
        |record| Some(without(record, now, |response| response.body = None)),
    )
}

/// A tombstone past its own time → gone.
pub fn purge(record: Option<Record>, now: Timestamp) -> Transition<bool> {
    when(
        record,
        |record| match &record.state {
            State::Expired { purge_at } => *purge_at <= now,
            State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_) => false,
        },
        |_| None,
    )
}

/// `completed` → the same without body, headers and phase data: what could name a person.
pub fn erase(record: Option<Record>, now: Timestamp) -> Transition<bool> {
    when(
        record,
        |record| match &record.state {
            State::Completed(_) => true,
            State::InProgress(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => false,
        },
        |record| {
            let record = without(record, now, |response| {
                response.body = None;
                response.headers.clear();
            });
            Some(Record {
                recovery: None,
                ..record
            })
        },
    )
}

/// `completed` → the same: the history records who sees the response.
pub fn reveal(record: Option<Record>) -> Transition<bool> {
    when(
        record,
        |record| match &record.state {
            State::Completed(_) => true,
            State::InProgress(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => false,
        },
        Some,
    )
}

/// Applies `change` to a record that is `due`; any other stays as it is.
fn when(
    record: Option<Record>,
    due: impl FnOnce(&Record) -> bool,
    change: impl FnOnce(Record) -> Option<Record>,
) -> Transition<bool> {
    match record {
        Some(record) if due(&record) => Transition::new(change(record), true),
        Some(_) | None => Transition::new(record, false),
    }
}

/// Applies `change` to a record that is unknown at `fence`; any other stays as it is.
fn decide(
    record: Option<Record>,
    fence: Fence,
    change: impl FnOnce(Record, Unresolved) -> Record,
) -> Transition<Resolution> {
    match record {
        Some(record) if record.fence() == fence => match unresolved(&record) {
            Some(unresolved) => {
                Transition::new(Some(change(record, unresolved)), Resolution::Applied)
            }
            None => refused(Some(record)),
        },
        Some(_) | None => refused(record),
    }
}

fn refused(record: Option<Record>) -> Transition<Resolution> {
    let answer = Resolution::Fenced(Fenced::by(record.as_ref()));
    Transition::new(record, answer)
}

fn unresolved(record: &Record) -> Option<Unresolved> {
    match &record.state {
        State::Unknown(unresolved) => Some(*unresolved),
        State::InProgress(_)
        | State::Completed(_)
        | State::FailedRetryable { .. }
        | State::Expired { .. } => None,
    }
}

/// A completed record with less of its response.
fn without(record: Record, now: Timestamp, strip: impl FnOnce(&mut Response)) -> Record {
    let state = match record.state {
        State::Completed(mut completed) => {
            strip(&mut completed.response);
            completed.body_expires_at = None;
            State::Completed(completed)
        }
        state @ (State::InProgress(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_)
        | State::Expired { .. }) => state,
    };
    Record {
        state,
        updated_at: now,
        ..record
    }
}
