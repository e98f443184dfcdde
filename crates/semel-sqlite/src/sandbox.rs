//! Restricts what the application's statements may do on the writer's connection, and writes Semel's
//! events and markers among them.
//!
//! SQLite calls an authorizer for every statement that is prepared. The application's statements must
//! not end the group, change how it is written, or touch Semel's tables. Semel's own statements for
//! events and markers are allowed only while they are prepared, and never from a trigger. They are
//! not in the connection's statement cache, where the application would find them by their text.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, ErrorCode, Statement, ToSql};
use semel_core::{Timestamp, outbox};

use crate::Sqlite;
use crate::queue::Queue;
use crate::writer::Call;

/// The prefix of Semel's tables, indexes, views and savepoints.
const PREFIX: &str = "semel_";

/// A query that always works, to load the current schema.
const LOAD_SCHEMA: &str = include_str!("../queries/schema_version.sql");

/// Why an event or a marker was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unwritten {
    /// It would be committed by itself, or into another file.
    #[error(
        "an event or a marker is written on the connection that this store's `transaction`, \
         `work` or `write` hands to its statements, while they run: anywhere else it would not \
         be committed with them"
    )]
    Outside,
    /// No broker would take the event.
    #[error(transparent)]
    Event(#[from] outbox::Invalid),
    /// The name of the consumer or of the message is empty or too long.
    #[error(
        "the names of a consumer and of a message have 1 to {} bytes",
        semel_core::inbox::MAX_NAME_BYTES
    )]
    Name,
    /// SQLite refused.
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

/// For statements whose error is the driver's.
impl From<Unwritten> for rusqlite::Error {
    fn from(why: Unwritten) -> Self {
        match why {
            Unwritten::Sqlite(error) => error,
            why @ (Unwritten::Outside | Unwritten::Event(_) | Unwritten::Name) => {
                Self::ToSqlConversionFailure(why.into())
            }
        }
    }
}

/// Identifies a store without keeping it open.
#[derive(Clone)]
pub(crate) struct StoreIdentity(Arc<Queue<Box<dyn Call>>>);

/// The writer's connection while the application's statements run.
#[derive(Clone, Copy)]
pub(crate) struct WriterConnection<'c> {
    connection: &'c Connection,
    /// The time of the group.
    pub(crate) now: Timestamp,
}

/// A statement of Semel's among the application's.
#[derive(Clone, Copy)]
pub(crate) enum OwnStatement {
    /// `publish.sql`
    Event,
    /// `once.sql`
    Marker,
    /// `once_savepoint.sql`, `once_release.sql`, `once_rollback.sql`
    Savepoint,
}

/// The application's statements that run on this thread. The pointers are only compared.
#[derive(Clone, Copy)]
struct RunningStatements {
    connection: *const Connection,
    store: *const Queue<Box<dyn Call>>,
    now: Timestamp,
    /// The statement of Semel's that is being prepared.
    own: Option<OwnStatement>,
    must_roll_back: bool,
}

thread_local! {
    /// Set while the application's statements are running on this thread.
    static RUNNING: Cell<Option<RunningStatements>> = const { Cell::new(None) };
}

/// Runs the application's statements, or returns why they must be rolled back.
pub(crate) fn run<R>(
    store: &StoreIdentity,
    connection: &Connection,
    now: Timestamp,
    statements: impl FnOnce(&Connection) -> R,
) -> Result<R, &'static str> {
    RUNNING.set(Some(RunningStatements {
        connection,
        store: Arc::as_ptr(&store.0),
        now,
        own: None,
        must_roll_back: false,
    }));
    let found = catch_unwind(AssertUnwindSafe(|| statements(connection)));
    let must_roll_back = RUNNING.take().is_none_or(|running| running.must_roll_back);
    match found {
        Ok(_) if must_roll_back => Err("a savepoint was ended around a marker and its effect"),
        Ok(found) => Ok(found),
        Err(_) => Err("the application's statements panicked"),
    }
}

impl StoreIdentity {
    pub(crate) fn of(store: &Sqlite) -> Self {
        Self(Arc::clone(&store.inner.writes))
    }

