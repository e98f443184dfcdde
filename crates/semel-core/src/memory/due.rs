//! When each background job is due for a record, by the states that it applies to.

use crate::{Record, State, Timestamp};

pub(super) fn sweep_at(record: &Record) -> Option<Timestamp> {
    match &record.state {
        State::InProgress(lease) => Some(lease.sweep_at()),
        State::Completed(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_)
        | State::Expired { .. } => None,
    }
}

pub(super) fn resume_at(record: &Record, operation: &str) -> Option<Timestamp> {
    match &record.state {
        State::InProgress(lease) if *operation == *record.identity.operation() => lease.resume_at(),
        State::InProgress(_)
        | State::Completed(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_)
        | State::Expired { .. } => None,
    }
}

pub(super) fn reconcile_at(record: &Record) -> Option<Timestamp> {
    match &record.state {
        State::Unknown(unresolved) => Some(unresolved.reconcile_after),
        State::InProgress(_)
        | State::Completed(_)
        | State::FailedRetryable { .. }
        | State::Expired { .. } => None,
    }
}

pub(super) fn expires_at(record: &Record) -> Option<Timestamp> {
    match &record.state {
        State::Completed(completed) => Some(completed.expires_at),
        State::FailedRetryable { expires_at } => Some(*expires_at),
        State::InProgress(_) | State::Unknown(_) | State::Expired { .. } => None,
    }
}

pub(super) fn body_expires_at(record: &Record) -> Option<Timestamp> {
    match &record.state {
        State::Completed(completed) => completed.body_expires_at,
        State::InProgress(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_)
        | State::Expired { .. } => None,
    }
}

pub(super) fn purge_at(record: &Record) -> Option<Timestamp> {
    match &record.state {
        State::Expired { purge_at } => Some(*purge_at),
        State::InProgress(_)
        | State::Completed(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_) => None,
    }
}
