//! The threads that read. They see what is committed, and wait for no commit.

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

/// Something to be looked up.
pub(crate) trait Lookup: Send + 'static {
    type Answer: Send + 'static;

    fn perform(self, sql: &mut Statements<'_>) -> std::result::Result<Self::Answer, Failure>;
}

/// A lookup whose caller waits.
pub(crate) type Look = Box<dyn FnOnce(&mut Statements<'_>) + Send>;

/// Packs a lookup for the readers' queue.
pub(crate) fn look<L: Lookup>(lookup: L) -> (Look, oneshot::Receiver<Result<L::Answer>>) {
    let (reply, answer) = oneshot::channel();
    let look: Look = Box::new(move |sql| {
        // A caller that went away does not need the answer.
        let _ = reply.send(lookup.perform(sql).map_err(Into::into));
    });
    (look, answer)
}

/// Answers lookups, one at a time, until the queue is closed and empty.
pub(crate) fn run(
    connection: &Connection,
    queries: &Queries,
    queue: &Queue<Look>,
) -> rusqlite::Result<()> {
    let mut sql = Statements::prepare(connection, queries)?;
    let mut next = Vec::with_capacity(1);
    loop {
        queue.take(&mut next, 1);
        let Some(look) = next.pop() else {
            return Ok(());
        };
        look(&mut sql);
    }
}

/// Whether a request can be answered without writing: a replay, a refusal. Nothing is ever
/// granted here.
pub(crate) struct Peek {
    pub(crate) hash: IdentityHash,
    pub(crate) request: Arc<Reserve>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Lookup for Peek {
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

/// What a request is answered with as long as nothing needs to be written.
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
        // A lease that was over: it is the writer who says so.
        Decision::Unknown(_) if before == Status::InProgress => None,
        answer @ (Decision::Replay(_)
        | Decision::InProgress(_)
        | Decision::Unknown(_)
        | Decision::KeyMisuse { .. }
        | Decision::Expired(_)) => Some(answer),
    }
}

/// The record of a name.
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

/// The newest record of an operation that created a resource, or was about to.
pub(crate) struct FindResource(pub(crate) Box<str>);

impl Lookup for FindResource {
    type Answer = Option<Record>;

    fn perform(self, sql: &mut Statements<'_>) -> std::result::Result<Option<Record>, Failure> {
        row::find(&mut sql.find_resource, &self.0)
    }
}