    /// Checks that this is the connection that the store's running statements got, and that their
    /// transaction is still open.
    pub(crate) fn writer<'c>(
        &self,
        connection: &'c Connection,
    ) -> Result<WriterConnection<'c>, Unwritten> {
        let running = RUNNING.get().filter(|running| {
            std::ptr::eq(running.connection, connection)
                && std::ptr::eq(running.store, Arc::as_ptr(&self.0))
                && !connection.is_autocommit()
        });
        let RunningStatements { now, .. } = running.ok_or(Unwritten::Outside)?;
        Ok(WriterConnection { connection, now })
    }
}

impl fmt::Debug for StoreIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreIdentity").finish_non_exhaustive()
    }
}

impl<'c> WriterConnection<'c> {
    /// Runs a statement of Semel's.
    pub(crate) fn execute(
        &self,
        own: OwnStatement,
        sql: &str,
        params: &[&dyn ToSql],
    ) -> rusqlite::Result<usize> {
        let attempt = || self.prepare(own, sql)?.execute(params);
        let denied = ErrorCode::AuthorizationForStatementDenied;
        match attempt() {
            // Another connection changed the schema: SQLite authorized by the old one, or prepared
            // the statement again outside of `prepare`. Any read loads the new schema, which cannot
            // change while this transaction is open.
            Err(error) if error.sqlite_error_code() == Some(denied) => {
                self.connection.query_row(LOAD_SCHEMA, [], |_| Ok(()))?;
                attempt()
            }
            executed => executed,
        }
    }

    /// Prepares a statement of Semel's: the only time it is authorized.
    fn prepare(&self, own: OwnStatement, sql: &str) -> rusqlite::Result<Statement<'c>> {
        let _permission = Permission::grant(own);
        self.connection.prepare(sql)
    }
}

/// Makes the writer roll back the application's statements, whatever they return.
pub(crate) fn require_rollback() {
    update(|running| running.must_roll_back = true);
}

/// Authorizes one statement of Semel's while it exists.
struct Permission;

impl Permission {
    fn grant(own: OwnStatement) -> Self {
        update(|running| running.own = Some(own));
        Self
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        update(|running| running.own = None);
    }
}

fn update(change: impl FnOnce(&mut RunningStatements)) {
    if let Some(mut running) = RUNNING.get() {
        change(&mut running);
        RUNNING.set(Some(running));
    }
}

/// Installs the authorizer and the commit hook on the writer's connection. Only once: after each
/// change SQLite prepares all statements again.
pub(crate) fn install_hooks(connection: &Connection) -> rusqlite::Result<()> {
    connection.authorizer(Some(authorize))?;
    // Refusing a commit rolls back. After a statement that rolled back the transaction, every later
    // one would be committed by itself.
    connection.commit_hook(Some(|| RUNNING.get().is_some()))
}

/// Denies the application's statements what this module's documentation lists.
#[allow(
    clippy::needless_pass_by_value,
    reason = "the signature is the driver's"
)]
fn authorize(context: AuthContext<'_>) -> Authorization {
    let is_denied = RUNNING.get().is_some_and(|running| {
        // A trigger's action is never Semel's own, whichever statement fired it.
        let own = running.own.filter(|_| context.accessor.is_none());
        is_forbidden(&context.action) && !own.is_some_and(|own| own.is(&context.action))
    });
    if is_denied {
        Authorization::Deny
    } else {
        Authorization::Allow
    }
}

impl OwnStatement {
    /// Whether the statement itself performs this action.
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "the statements perform no other action"
    )]
    fn is(self, action: &AuthAction<'_>) -> bool {
        match (self, action) {
            (Self::Event, AuthAction::Insert { table_name }) => *table_name == "semel_outbox",
            (Self::Marker, AuthAction::Insert { table_name }) => *table_name == "semel_inbox",
            (Self::Savepoint, AuthAction::Savepoint { savepoint_name, .. }) => {
                *savepoint_name == "semel_once"
            }
            _ => false,
        }
    }
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "actions that are not listed are forbidden"
)]
fn is_forbidden(action: &AuthAction<'_>) -> bool {
    let ours = |name: &str| {
        let start = name.get(..PREFIX.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
    };
    match action {
        AuthAction::Select
        | AuthAction::Recursive
        | AuthAction::Read { .. }
        | AuthAction::Function { .. } => false,
        AuthAction::Savepoint { savepoint_name, .. } => ours(savepoint_name),
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
