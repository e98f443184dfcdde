//! What the application's statements may do while they run on the writer's connection, and what
//! Semel itself writes among them.
//!
//! SQLite asks about every statement when it is prepared. The application's must not end the
//! group, change how it is written, or touch Semel's tables. An event or a marker is written by a
//! statement of Semel's own in between: that alone is let through, while it is prepared and no
//! longer, and nothing that a trigger would do on its behalf. It is never in the connection's
//! cache of statements, where the application would find it by its text.

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

/// How the names of all that is Semel's begin: tables, indexes, views, savepoints.
const OURS: &str = "semel_";

/// Something to read, that is always there.
const ANYTHING: &str = include_str!("../queries/schema_version.sql");

/// Why an event or a marker is not written. Nothing of it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unwritten {
    /// It would have been committed by itself, or into another file.
    #[error(
        "an event or a marker is written on the connection that this store's `transaction`, \
         `work` or `write` hands to its statements, while they run: anywhere else it would not \
         be committed with them"
    )]
    Outside,
    /// No broker would take the event.
    #[error(transparent)]
    Event(#[from] outbox::Invalid),
    /// A name of a consumer or of a message that cannot be told from others.
    #[error(
        "the names of a consumer and of a message have 1 to {} bytes",
        semel_core::inbox::MAX_NAME_BYTES
    )]
    Name,
    /// SQLite said no.
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

/// Which store. Whoever holds this does not keep the store open.
#[derive(Clone)]
pub(crate) struct Home(Arc<Queue<Box<dyn Call>>>);

/// The writer's connection, while the application's statements run.
#[derive(Clone, Copy)]
pub(crate) struct Place<'c> {
    connection: &'c Connection,
    /// The instant of the group.
    pub(crate) now: Timestamp,
}

/// A statement of Semel's own among the application's.
#[derive(Clone, Copy)]
pub(crate) enum Own {
    /// `publish.sql`
    Event,
    /// `once.sql`
    Marker,
    /// `once_savepoint.sql`, `once_release.sql`, `once_rollback.sql`
    Savepoint,
}

/// What is going on, on this thread. The pointers are compared, and never followed.
#[derive(Clone, Copy)]
struct Inside {
    connection: *const Connection,
    home: *const Queue<Box<dyn Call>>,
    now: Timestamp,
    /// What is being prepared, where it is Semel's own.
    own: Option<Own>,
    spoiled: bool,
}

thread_local! {
    /// Set while the application's statements are running on this thread.
    static INSIDE: Cell<Option<Inside>> = const { Cell::new(None) };
}

/// Runs the application's statements; else says why nothing of them may stay.
pub(crate) fn run<R>(
    home: &Home,
    connection: &Connection,
    now: Timestamp,
    statements: impl FnOnce(&Connection) -> R,
) -> Result<R, &'static str> {
    INSIDE.set(Some(Inside {
        connection,
        home: Arc::as_ptr(&home.0),
        now,
        own: None,
        spoiled: false,
    }));
    let found = catch_unwind(AssertUnwindSafe(|| statements(connection)));
    let spoiled = INSIDE.take().is_none_or(|inside| inside.spoiled);
    match found {
        Ok(_) if spoiled => Err("a savepoint was ended around a marker and its effect"),
        Ok(found) => Ok(found),
        Err(_) => Err("the application's statements panicked"),
    }
}

impl Home {
    pub(crate) fn of(store: &Sqlite) -> Self {
        Self(Arc::clone(&store.inner.writes))
    }

    /// The connection as a place to write in: the one that the statements of this store were
    /// handed, while they run and nothing has rolled them back.
    pub(crate) fn place<'c>(&self, connection: &'c Connection) -> Result<Place<'c>, Unwritten> {
        let inside = INSIDE.get().filter(|inside| {
            std::ptr::eq(inside.connection, connection)
                && std::ptr::eq(inside.home, Arc::as_ptr(&self.0))
                && !connection.is_autocommit()
        });
        let Inside { now, .. } = inside.ok_or(Unwritten::Outside)?;
        Ok(Place { connection, now })
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home").finish_non_exhaustive()
    }
}

impl<'c> Place<'c> {
    /// Runs a statement of Semel's own.
    pub(crate) fn execute(
        &self,
        own: Own,
        sql: &str,
        params: &[&dyn ToSql],
    ) -> rusqlite::Result<usize> {
        let attempt = || self.prepare(own, sql)?.execute(params);
        let denied = ErrorCode::AuthorizationForStatementDenied;
        match attempt() {
            // Another connection had changed the schema: SQLite judged by the old one, or prepared
            // it anew without us. Whatever is read brings the new one, and nobody else can change
            // that while this transaction is open.
            Err(error) if error.sqlite_error_code() == Some(denied) => {
                self.connection.query_row(ANYTHING, [], |_| Ok(()))?;
                attempt()
            }
            executed => executed,
        }
    }

    /// The one moment in which SQLite is to let it through.
    fn prepare(&self, own: Own, sql: &str) -> rusqlite::Result<Statement<'c>> {
        let _lifted = Lifted::new(own);
        self.connection.prepare(sql)
    }
}

/// Has all that the application's statements wrote taken back, whatever they say.
pub(crate) fn spoil() {
    alter(|inside| inside.spoiled = true);
}

/// As long as this is there, SQLite is told that one statement is Semel's own.
struct Lifted;

impl Lifted {
    fn new(own: Own) -> Self {
        alter(|inside| inside.own = Some(own));
        Self
    }
}

impl Drop for Lifted {
    fn drop(&mut self) {
        alter(|inside| inside.own = None);
    }
}

fn alter(change: impl FnOnce(&mut Inside)) {
    if let Some(mut inside) = INSIDE.get() {
        change(&mut inside);
        INSIDE.set(Some(inside));
    }
}

/// Has SQLite ask about every statement and every commit on the writer's connection. Set once
/// and for good: each change has SQLite prepare all statements anew.
pub(crate) fn guard(connection: &Connection) -> rusqlite::Result<()> {
    connection.authorizer(Some(authorize))?;
    // A commit that is refused is a rollback. This is for statements that come after one that
    // rolled all back: outside of a transaction each would be a commit of its own.
    connection.commit_hook(Some(|| INSIDE.get().is_some()))
}

/// The application's statements must not end the group, change how it is written, or touch the
/// records.
#[allow(
    clippy::needless_pass_by_value,
    reason = "the signature is the driver's"
)]
fn authorize(context: AuthContext<'_>) -> Authorization {
    let is_denied = INSIDE.get().is_some_and(|inside| {
        // What a trigger does is the trigger's, whoever set it off.
        let own = inside.own.filter(|_| context.accessor.is_none());
        is_forbidden(&context.action) && !own.is_some_and(|own| own.is(&context.action))
    });
    if is_denied {
        Authorization::Deny
    } else {
        Authorization::Allow
    }
}

impl Own {
    /// Whether this is what the statement itself does.
    #[allow(clippy::wildcard_enum_match_arm, reason = "it does nothing else")]
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
