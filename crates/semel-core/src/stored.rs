//! A record as a table keeps it.
//!
//! A table has a column for everything that any state has, and columns keep what they last held.
//! Which of them count is for the status to say, and that is said once, here.

use crate::{
    Code, Completed, Fingerprint, Identity, Lease, OperationId, Owner, Record, RecoveryPoint,
    Resource, Response, State, Status, Timestamp, Unresolved, Windows,
};

/// Every column of a row. See [`Record`] for what each means.
#[allow(missing_docs, reason = "each is what the record calls by that name")]
#[derive(Clone, Debug)]
pub struct Stored {
    pub id: OperationId,
    pub identity: Identity,
    pub fingerprint: Fingerprint,
    pub status: Status,
    pub attempt: u32,
    pub owner: Owner,
    pub lease: Lease,
    pub recovery: Option<RecoveryPoint>,
    pub response: Option<Response>,
    pub resource: Option<Resource>,
    pub last_error: Option<Code>,
    pub reconcile_after: Option<Timestamp>,
    pub reconcile_attempts: Option<u32>,
    pub dead_lettered_at: Option<Timestamp>,
    pub resolved_by: Option<Box<str>>,
    pub windows: Windows,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub completed_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub body_expires_at: Option<Timestamp>,
    pub purge_at: Option<Timestamp>,
}

impl Stored {
    /// The record; nothing where a column is empty that its status needs.
    pub fn into_record(self) -> Option<Record> {
        let state = match self.status {
            Status::InProgress => State::InProgress(self.lease),
            Status::Completed => State::Completed(Completed {
                response: self.response?,
                completed_at: self.completed_at?,
                expires_at: self.expires_at?,
                body_expires_at: self.body_expires_at,
            }),
            Status::FailedRetryable => State::FailedRetryable {
                expires_at: self.expires_at?,
            },
            Status::Unknown => State::Unknown(Unresolved {
                reconcile_after: self.reconcile_after?,
                reconcile_attempts: self.reconcile_attempts?,
                dead_lettered_at: self.dead_lettered_at,
            }),
            Status::Expired => State::Expired {
                purge_at: self.purge_at?,
            },
        };
        Some(Record {
            id: self.id,
            identity: self.identity,
            fingerprint: self.fingerprint,
            attempt: self.attempt,
            owner: self.owner,
            state,
            recovery: self.recovery,
            resource: self.resource,
            windows: self.windows,
            last_error: self.last_error,
            resolved_by: self.resolved_by,
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}
