//! The outbox: its backlog and its dead-lettered events.

use askama::Template;
use axum::extract::{Path, State};
use http::StatusCode;
use semel_core::Store;
use semel_core::Timestamp;
use semel_core::outbox::{DeadEvent, EventId, MAX_BACKLOG_COUNTED};

use super::layout::{Layout, Section};
use super::text::{Text, TimeLabel, age, number};
use super::{PageResult, Shared, html, see_other};
use crate::admin::access::Caller;
use crate::admin::api::FullStore;
use crate::admin::problem::Problem;

/// The maximum number of events listed.
const MAX_ROWS: usize = 100;

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

/// A dead-lettered event, without its payload.
struct Row {
    id: String,
    kind: Text,
    aggregate: Text,
    bytes: String,
    written: TimeLabel,
    dead: TimeLabel,
    reason: Text,
}

impl Row {
    fn new(dead: &DeadEvent, now: Timestamp) -> Self {
        Self {
            id: dead.event.id.to_string(),
            kind: Text::line(&dead.event.kind),
            aggregate: Text::line(&dead.event.aggregate),
            bytes: number(dead.event.payload.len() as u64),
            written: TimeLabel::new(dead.written_at, now),
            dead: TimeLabel::new(dead.dead_at, now),
            reason: Text::line(&dead.reason),
        }
    }
}

pub(super) async fn page<S: FullStore, O: Store>(
    caller: Caller,
    State(console): Shared<S, O>,
) -> PageResult {
    let (backlog, dead) = tokio::join!(
        console.outbox.outbox_backlog(),
        console.outbox.dead_events(MAX_ROWS)
    );
    let (backlog, dead, now) = (backlog?, dead?, console.now());
    let page = Page {
        layout: Layout::new(&caller, Section::Outbox),
        waiting: number(backlog.waiting),
        or_more: backlog.waiting >= MAX_BACKLOG_COUNTED,
        oldest: backlog.oldest.map(|oldest| age(oldest, now)),
        dead: backlog.dead,
        events: dead.iter().map(|dead| Row::new(dead, now)).collect(),
    };
    Ok(html(StatusCode::OK, &page))
}

/// Queues a dead-lettered event again. Events have no history; only the log says who did this.
pub(super) async fn retry<S: FullStore, O: Store>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
) -> PageResult {
    let by = caller.actor(None)?;
    let id: EventId = id.parse().map_err(|_| Problem::dead_event_not_found())?;
    if !console.outbox.revive_event(id).await? {
        return Err(Problem::dead_event_not_found());
    }
    tracing::info!(event = %id, by, "an operator queued a dead-lettered event for publishing");
    see_other("/outbox")
}
