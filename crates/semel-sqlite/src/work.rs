//! The application's own statements and the completion, inside one group.
//!
//! They run on the writer's thread, between a savepoint and its end: what fails is taken back
//! without the rest of the group. A group whose calls are done again one by one cannot do work
//! again that is `FnOnce`. So work comes last in its group, after all calls that could spoil it,
//! and work that ran for a group that was rolled back all the same is not repeated: its caller is
//! told that nothing was written, which is then known.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use semel_core::store::{Result, Source};
use semel_core::transaction::{Conclude, Finished, Finishing};
use semel_core::transition::Held;
use semel_core::{Error, Fence, Response, Timestamp};
use tokio::sync::oneshot;

use crate::error::Failure;
use crate::holder::Complete;
use crate::queries::Statements;
use crate::store::refused;
use crate::writer::{Call, unsettled};
use crate::{Sqlite, history};

/// The name in `savepoint.sql`.
const SAVEPOINT: &str = "semel_work";

/// How the names of all that is Semel's begin.
const OURS: &str = "semel_";

/// What the application does.
type Script = Box<dyn FnOnce(&Connection) -> std::result::Result<Response, Source> + Send>;

/// The application's own statements, about to run in the transaction that holds the
/// completion. See [`Sqlite::transaction`].
#[must_use = "nothing runs until the layer finishes it"]
pub struct Work {
    store: Sqlite,
    statements: Script,
}

impl Sqlite {
    /// The application's own statements, on its own tables in this file. Whoever
    /// [finishes](semel_core::Transaction::finish) this runs them and completes the operation with
    /// the answer that they find, in one commit: both are on the disk, or neither is.
    ///
    /// What they return decides. With an answer that completes the operation, all they wrote is
    /// committed with it, also where the answer is a refusal such as 402. With any other answer,
    /// with an error or a panic, and where the attempt no longer owns its record, all of it is
    /// taken back.
    ///
    /// They run on the one thread that writes, inside its transaction. So:
    /// - They are quick. Every other request waits for them, in this process and in others.
    /// - They do not wait for anything, and least of all for this store.
    /// - They do not begin, commit or roll back: SQLite refuses it here, as it refuses pragmas,
    ///   `ATTACH`, and changes to Semel's tables. Savepoints are theirs to use.
    ///
    /// Reading, and creating tables, is done on connections of the application's own.
    ///
    /// ```
    /// # async fn demo(store: semel_sqlite::Sqlite, fence: semel_core::Fence) -> semel_core::store::Result<()> {
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
    /// let conclude = |found: Option<Response>| found.map(|response| Completion { response, resource: None });
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
            statements: Box::new(|connection| statements(connection).map_err(Into::into)),
        }
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

impl semel_core::Transaction for Work {
    fn finish(self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing {
        let (reply, answer) = oneshot::channel();
        let call = Working {
            fence,
            to_do: Some((self.statements, conclude)),
            answer: Err(rolled_back("the group that it was part of failed", None)),
            reply,
        };
        let accepted = self.store.inner.writes.push(Box::new(call));
        Box::pin(async move {
            accepted.map_err(refused)?;
            answer.await.unwrap_or_else(|_| Err(unsettled()))
        })
    }
}

/// Work whose caller waits.
struct Working {
    fence: Fence,
    /// Gone once it ran.
    to_do: Option<(Script, Conclude)>,
    answer: Result<Finished>,
    reply: oneshot::Sender<Result<Finished>>,
}

impl Call for Working {
    fn perform(
        &mut self,
        connection: &Connection,
        sql: &mut Statements<'_>,
        now: Timestamp,
    ) -> std::result::Result<(), Failure> {
        if self.to_do.is_none() {
            // It ran before, and its group was rolled back.
            if self.answer.is_ok() {
                self.answer = Err(rolled_back("the group that it was part of failed", None));
            }
            return Ok(());
        }
        sql.savepoint.execute([])?;
        let Some((statements, conclude)) = self.to_do.take() else {
            return Ok(());
        };
        let completion = run(connection, statements, conclude);
        self.check_open(connection)?;
        let mut refused = None;
        self.answer = completion.and_then(|completion| {
            let Some(completion) = completion else {
                return Ok(Finished::RolledBack);
            };
            let (held, note) = Complete(self.fence, completion).attempt(sql, now)?;
            refused = note;
            Ok(Finished::Held(held))
        });
        self.check_open(connection)?;
        if !matches!(self.answer, Ok(Finished::Held(Held::Applied))) {
            sql.savepoint_rollback.execute([])?;
        }
        sql.savepoint_release.execute([])?;
        // Told after all else was taken back, or it would be taken back as well.
        match refused {
            Some(note) => history::append(sql, self.fence.id, note),
            None => Ok(()),
        }
    }

