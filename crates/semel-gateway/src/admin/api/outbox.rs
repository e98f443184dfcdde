//! Events that go out: how many wait, and those that no broker took.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::middleware;
use semel_core::outbox::{DeadEvent, EventId, MAX_BACKLOG_COUNTED, Outbox};
use semel_core::{Clock, Timestamp};
use semel_http::rfc3339 as time;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::decide::{self, Reason};
use super::extract::{Asked, Id, Sent};
use super::view::age_seconds;
use super::{Answer, MAX_DECISION, PAGE, json, words};
use crate::admin::access::{Caller, operators_only};
use crate::admin::document::{NotAsked, NotDecided, NotThere, Refused, Unanswered, documented};
use crate::admin::problem::Problem;

/// What this part of the API needs.
struct Post<O> {
    outbox: O,
    clock: Arc<dyn Clock>,
}

type Shared<O> = State<Arc<Post<O>>>;

/// The paths below `/api/v1/outbox`.
pub(super) fn router<O: Outbox>(outbox: O, clock: Arc<dyn Clock>) -> OpenApiRouter {
    let decisions = OpenApiRouter::new()
        .routes(documented(__path_retry, retry::<O>))
        .layer(DefaultBodyLimit::max(MAX_DECISION))
        .route_layer(middleware::from_fn(operators_only));
    OpenApiRouter::new()
        .routes(documented(__path_list, list::<O>))
        .merge(decisions)
        .with_state(Arc::new(Post { outbox, clock }))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Filters {
    /// How many at most, from 1 to 1000; 50 unless it is told.
    #[serde(default)]
    #[param(schema_with = words::limit_or_none)]
    limit: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = OutboxPage)]
struct Shown {
    /// Counted up to a bound, which is said where it is reached.
    waiting: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    waiting_or_more: bool,
    #[schema(required = true)]
    oldest_age_seconds: Option<f64>,
    dead: u64,
    dead_events: Vec<ShownEvent>,
}

/// The payload is the application's affair, and not shown.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadEvent)]
struct ShownEvent {
    #[schema(format = "uuid")]
    id: String,
    kind: String,
    aggregate: String,
    payload_bytes: usize,
    #[schema(format = DateTime)]
    written_at: String,
    #[schema(format = DateTime)]
    dead_at: String,
    reason: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = RevivedEvent)]
struct Revived {
    #[schema(format = "uuid")]
    id: String,
    status: EventStatus,
}

/// Where an event stands.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum EventStatus {
    Waiting,
}

/// Events that go out: how many wait, and those that wait for a person.
#[utoipa::path(
    get,
    path = "/outbox",
    operation_id = "list_outbox",
    tag = "outbox",
    params(Filters),
    responses(
        (status = 200, description = "Newest first.", body = Shown),
        NotAsked,
        Refused,
        Unanswered,
    ),
)]
async fn list<O: Outbox>(State(api): Shared<O>, Asked(filters): Asked<Filters>) -> Answer {
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

/// Publishes an event again that no broker took.
///
/// The log is the only place where it is told who said so: an event has no history.
#[utoipa::path(
    post,
    path = "/outbox/{id}/retry",
    operation_id = "retry_event",
    tag = "outbox",
    security(("token" = []), ("session" = [], "csrf" = [])),
    params(("id" = String, Path, description = "The event's.", format = "uuid")),
    request_body = Reason,
    responses(
        (status = 200, description = "It waits to be published.", body = Revived),
        NotDecided,
        NotThere,
        Refused,
        Unanswered,
    ),
)]
async fn retry<O: Outbox>(
    caller: Caller,
    State(api): Shared<O>,
    Id(id): Id,
    Sent(asked): Sent<Reason>,
) -> Answer {
    let by = caller.actor(asked.by.as_deref())?;
    let reason = decide::reason(&asked.reason)?;
    let id: EventId = id.parse().map_err(|_| Problem::no_dead_event())?;
    if !api.outbox.revive(id).await? {
        return Err(Problem::no_dead_event());
    }
    tracing::info!(event = %id, by, reason, "an operator wants an event published again");
    Ok(json(&Revived {
        id: id.to_string(),
        status: EventStatus::Waiting,
    }))
}
