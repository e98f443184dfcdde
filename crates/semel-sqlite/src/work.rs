//! The application's statements and the write to their record, in one group.
//!
//! They run on the writer's thread inside a savepoint: a failure rolls them back without the rest of
//! the group. When a group fails its calls are performed again one by one, but work is `FnOnce` and
//! runs only once. So work runs last in its group, after all calls that could make the group fail. If
//! its group is rolled back all the same, the caller gets an error: nothing was written.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use rusqlite::Connection;
use semel_core::history::Note;
use semel_core::store::{Result, Source};
use semel_core::transaction::{Conclude, Finished, Finishing, Slot, TransactionWrite};
use semel_core::transition::Held;
use semel_core::{Error, Fence, LocalPhase, Response, Timestamp};
use tokio::sync::oneshot;

use crate::error::Failure;
use crate::holder::{Advance, Complete};
use crate::queries::Statements;
use crate::sandbox::{self, StoreIdentity};
use crate::store::refused;
use crate::writer::{Call, unsettled};
use crate::{Sqlite, history};

/// The application's statements. They may return the response of the whole operation.
type Script = Box<dyn FnOnce(&Connection) -> std::result::Result<Option<Response>, Source> + Send>;

/// The application's own statements, about to run in the transaction that holds the
/// completion or the next recovery point. See [`Sqlite::transaction`] and [`Sqlite::work`].
#[must_use = "nothing runs until the layer finishes it"]
pub struct Work {
    store: Sqlite,
    statements: Script,
}

impl Sqlite {
    /// The application's statements, on its own tables in this file.
    /// [`finish`](semel_core::Transaction::finish) runs them and completes the record with the
    /// response that they return, in one commit: both are on the disk, or neither is.
    ///
    /// With a response that completes the record, everything they wrote is committed with it, also
    /// where the response is a refusal such as 402. With any other response, with an error or a
    /// panic, and where the attempt no longer owns its record, everything is rolled back.
    ///
    /// They run on the writer's thread, inside its transaction. So:
    /// - They must be quick. Every other request waits for them, in this process and in others.
    /// - They must not wait for anything, least of all for this store.
    /// - They cannot begin, commit or roll back: SQLite refuses it here, as it refuses pragmas,
    ///   `ATTACH`, and changes to Semel's tables. They may use savepoints whose names do not begin
    ///   with `semel_`.
    ///
    /// Reading, and creating tables, is done on connections of the application's own.
    ///
    /// ```
    /// # async fn demo(store: semel_sqlite::Sqlite, fence: semel_core::Fence) -> semel_core::store::Result<()> {
    /// use semel_core::transaction::TransactionWrite;
    /// use semel_core::{Completion, Response, Transaction};
    ///
    /// let work = store.transaction(|connection| {
    ///     connection.execute("INSERT INTO payments (amount) VALUES (?1)", [1000])?;
    ///     Ok::<_, rusqlite::Error>(Response {
    ///         status: 201,
    ///         headers: vec![],
    ///         body: Some("{}".into()),
    ///         schema_version: 0,
    ///     })
    /// });
    /// // What the HTTP layer does with it:
    /// let conclude = |found: Option<Response>| {
    ///     found.map(|response| TransactionWrite::Complete(Completion { response, resource: None }))
    /// };
    /// Box::new(work).finish(fence, Box::new(conclude)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn transaction<E>(
        &self,
        statements: impl FnOnce(&Connection) -> std::result::Result<Response, E> + Send + 'static,
    ) -> Work
    where
        E: Into<Source>,
    {
        Work {
            store: self.clone(),
            statements: Box::new(|connection| statements(connection).map(Some).map_err(Into::into)),
        }
    }

    /// One phase of an operation: the application's own statements, under the rules of
    /// [`transaction`](Self::transaction). They and the next recovery point are committed
    /// together. What they return is there for later phases; it is not the answer.
    pub fn work<T, E>(
        &self,
        statements: impl FnOnce(&Connection) -> std::result::Result<T, E> + Send + 'static,
    ) -> LocalPhase<T>
    where
        T: Send + 'static,
        E: Into<Source>,
    {
        let (statements, slot) = into_slot(statements);
        let work = Work {
            store: self.clone(),
            statements,
        };
        LocalPhase::inside(work, slot)
    }

    /// The application's own statements, in one commit and without an operation, under the rules
    /// of [`transaction`](Self::transaction): for a consumer of messages, whose effect and
    /// [marker](crate::Inbox::once) belong together.
    ///
    /// ```
    /// # async fn demo(store: semel_sqlite::Sqlite, message_id: String) -> semel_core::store::Result<()> {
    /// use semel_sqlite::Inbox;
    ///
    /// let inbox = store.inbox(Inbox::REMEMBER);
    /// store
    ///     .write(move |connection| {
    ///         inbox.once(connection, "ledger", &message_id, |connection| {
    ///             connection.execute("INSERT INTO ledger (cents) VALUES (?1)", [1000])
    ///         })
    ///     })
    ///     .await?;
    /// // Now the message may be acknowledged.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// An error of the statements, or a panic, takes all of them back. It is then the source of
    /// the [`Error::Unavailable`] that is returned, to be had by `downcast_ref`. After
    /// [`Error::Ambiguous`] they may be committed.
    ///
    /// # Cancellation
    /// Dropping the future after it was first polled does not take the statements back.
    pub async fn write<T, E>(
        &self,
        statements: impl FnOnce(&Connection) -> std::result::Result<T, E> + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        E: Into<Source>,
    {
        let (statements, slot) = into_slot(statements);
        self.enqueue(statements, Ending::Commit).await?;
        let found = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        found.ok_or_else(unsettled)
    }

    fn enqueue(&self, statements: Script, ending: Ending) -> Finishing {
        let (reply, answer) = oneshot::channel();
        let call = PendingWork {
            store: StoreIdentity::of(self),
            to_do: Some((statements, ending)),
            answer: Err(rolled_back("its group failed", None)),
            reply,
        };
        let accepted = self.inner.writes.push(Box::new(call));
        Box::pin(async move {
            accepted.map_err(refused)?;
            answer.await.unwrap_or_else(|_| Err(unsettled()))
        })
    }
}

