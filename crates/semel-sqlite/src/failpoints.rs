//! For tests that kill a process between two statements.
//!
//! There is no way to set this but to call it: no variable and no file, so nothing outside of the
//! program can.

use std::sync::OnceLock;

use rusqlite::Connection;
use rusqlite::trace::{TraceEvent, TraceEventCodes};

type Hook = Box<dyn Fn(&str) + Send + Sync>;

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Calls `hook` with the SQL of every statement that is about to run on a connection that writes,
/// the application's among them, in every store that is opened after this. It runs on the writer's
/// thread, and must not touch the store. Only the first call in a process counts.
pub fn on_statement(hook: impl Fn(&str) + Send + Sync + 'static) {
    // A second test in one process would be told of the first one's statements.
    let _ = HOOK.set(Box::new(hook));
}

/// Has SQLite tell of every statement, where somebody wants to know.
pub(crate) fn watch(connection: &Connection) {
    if HOOK.get().is_some() {
        connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(tell));
    }
}

fn tell(event: TraceEvent<'_>) {
    if let (TraceEvent::Stmt(statement, _), Some(hook)) = (event, HOOK.get()) {
        hook(&statement.sql());
    }
}
