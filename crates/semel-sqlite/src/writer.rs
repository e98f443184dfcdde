//! The one thread that writes, a group at a time.

use std::cell::Cell;
use std::sync::Arc;

use rusqlite::{Connection, ErrorCode};
use semel_core::store::Result;
use semel_core::{Clock, Error, Timestamp};
use tokio::sync::oneshot;

use crate::checkpoint::Checkpoints;
use crate::error::Failure;
use crate::gather::Gathering;
use crate::inside;
use crate::queries::{Queries, Statements};
use crate::queue::{MAX_GROUP, Queue};

/// Something to be done inside a transaction. It may be done twice: a group that fails is
/// rolled back, and each of its commands is tried alone.
pub(crate) trait Command: Send + 'static {
    type Answer: Send + 'static;

    fn perform(
        &self,
        sql: &mut Statements<'_>,
        now: Timestamp,
    ) -> std::result::Result<Self::Answer, Failure>;
}

/// A command whose caller waits.
pub(crate) trait Call: Send {
    /// Does it, and keeps the answer until it is committed.
    fn perform(
        &mut self,
        connection: &Connection,
        sql: &mut Statements<'_>,
        now: Timestamp,
    ) -> std::result::Result<(), Failure>;

    /// Tells the caller: the answer, or why there is none.
    fn settle(self: Box<Self>, committed: Result<()>);

    /// Whether it can be done only once, and so comes after all that may have to be done again.
    fn comes_last(&self) -> bool {
        false
    }
}

/// Packs a command for the writer's queue.
pub(crate) fn call<C: Command>(
    command: C,
) -> (Box<dyn Call>, oneshot::Receiver<Result<C::Answer>>) {
    let (reply, answer) = oneshot::channel();
    (
        Box::new(Pending {
            command,
            answer: None,
            reply,
        }),
        answer,
    )
}

struct Pending<C: Command> {
    command: C,
    answer: Option<C::Answer>,
    reply: oneshot::Sender<Result<C::Answer>>,
}

impl<C: Command> Call for Pending<C> {
    fn perform(
        &mut self,
        _: &Connection,
        sql: &mut Statements<'_>,
        now: Timestamp,
    ) -> std::result::Result<(), Failure> {
        self.answer = Some(self.command.perform(sql, now)?);
        Ok(())
    }

    fn settle(self: Box<Self>, committed: Result<()>) {
        let Self { answer, reply, .. } = *self;
        // A caller that went away is no reason to undo what is committed.
        let _ = reply.send(committed.and_then(|()| answer.ok_or_else(unsettled)));
    }
}

/// Whether a caller was ever told is not known: the thread ended first.
pub(crate) fn unsettled() -> Error {
    Error::Ambiguous {
        reason: "the writer ended before it answered".into(),
        source: None,
    }
}

thread_local! {
    /// How many pages the log holds, as SQLite tells the writer after each commit.
    static LOG_PAGES: Cell<u32> = const { Cell::new(0) };
}

/// Commits groups until the queue is closed and empty.
pub(crate) fn run(
    connection: &Connection,
    queries: &Queries,
    clock: &Arc<dyn Clock>,
    queue: &Queue<Box<dyn Call>>,
    checkpoints: &Checkpoints,
) -> rusqlite::Result<()> {
    connection.wal_hook(Some(|_, pages| {
        LOG_PAGES.set(u32::try_from(pages).unwrap_or_default());
        Ok(())
    }));
    inside::guard(connection)?;
    let mut sql = Statements::prepare(connection, queries)?;
    let mut group = Vec::with_capacity(MAX_GROUP);
    let mut gathering = Gathering::new();
    loop {
        gathering.take(queue, &mut group);
        if group.is_empty() {
            return Ok(());
        }
        // Without an order of their own: none of them has been answered yet.
        if group.iter().any(|call| call.comes_last()) {
            group.sort_by_key(|call| call.comes_last());
        }
        let answered = group.len();
        commit_group(connection, &mut sql, clock, &mut group);
        gathering.settled(queue, answered);
        checkpoints.after_commit(connection, LOG_PAGES.get());
    }
}

/// Commits a group, or each of its calls alone where one of them spoils it for all.
fn commit_group(
    connection: &Connection,
    sql: &mut Statements<'_>,
    clock: &Arc<dyn Clock>,
    group: &mut Vec<Box<dyn Call>>,
) {
    match commit(connection, sql, clock, group) {
        Ok(()) => settle_all(group, || Ok(())),
        Err(Unwritten::Spoiled(_)) if group.len() > 1 => {
            for call in group.drain(..) {
                commit_group(connection, sql, clock, &mut vec![call]);
            }
        }
        Err(Unwritten::Spoiled(failure) | Unwritten::NotBegun(failure)) => {
            settle_all(group, || Err(failure.clone().into()));
        }
        Err(Unwritten::Unsure(error)) => settle_all(group, || {
            let reason = "the commit failed".into();
            Err(Error::Ambiguous {
                reason,
                source: Some(Arc::clone(&error).into()),
            })
        }),
    }
}

fn settle_all(group: &mut Vec<Box<dyn Call>>, committed: impl Fn() -> Result<()>) {
    group.drain(..).for_each(|call| call.settle(committed()));
}

/// Why a group is not known to be on the disk.
enum Unwritten {
    /// No transaction could be begun, so nothing of it is written.
    NotBegun(Failure),
    /// One of the calls failed, and all were rolled back.
    Spoiled(Failure),
    /// The commit itself failed: after a crash it may turn out to have happened.
    Unsure(Arc<rusqlite::Error>),
}

/// Performs all calls in one transaction.
fn commit(
    connection: &Connection,
    sql: &mut Statements<'_>,
    clock: &Arc<dyn Clock>,
    group: &mut [Box<dyn Call>],
) -> std::result::Result<(), Unwritten> {
    sql.begin
        .execute([])
        .map_err(|error| Unwritten::NotBegun(error.into()))?;
    // Read under the lock: another process may have held it for seconds.
    let now = clock.now();
    let performed = group
        .iter_mut()
        .try_for_each(|call| call.perform(connection, sql, now));
    let result = match performed {
        Ok(()) => sql.commit.execute([]).map(|_| ()).map_err(|error| {
            match error.sqlite_error_code() {
                // The application's rows break a constraint that is checked last.
                Some(ErrorCode::ConstraintViolation) if !connection.is_autocommit() => {
                    Unwritten::Spoiled(error.into())
                }
                Some(_) | None => Unwritten::Unsure(Arc::new(error)),
            }
        }),
        Err(failure) => Err(Unwritten::Spoiled(failure)),
    };
    if !connection.is_autocommit() {
        // If even this fails, the next BEGIN will, and its callers are told.
        let _ = sql.rollback.execute([]);
    }
    result
}