/// Statements that put their result into a slot.
fn into_slot<T, E>(
    statements: impl FnOnce(&Connection) -> std::result::Result<T, E> + Send + 'static,
) -> (Script, Slot<T>)
where
    T: Send + 'static,
    E: Into<Source>,
{
    let slot = Slot::<T>::default();
    let filled = Arc::clone(&slot);
    let script: Script = Box::new(move |connection| {
        let found = statements(connection).map_err(Into::into)?;
        *filled.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        Ok(None)
    });
    (script, slot)
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

impl semel_core::Transaction for Work {
    fn finish(self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing {
        let Self { store, statements } = *self;
        store.enqueue(statements, Ending::TransactionWrite(fence, conclude))
    }
}

/// What comes after the statements.
enum Ending {
    /// A word about an operation, or they are taken back.
    TransactionWrite(Fence, Conclude),
    /// Nothing: they are there for themselves.
    Commit,
}

/// What is to be written after the statements.
enum Said {
    TransactionWrite(Fence, TransactionWrite),
    Commit,
    Nothing,
}

/// Work whose caller waits.
struct PendingWork {
    store: StoreIdentity,
    /// `None` once it ran.
    to_do: Option<(Script, Ending)>,
    /// [`Held::Applied`] where the statements are kept.
    answer: Result<Finished>,
    reply: oneshot::Sender<Result<Finished>>,
}

impl Call for PendingWork {
    fn perform(
        &mut self,
        connection: &Connection,
        sql: &mut Statements<'_>,
        now: Timestamp,
    ) -> std::result::Result<(), Failure> {
        if self.to_do.is_none() {
            // It ran before, and its group was rolled back.
            if self.answer.is_ok() {
                self.answer = Err(rolled_back("its group failed", None));
            }
            return Ok(());
        }
        sql.savepoint.execute([])?;
        let Some((statements, ending)) = self.to_do.take() else {
            return Ok(());
        };
        let said = self.run(connection, now, statements, ending);
        self.check_open(connection)?;
        let mut refused = None;
        self.answer = said.and_then(|said| match said {
            Said::Nothing => Ok(Finished::RolledBack),
            Said::Commit => Ok(Finished::Held(Held::Applied)),
            Said::TransactionWrite(fence, word) => {
                let (held, note) = say(fence, word, sql, now)?;
                refused = note.map(|note| (fence.id, note));
                Ok(Finished::Held(held))
            }
        });
        self.check_open(connection)?;
        if !matches!(self.answer, Ok(Finished::Held(Held::Applied))) {
            sql.savepoint_rollback.execute([])?;
        }
        sql.savepoint_release.execute([])?;
        // After the rollback to the savepoint, which would remove this entry too.
        match refused {
            Some((id, note)) => history::append(sql, id, note),
            None => Ok(()),
        }
    }

    fn settle(self: Box<Self>, committed: Result<()>) {
        let Self { answer, reply, .. } = *self;
        // The caller may have been dropped.
        let _ = reply.send(committed.and(answer));
    }

    fn runs_last(&self) -> bool {
        true
    }
}

impl PendingWork {
    /// Runs the statements, and says what is to be made of them.
    fn run(
        &self,
        connection: &Connection,
        now: Timestamp,
        statements: Script,
        ending: Ending,
    ) -> Result<Said> {
        let found = sandbox::run(&self.store, connection, now, statements)
            .map_err(|why| rolled_back(why, None))?
            .map_err(|source| rolled_back("the application's statements failed", Some(source)))?;
        let (fence, conclude) = match ending {
            Ending::TransactionWrite(fence, conclude) => (fence, conclude),
            Ending::Commit => return Ok(Said::Commit),
        };
        let word = catch_unwind(AssertUnwindSafe(|| conclude(found)))
            .map_err(|_| rolled_back("judging the answer panicked", None))?;
        Ok(word.map_or(Said::Nothing, |word| Said::TransactionWrite(fence, word)))
    }

    /// Fails where a statement rolled back the whole transaction: on a full disk, or with an
    /// `ON CONFLICT ROLLBACK`. Later statements would be committed by themselves.
    fn check_open(&mut self, connection: &Connection) -> std::result::Result<(), Failure> {
        if connection.is_autocommit() {
            self.answer = Err(rolled_back("a statement rolled back its whole group", None));
            return Err(Failure::RolledBack);
        }
        Ok(())
    }
}

/// Writes the word, fenced by the attempt.
fn say(
    fence: Fence,
    word: TransactionWrite,
    sql: &mut Statements<'_>,
    now: Timestamp,
) -> std::result::Result<(Held, Option<Note>), Failure> {
    match word {
        TransactionWrite::Complete(completion) => Complete(fence, completion).attempt(sql, now),
        TransactionWrite::Advance(point) => Advance(fence, point).attempt(sql, now),
    }
}

fn rolled_back(reason: &str, source: Option<Source>) -> Error {
    Error::Unavailable {
        reason: format!("the transaction is rolled back: {reason}").into(),
        source,
    }
}
