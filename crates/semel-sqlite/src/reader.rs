//! The threads that read. They see what is committed, and do not wait for a commit.

use std::sync::Arc;

use rusqlite::Connection;
use semel_core::identity::IdentityHash;
use semel_core::store::Result;
use semel_core::transition::{self, Decision};
use semel_core::{Clock, Identity, OperationId, Record, Reserve, Status, Timestamp};
use tokio::sync::oneshot;

use crate::error::Failure;
use crate::queries::{Queries, Statements};
use crate::queue::Queue;
use crate::{reserve, row};

/// A read.
pub(crate) trait Lookup: Send + 'static {
    type Answer: Send + 'static;

    fn perform(self, sql: &mut Statements<'_>) -> std::result::Result<Self::Answer, Failure>;
}

/// A lookup in a queue, whose caller waits.
pub(crate) type QueuedLookup = Box<dyn FnOnce(&mut Statements<'_>) + Send>;

/// Packs a lookup for the readers' queue.
pub(crate) fn queued<L: Lookup>(lookup: L) -> (QueuedLookup, oneshot::Receiver<Result<L::Answer>>) {
    let (reply, answer) = oneshot::channel();
    let lookup: QueuedLookup = Box::new(move |sql| {
        // The caller may have been dropped.
        let _ = reply.send(lookup.perform(sql).map_err(Into::into));
    });
    (lookup, answer)
}

/// Answers lookups, one at a time, until the queue is closed and empty.
pub(crate) fn run(
    connection: &Connection,
    queries: &Queries,
    queue: &Queue<QueuedLookup>,
) -> rusqlite::Result<()> {
    let mut sql = Statements::prepare(connection, queries)?;
    let mut next = Vec::with_capacity(1);
    loop {
        queue.take(&mut next, 1);
        let Some(lookup) = next.pop() else {
            return Ok(());
        };
        lookup(&mut sql);
    }
}

/// Decides a reservation that needs no write, such as a replay. Never grants an attempt.
pub(crate) struct DecideWithoutWrite {
    pub(crate) hash: IdentityHash,
    pub(crate) request: Arc<Reserve>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Lookup for DecideWithoutWrite {
    type Answer = Option<Decision>;

    fn perform(self, sql: &mut Statements<'_>) -> std::result::Result<Option<Decision>, Failure> {
        let Self {
            hash,
            request,
            clock,
        } = self;
        let record = reserve::find(&mut sql.find_identity, hash, &request.identity)?;
        Ok(answer(record, &request, clock.now()))
    }
}

/// The decision, where it needs no write.
pub(crate) fn answer(
    record: Option<Record>,
    request: &Reserve,
    now: Timestamp,
) -> Option<Decision> {
    let record = record?;
    let before = record.state.status();
    let after = transition::reserve(Some(record), request.clone(), now);
    match after.answer {
        Decision::Execute(_) | Decision::Resume(_) => None,
        // The lease expired: the writer has to mark the record.
        Decision::Unknown(_) if before == Status::InProgress => None,
        answer @ (Decision::Replay(_)
        | Decision::InProgress(_)
        | Decision::Unknown(_)
        | Decision::KeyMisuse { .. }
        | Decision::OtherRules { .. }
        | Decision::Expired(_)) => Some(answer),
    }
}

/// The record with an id.
pub(crate) struct Find(pub(crate) OperationId);

impl Lookup for Find {
    type Answer = Option<Record>;

    fn perform(self, sql: &mut Statements<'_>) -> std::result::Result<Option<Record>, Failure> {
        row::find(&mut sql.find, &self.0.as_bytes())
    }
}

/// The record of an identity.
pub(crate) struct FindIdentity(pub(crate) IdentityHash, pub(crate) Identity);

impl Lookup for FindIdentity {
    type Answer = Option<Record>;

    fn perform(self, sql: &mut Statements<'_>) -> std::result::Result<Option<Record>, Failure> {
        reserve::find(&mut sql.find_identity, self.0, &self.1)
    }
}

/// The newest record that created, or may have created, a resource.
pub(crate) struct FindResource(pub(crate) Box<str>);

impl Lookup for FindResource {
    type Answer = Option<Record>;

    fn perform(self, sql: &mut Statements<'_>) -> std::result::Result<Option<Record>, Failure> {
        row::find(&mut sql.find_resource, &self.0)
    }
}