    fn settle(self: Box<Self>, committed: Result<()>) {
        let Self { answer, reply, .. } = *self;
        // A caller that went away is no reason to undo what is committed.
        let _ = reply.send(committed.and(answer));
    }

    fn comes_last(&self) -> bool {
        true
    }
}

impl Working {
    /// Fails where a statement took the whole transaction along: on a full disk, or because it
    /// says ROLLBACK in case of a conflict. What came after it would be committed by itself.
    fn check_open(&mut self, connection: &Connection) -> std::result::Result<(), Failure> {
        if connection.is_autocommit() {
            self.answer = Err(rolled_back(
                "a statement rolled back all of its group",
                None,
            ));
            return Err(Failure::RolledBack);
        }
        Ok(())
    }
}

/// Runs the statements, and says what the operation is to be completed with, if it is.
fn run(
    connection: &Connection,
    statements: Script,
    conclude: Conclude,
) -> Result<Option<semel_core::Completion>> {
    INSIDE.set(true);
    let found = catch_unwind(AssertUnwindSafe(|| statements(connection)));
    INSIDE.set(false);
    let found = match found {
        Ok(Ok(found)) => found,
        Ok(Err(source)) => {
            return Err(rolled_back(
                "the application's statements failed",
                Some(source),
            ));
        }
        Err(_) => return Err(rolled_back("the application's statements panicked", None)),
    };
    catch_unwind(AssertUnwindSafe(|| conclude(Some(found))))
        .map_err(|_| rolled_back("judging the answer panicked", None))
}

fn rolled_back(reason: &str, source: Option<Source>) -> Error {
    Error::Unavailable {
        reason: format!("the transaction is rolled back: {reason}").into(),
        source,
    }
}

thread_local! {
    /// Whether the application's statements are running on this thread.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Has SQLite ask about every statement and every commit on the writer's connection. Set once
/// and for good: each change has SQLite prepare all statements anew.
pub(crate) fn guard(connection: &Connection) -> rusqlite::Result<()> {
    connection.authorizer(Some(authorize))?;
    // A commit that is refused is a rollback. This is for statements that come after one that
    // rolled all back: outside of a transaction each would be a commit of its own.
    connection.commit_hook(Some(|| INSIDE.get()))
}

/// The application's statements must not end the group, change how it is written, or touch the
/// records.
#[allow(
    clippy::needless_pass_by_value,
    reason = "the signature is the driver's"
)]
fn authorize(context: AuthContext<'_>) -> Authorization {
    if INSIDE.get() && is_forbidden(&context.action) {
        Authorization::Deny
    } else {
        Authorization::Allow
    }
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "what is not named is forbidden"
)]
fn is_forbidden(action: &AuthAction<'_>) -> bool {
    let ours = |name: &str| {
        let start = name.get(..OURS.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(OURS))
    };
    match action {
        AuthAction::Select
        | AuthAction::Recursive
        | AuthAction::Read { .. }
        | AuthAction::Function { .. } => false,
        AuthAction::Savepoint { savepoint_name, .. } => {
            savepoint_name.eq_ignore_ascii_case(SAVEPOINT)
        }
        AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::Analyze { table_name }
        | AuthAction::CreateTable { table_name }
        | AuthAction::CreateTempTable { table_name }
        | AuthAction::CreateIndex { table_name, .. }
        | AuthAction::CreateTempIndex { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. }
        | AuthAction::CreateTempTrigger { table_name, .. }
        | AuthAction::CreateVtable { table_name, .. }
        | AuthAction::DropTable { table_name }
        | AuthAction::DropTempTable { table_name }
        | AuthAction::DropIndex { table_name, .. }
        | AuthAction::DropTempIndex { table_name, .. }
        | AuthAction::DropTrigger { table_name, .. }
        | AuthAction::DropTempTrigger { table_name, .. }
        | AuthAction::DropVtable { table_name, .. } => ours(table_name),
        AuthAction::CreateView { view_name }
        | AuthAction::CreateTempView { view_name }
        | AuthAction::DropView { view_name }
        | AuthAction::DropTempView { view_name } => ours(view_name),
        AuthAction::Reindex { index_name } => ours(index_name),
        _ => true,
    }
}
