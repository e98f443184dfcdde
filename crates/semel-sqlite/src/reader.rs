//! The threads that read. They see what is committed, and wait for no commit.

use std::sync::Arc;

use rusqlite::Connection;
use semel_core::identity::IdentityHash;
use semel_core::store::{Page, Query, Result};
use semel_core::transition::{self, Decision};
use semel_core::{Clock, Identity, OperationId, Record, Reserve, Status};
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

/// Whether a request can be answered without writing: a replay, a refusal. Gives the
/// request back where it cannot.
pub(crate) struct Peek {
    pub(crate) hash: IdentityHash,
    pub(crate) request: Reserve,
    pub(crate) clock: Arc<dyn Clock>,
}

/// What a [`Peek`] found.
pub(crate) enum Peeked {
    Answer(Decision),
    Write(Reserve),
}

impl Lookup for Peek {
    type Answer = Peeked;

    fn perform(self, sql: &mut Statements<'_>) -> std::result::Result<Peeked, Failure> {
        let Some(record) = reserve::find(sql, self.hash, &self.request.identity)? else {
            return Ok(Peeked::Write(self.request));
        };
        let before = record.state.status();
        let after = transition::reserve(Some(record), self.request.clone(), self.clock.now());
        Ok(match after.answer {
            Decision::Execute(_) | Decision::Resume(_) => Peeked::Write(self.request),
            // A lease that was over: it is the writer who says so.
            Decision::Unknown(_) if before == Status::InProgress => Peeked::Write(self.request),
            answer @ (Decision::Replay(_)
            | Decision::InProgress(_)
            | Decision::Unknown(_)
            | Decision::KeyMisuse { .. }
            | Decision::Expired(_)) => Peeked::Answer(answer),
        })
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
        reserve::find(sql, self.0, &self.1)
    }
}

/// A page of operations.
pub(crate) struct List(pub(crate) Query);

impl Lookup for List {
    type Answer = Page;

    fn perform(self, sql: &mut Statements<'_>) -> std::result::Result<Page, Failure> {
        let Self(query) = self;
        let size = query.page_size();
        let mut rows = sql.list.query(rusqlite::params![
            query.before.as_ref().map(OperationId::as_bytes),
            query.status.map(Status::as_str),
            query.tenant,
            query.operation,
            query.key,
            query.dead_lettered,
            // One more than fits tells whether there is a next page.
            i64::try_from(size).unwrap_or(i64::MAX).saturating_add(1),
        ])?;
        let mut operations = Vec::new();
        while let Some(row) = rows.next()? {
            operations.push(row::summary(row)?);
        }
        Ok(Page::of(operations, size))
    }
}
