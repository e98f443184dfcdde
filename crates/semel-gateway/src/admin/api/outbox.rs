//! Events that go out: how many wait, and those that no broker took.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::routing::{get, post};
use http::HeaderMap;
use semel_core::outbox::{DeadEvent, EventId, MAX_BACKLOG_COUNTED, Outbox};
use semel_core::{Clock, Timestamp};
use semel_http::rfc3339 as time;
use serde::{Deserialize, Serialize};

use super::decide::{self, Reason};
use super::problem::Problem;
use super::view::age_seconds;
use super::{Answer, MAX_DECISION, PAGE, json};

/// What this part of the API needs.
struct Post<O> {
    outbox: O,
    clock: Arc<dyn Clock>,
}

type Shared<O> = State<Arc<Post<O>>>;

/// The paths below `/api/v1/outbox`.
pub(super) fn router<O: Outbox>(outbox: O, clock: Arc<dyn Clock>) -> Router {
    Router::new()
        .route("/outbox", get(list::<O>))
        .route("/outbox/{id}/retry", post(retry::<O>))
        .layer(DefaultBodyLimit::max(MAX_DECISION))
        .with_state(Arc::new(Post { outbox, clock }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Filters {
    #[serde(default)]
    limit: String,
}

#[derive(Serialize)]
struct Shown {
    /// Counted up to a bound, which is said where it is reached.
    waiting: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    waiting_or_more: bool,
    oldest_age_seconds: Option<f64>,
    dead: u64,
    dead_events: Vec<ShownEvent>,
}

/// The payload is the application's affair, and not shown.
#[derive(Serialize)]
struct ShownEvent {
    id: String,
    kind: String,
    aggregate: String,
    payload_bytes: usize,
    written_at: String,
    dead_at: String,
    reason: String,
}

#[derive(Serialize)]
struct Revived {
    id: String,
    status: &'static str,
}

async fn list<O: Outbox>(
    State(api): Shared<O>,
    filters: Result<Query<Filters>, QueryRejection>,
) -> Answer {
    let Query(filters) = filters.map_err(|refused| Problem::query(refused.body_text()))?;
    let limit = match &*filters.limit {
        "" => PAGE,
        limit => super::limit(limit)?,
    };
    let backlog = api.outbox.backlog().await?;
    let dead = api.outbox.dead_events(limit).await?;
    let now: Timestamp = api.clock.now();
    Ok(json(&Shown {
        waiting: backlog.waiting,
        waiting_or_more: backlog.waiting >= MAX_BACKLOG_COUNTED,
        oldest_age_seconds: backlog.oldest.map(|oldest| age_seconds(oldest, now)),
        dead: backlog.dead,
        dead_events: dead.iter().map(shown).collect(),
    }))
}

fn shown(dead: &DeadEvent) -> ShownEvent {
    let DeadEvent {
        event,
        written_at,
        dead_at,
        reason,
    } = dead;
    ShownEvent {
        id: event.id.to_string(),
        kind: event.kind.to_string(),
        aggregate: event.aggregate.to_string(),
        payload_bytes: event.payload.len(),
        written_at: time(*written_at),
        dead_at: time(*dead_at),
        reason: reason.to_string(),
    }
}

/// The log is the only place where it is told who said so: an event has no history.
async fn retry<O: Outbox>(
    State(api): Shared<O>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let asked: Reason = if body.is_empty() {
        decide::read(&headers, b"{}")?
    } else {
        decide::read(&headers, &body)?
    };
    let by = decide::who(asked.by.as_deref())?;
    let reason = decide::reason(&asked.reason)?;
    let id: EventId = id.parse().map_err(|_| Problem::no_dead_event())?;
    if !api.outbox.revive(id).await? {
        return Err(Problem::no_dead_event());
    }
    tracing::info!(event = %id, by, reason, "an operator wants an event published again");
    Ok(json(&Revived {
        id: id.to_string(),
        status: "waiting",
    }))
}
