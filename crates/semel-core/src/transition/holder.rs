//! What the holder of an attempt may say.
//!
//! Each of these names its fence. A fence that is not the record's current one changes
//! nothing: its holder was paused, and another attempt may be running.

use std::time::Duration;

use super::{Completion, Fenced, Held, Transition};
use crate::{
    Code, Completed, Fence, Lease, Record, RecoveryPoint, Resource, State, Status, Timestamp,
    Unresolved, Windows,
};

/// `in_progress` → `completed`: the normal end.
///
/// `unknown` → `completed`: a late owner knows the outcome, and no other attempt was granted.
///
/// `completed` → the same, where the response is the same: a commit whose answer was lost
/// is written again.
pub fn complete(
    record: Option<Record>,
    fence: Fence,
    completion: Completion,
    now: Timestamp,
) -> Transition<Held> {
    let record = match record {
        Some(record) if record.fence() == fence => record,
        Some(_) | None => return fenced(record),
    };
    match &record.state {
        State::InProgress(_) | State::Unknown(_) => {
            Transition::new(Some(finish(record, completion, now)), Held::Applied)
        }
        State::Completed(completed)
            if completed.response == completion.response
                && record.resource == completion.resource =>
        {
            Transition::new(Some(record), Held::Repeated)
        }
        State::Completed(_) | State::FailedRetryable { .. } | State::Expired { .. } => {
            fenced(Some(record))
        }
    }
}

/// `in_progress` → `failed_retryable`: it is proven that nothing happened.
///
/// `unknown` → `failed_retryable`: a late owner knows the outcome, as with [`complete`]. No other
/// attempt was granted, so only its own could have executed, and it did not.
pub fn release(
    record: Option<Record>,
    fence: Fence,
    code: Code,
    now: Timestamp,
) -> Transition<Held> {
    match record {
        Some(record) if is_open(&record, fence) => {
            Transition::new(Some(hand_back(record, code, now)), Held::Applied)
        }
        Some(_) | None => fenced(record),
    }
}

/// `in_progress` → no record: it is proven that nothing happened, and nothing is to be
/// remembered, not even the fingerprint.
///
/// Only a first attempt that committed no phase can prove that much. A later one can speak
/// for itself alone: where an earlier one was freed because the downstream did not know it
/// yet, or left a phase behind, its effect may still land, and a key without a record would
/// then be a second operation. So a later attempt hands back instead, as [`release`] does; and so
/// does a late owner, whose record others may have looked at since.
pub fn evict(record: Option<Record>, fence: Fence, code: Code, now: Timestamp) -> Transition<Held> {
    match &record {
        Some(held) if held.fence() == fence && is_forgettable(held) => {
            Transition::new(None, Held::Applied)
        }
        Some(_) | None => release(record, fence, code, now),
    }
}

/// `in_progress` → `unknown`: it may have happened. Where the holder can name what it may have
/// created, the truth can be found by that name.
pub fn mark_unknown(
    record: Option<Record>,
    fence: Fence,
    code: Code,
    resource: Option<Resource>,
    now: Timestamp,
) -> Transition<Held> {
    held(record, fence, |record, _| {
        let resource = resource.or_else(|| record.resource.clone());
        let record = Record { resource, ..record };
        Some(lose(record, code, now).0)
    })
}

/// `in_progress` → the same with a later end: the owner is alive.
///
/// An expired lease is renewed too, since no other attempt was granted.
pub fn heartbeat(
    record: Option<Record>,
    fence: Fence,
    lease: Duration,
    now: Timestamp,
) -> Transition<Held> {
    held(record, fence, |record, lease_before| {
        // Never earlier: a beat that was delayed must not shorten what a later one gave.
        let locked_until = lease_before.locked_until.max(now.saturating_add(lease));
        let state = State::InProgress(Lease {
            locked_until,
            ..lease_before
        });
        Some(Record {
            state,
            updated_at: now,
            ..record
        })
    })
}

/// `in_progress` → the same with a recovery point: a phase committed.
pub fn advance(
    record: Option<Record>,
    fence: Fence,
    point: RecoveryPoint,
    now: Timestamp,
) -> Transition<Held> {
    held(record, fence, |record, _| {
        Some(Record {
            recovery: Some(point),
            updated_at: now,
            ..record
        })
    })
}

/// The record in its final state.
pub(super) fn finish(record: Record, completion: Completion, now: Timestamp) -> Record {
    let Completion { response, resource } = completion;
    let Windows {
        replay,
        body,
        tombstone: _,
    } = record.windows;
    let completed = Completed {
        completed_at: now,
        expires_at: now.saturating_add(replay),
        body_expires_at: (response.body.is_some() && body < replay)
            .then(|| now.saturating_add(body)),
        response,
    };
    Record {
        state: State::Completed(completed),
        resource,
        last_error: None,
        updated_at: now,
        ..record
    }
}

/// The record free for another attempt.
pub(super) fn hand_back(record: Record, code: Code, now: Timestamp) -> Record {
    let expires_at = now.saturating_add(record.windows.replay);
    Record {
        state: State::FailedRetryable { expires_at },
        last_error: Some(code),
        updated_at: now,
        ..record
    }
}

/// The record without an owner who could say how it ended: due for reconciliation at once.
pub(super) fn lose(record: Record, code: Code, now: Timestamp) -> (Record, Unresolved) {
    let unresolved = Unresolved {
        reconcile_after: now,
        reconcile_attempts: 0,
        dead_lettered_at: None,
    };
    let record = Record {
        state: State::Unknown(unresolved),
        last_error: Some(code),
        updated_at: now,
        ..record
    };
    (record, unresolved)
}

/// Applies `change` to a record that is in progress at `fence`; any other stays as it is.
fn held(
    record: Option<Record>,
    fence: Fence,
    change: impl FnOnce(Record, Lease) -> Option<Record>,
) -> Transition<Held> {
    match record {
        Some(record) if record.fence() == fence => match &record.state {
            State::InProgress(lease) => {
                let lease = *lease;
                Transition::new(change(record, lease), Held::Applied)
            }
            State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => fenced(Some(record)),
        },
        Some(_) | None => fenced(record),
    }
}

/// Whether the attempt that runs proves that nothing ever happened under the key.
fn is_forgettable(record: &Record) -> bool {
    let is_running = record.state.status() == Status::InProgress;
    is_running && record.attempt == 1 && record.recovery.is_none()
}

/// Whether the outcome of the attempt at `fence` is still to be written.
fn is_open(record: &Record, fence: Fence) -> bool {
    let open = match &record.state {
        State::InProgress(_) | State::Unknown(_) => true,
        State::Completed(_) | State::FailedRetryable { .. } | State::Expired { .. } => false,
    };
    open && record.fence() == fence
}

fn fenced(record: Option<Record>) -> Transition<Held> {
    let answer = Held::Fenced(Fenced::by(record.as_ref()));
    Transition::new(record, answer)
}
