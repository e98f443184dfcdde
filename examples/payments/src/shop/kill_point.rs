//! For the test that kills the shop between any two statements: `GET /kill-point` lists what ran on
//! the connection that writes, and `PUT /kill-point` says before which statement the process kills
//! itself. Built only for tests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

/// Between two statements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct KillPoint {
    /// The statement that ran.
    after: String,
    /// The statement that will not.
    before: String,
    /// Only the nth time, counted from 1.
    nth: usize,
}

/// What ran since the list was last asked for, and where it ends.
#[derive(Default)]
struct Watch {
    ran: Vec<String>,
    last: String,
    kill: Option<KillPoint>,
}

static WATCH: Mutex<Option<Watch>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Watch>> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches every statement of the store that is opened next.
pub(super) fn watch() {
    *lock() = Some(Watch::default());
    semel_sqlite::failpoints::on_statement(|sql| {
        if let Some(watch) = lock().as_mut() {
            watch.note(sql);
        }
    });
}

impl Watch {
    fn note(&mut self, sql: &str) {
        if let Some(kill) = &mut self.kill
            && kill.after == self.last
            && kill.before == sql
        {
            kill.nth -= 1;
            if kill.nth == 0 {
                die();
            }
        }
        sql.clone_into(&mut self.last);
        self.ran.push(self.last.clone());
    }
}

/// As if somebody had pulled the plug: no destructor, no flush, no last word.
fn die() {
    let this = rustix::process::getpid();
    let _ = rustix::process::kill_process(this, rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

pub(super) fn router() -> Router {
    Router::new().route("/kill-point", get(ran).put(put))
}

async fn ran() -> Json<Vec<String>> {
    Json(
        lock()
            .as_mut()
            .map(|watch| std::mem::take(&mut watch.ran))
            .unwrap_or_default(),
    )
}

async fn put(Json(kill): Json<KillPoint>) -> StatusCode {
    if let Some(watch) = lock().as_mut() {
        watch.kill = Some(kill);
    }
    StatusCode::NO_CONTENT
}
