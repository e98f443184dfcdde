//! `GET /kill-point` lists the statements that ran on the writing connection since the last call;
//! `PUT /kill-point` chooses the statement before which the process kills itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use rusqlite::trace::{TraceEvent, TraceEventCodes};
use semel::Sqlite;
use serde::Deserialize;

/// A point between two statements.
#[derive(Clone, Debug, Deserialize)]
struct KillPoint {
    /// The statement that ran.
    after: String,
    /// The statement that will not run.
    before: String,
    /// At which occurrence, counted from 1.
    nth: usize,
}

/// The trace of the writing connection.
struct Trace {
    statements: Vec<String>,
    last: String,
    kill_point: Option<KillPoint>,
}

static TRACE: Mutex<Trace> = Mutex::new(Trace {
    statements: Vec::new(),
    last: String::new(),
    kill_point: None,
});

fn lock() -> MutexGuard<'static, Trace> {
    TRACE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Traces every statement that the store, or the shop inside the store's transactions, writes
/// with.
pub(crate) async fn trace(store: &Sqlite) -> anyhow::Result<()> {
    store
        .write(|connection| {
            connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(on_statement));
            Ok::<_, rusqlite::Error>(())
        })
        .await?;
    Ok(())
}

fn on_statement(event: TraceEvent<'_>) {
    if let TraceEvent::Stmt(statement, _) = event {
        lock().record(&statement.sql());
    }
}

impl Trace {
    fn record(&mut self, sql: &str) {
        if let Some(point) = &mut self.kill_point
            && point.after == self.last
            && point.before == sql
        {
            point.nth -= 1;
            if point.nth == 0 {
                kill_this_process();
            }
        }
        sql.clone_into(&mut self.last);
        self.statements.push(self.last.clone());
    }
}

/// SIGKILL: no destructor runs and nothing is flushed.
fn kill_this_process() {
    let this = rustix::process::getpid();
    let _ = rustix::process::kill_process(this, rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

pub(crate) fn router() -> Router {
    Router::new().route("/kill-point", get(take_statements).put(set_kill_point))
}

async fn take_statements() -> Json<Vec<String>> {
    Json(std::mem::take(&mut lock().statements))
}

async fn set_kill_point(Json(point): Json<KillPoint>) -> StatusCode {
    lock().kill_point = Some(point);
    StatusCode::NO_CONTENT
}
