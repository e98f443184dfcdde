//! The thread that writes, one group at a time.

use std::cell::Cell;
use std::sync::Arc;

use rusqlite::{Connection, ErrorCode};
use semel_core::store::Result;
use semel_core::{Clock, Error, Timestamp};
use tokio::sync::oneshot;

use crate::checkpoint::Checkpoints;
use crate::error::Failure;
use crate::group_builder::GroupBuilder;
use crate::queries::{Queries, Statements};
use crate::queue::{MAX_GROUP, Queue};
use crate::same_file::SameFile;
use crate::sandbox;

/// A write inside a transaction. It may be performed twice: a group that fails is rolled back, and
/// each of its commands is tried alone.
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
    /// Performs the command, and keeps the answer until it is committed.
    fn perform(
        &mut self,
        connection: &Connection,
        sql: &mut Statements<'_>,
        now: Timestamp,
    ) -> std::result::Result<(), Failure>;

    /// Answers the caller, or reports why there is no answer.
    fn settle(self: Box<Self>, committed: Result<()>);

    /// Whether it can run only once, and so runs after the calls that may be repeated.
    fn runs_last(&self) -> bool {
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

/// The error where the thread ended before it answered: the call may have taken effect.
pub(crate) fn unsettled() -> Error {
    Error::Ambiguous {
        reason: "the writer ended before it answered".into(),
        source: None,
    }
}

thread_local! {
    /// How many pages the log holds, from SQLite's hook after each commit.
    static LOG_PAGES: Cell<u32> = const { Cell::new(0) };
}

/// Commits groups until the queue is closed and empty.
pub(crate) fn run(
    connection: &Connection,
    queries: &Queries,
    clock: &Arc<dyn Clock>,
    queue: &Queue<Box<dyn Call>>,
    checkpoints: &Checkpoints,
    file: &SameFile,
) -> rusqlite::Result<()> {
    connection.wal_hook(Some(|_, pages| {
        LOG_PAGES.set(u32::try_from(pages).unwrap_or_default());
        Ok(())
    }));
    sandbox::install_hooks(connection)?;
    let mut sql = Statements::prepare(connection, queries)?;
    let mut group = Vec::with_capacity(MAX_GROUP);
    let mut builder = GroupBuilder::new();
    loop {
        builder.take(queue, &mut group);
        if group.is_empty() {
            return Ok(());
        }
        // Reordering is safe: none of these callers has an answer yet.
        if group.iter().any(|call| call.runs_last()) {
            group.sort_by_key(|call| call.runs_last());
        }
        let answered = group.len();
        if file.check().is_ok() {
            commit_group(connection, &mut sql, clock, &mut group);
        } else {
            // Checked again for each, because an error cannot be copied.
            settle_all(&mut group, || file.check().and_then(|()| Err(unsettled())));
        }
        builder.answered(queue, answered);
        checkpoints.after_commit(connection, LOG_PAGES.get());
    }
}

/// Commits a group, or each of its calls alone where one of them makes the group fail.
fn commit_group(
    connection: &Connection,
    sql: &mut Statements<'_>,
    clock: &Arc<dyn Clock>,
    group: &mut Vec<Box<dyn Call>>,
) {
    match commit(connection, sql, clock, group) {
        Ok(()) => settle_all(group, || Ok(())),
        Err(CommitFailure::RolledBack(_)) if group.len() > 1 => {
            for call in group.drain(..) {
                commit_group(connection, sql, clock, &mut vec![call]);
            }
        }
        Err(CommitFailure::RolledBack(failure) | CommitFailure::NotBegun(failure)) => {
            settle_all(group, || Err(failure.clone().into()));
        }
        Err(CommitFailure::Ambiguous(error)) => settle_all(group, || {
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
enum CommitFailure {
    /// No transaction could begin, so nothing was written.
    NotBegun(Failure),
    /// One of the calls failed, and all were rolled back.
    RolledBack(Failure),
    /// The commit itself failed: after a crash it may turn out to have happened.
    Ambiguous(Arc<rusqlite::Error>),
}

/// Performs all calls in one transaction.
fn commit(
    connection: &Connection,
    sql: &mut Statements<'_>,
    clock: &Arc<dyn Clock>,
    group: &mut [Box<dyn Call>],
) -> std::result::Result<(), CommitFailure> {
    sql.begin
        .execute([])
        .map_err(|error| CommitFailure::NotBegun(error.into()))?;
    // Read under the lock: another process may have held it for seconds.
    let now = clock.now();
    let performed = group
        .iter_mut()
        .try_for_each(|call| call.perform(connection, sql, now));
    let result = match performed {
        Ok(()) => sql.commit.execute([]).map(|_| ()).map_err(|error| {
            match error.sqlite_error_code() {
                // The application's rows violate a deferred constraint.
                Some(ErrorCode::ConstraintViolation) if !connection.is_autocommit() => {
                    CommitFailure::RolledBack(error.into())
                }
                Some(_) | None => CommitFailure::Ambiguous(Arc::new(error)),
            }
        }),
        Err(failure) => Err(CommitFailure::RolledBack(failure)),
    };
    if !connection.is_autocommit() {
        // If even this fails, the next BEGIN fails too, and its callers get the error.
        let _ = sql.rollback.execute([]);
    }
    result
}
