//! Events that go out, and those that no broker took.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use semel_core::outbox::{DeadEvent, EventId, MAX_BACKLOG_COUNTED};
use semel_core::{Outbox, Timestamp};

use super::layout::{Layout, Place};
use super::text::{Text, When, age, number};
use super::{Answer, Console, Shared, html, see_other, told};
use crate::admin::access::Caller;
use crate::admin::api::Whole;
use crate::admin::problem::Problem;

/// How many events are shown.
const SHOWN: usize = 100;

#[derive(Template)]
#[template(path = "outbox.html")]
struct Page {
    layout: Layout,
    waiting: String,
    or_more: bool,
    oldest: Option<String>,
    dead: u64,
    events: Vec<Row>,
}

/// The payload is the application's affair, and not shown.
struct Row {
    id: String,
    kind: Text,
    aggregate: Text,
    bytes: String,
    written: When,
    dead: When,
    reason: Text,
}

impl Row {
    fn new(dead: &DeadEvent, now: Timestamp) -> Self {
        Self {
            id: dead.event.id.to_string(),
            kind: Text::line(&dead.event.kind),
            aggregate: Text::line(&dead.event.aggregate),
            bytes: number(dead.event.payload.len() as u64),
            written: When::new(dead.written_at, now),
            dead: When::new(dead.dead_at, now),
            reason: Text::line(&dead.reason),
        }
    }
}

pub(super) async fn page<S: Whole, O: Outbox>(
    caller: Caller,
    State(console): Shared<S, O>,
) -> Response {
    told(&caller, whole(&caller, &console).await)
}

async fn whole<S: Whole, O: Outbox>(caller: &Caller, console: &Console<S, O>) -> Answer {
    let (backlog, dead) = tokio::join!(console.outbox.backlog(), console.outbox.dead_events(SHOWN));
    let (backlog, dead, now) = (backlog?, dead?, console.now());
    let page = Page {
        layout: Layout::new(caller, Place::Outbox),
        waiting: number(backlog.waiting),
        or_more: backlog.waiting >= MAX_BACKLOG_COUNTED,
        oldest: backlog.oldest.map(|oldest| age(oldest, now)),
        dead: backlog.dead,
        events: dead.iter().map(|dead| Row::new(dead, now)).collect(),
    };
    Ok(html(StatusCode::OK, &page))
}

/// The log is the only place where it is told who said so: an event has no history.
pub(super) async fn retry<S: Whole, O: Outbox>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
) -> Response {
    let answer = async {
        let by = caller.actor(None)?;
        let id: EventId = id.parse().map_err(|_| Problem::no_dead_event())?;
        if !console.outbox.revive(id).await? {
            return Err(Problem::no_dead_event());
        }
        tracing::info!(event = %id, by, "an operator wants an event published again");
        see_other("/outbox")
    };
    told(&caller, answer.await)
}
