//! The outbox: its backlog and its dead-lettered events.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::middleware;
use semel_core::outbox::{DeadEvent, EventId, MAX_BACKLOG_COUNTED};
use semel_core::{Clock, Store, Timestamp};
use semel_http::rfc3339 as time;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::decide::{self, Reason};
use super::extract::{JsonBody, PathId, QueryParams};
use super::view::age_seconds;
use super::{ApiResult, DEFAULT_LIMIT, MAX_DECISION, json, schema};
use crate::admin::access::{Caller, operators_only};
use crate::admin::openapi::{
    AuthProblems, DecisionProblems, NotFoundProblem, QueryProblems, StoreProblems, documented,
};
use crate::admin::problem::Problem;

/// What the outbox routes work on.
struct OutboxApi<O> {
    outbox: O,
    clock: Arc<dyn Clock>,
}

type Shared<O> = State<Arc<OutboxApi<O>>>;

/// The routes below `/api/v1/outbox`.
pub(super) fn router<O: Store>(outbox: O, clock: Arc<dyn Clock>) -> OpenApiRouter {
    let operator_routes = OpenApiRouter::new()
        .routes(documented(__path_retry, retry::<O>))
        .layer(DefaultBodyLimit::max(MAX_DECISION))
        .route_layer(middleware::from_fn(operators_only));
    OpenApiRouter::new()
        .routes(documented(__path_list, list::<O>))
        .merge(operator_routes)
        .with_state(Arc::new(OutboxApi { outbox, clock }))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Filters {
    /// The maximum number of dead-lettered events, from 1 to 1000; default 50.
    #[serde(default)]
    #[param(schema_with = schema::limit_or_none)]
    limit: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = OutboxPage)]
struct OutboxView {
    /// Events waiting to be published. Counted up to a limit; then `waiting_or_more` is true.
    waiting: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    waiting_or_more: bool,
    #[schema(required = true)]
    oldest_age_seconds: Option<f64>,
    dead: u64,
    dead_events: Vec<DeadEventView>,
}

/// A dead-lettered event, without its payload.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadEvent)]
struct DeadEventView {
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
struct RevivedView {
    #[schema(format = "uuid")]
    id: String,
    status: EventStatus,
}

/// The status of an event.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum EventStatus {
    Waiting,
}

/// Show the outbox backlog and the dead-lettered events.
#[utoipa::path(
    get,
    path = "/outbox",
    operation_id = "list_outbox",
    tag = "outbox",
    params(Filters),
    responses(
        (status = 200, description = "Dead-lettered events, newest first.", body = OutboxView),
        QueryProblems,
        AuthProblems,
        StoreProblems,
    ),
)]
async fn list<O: Store>(
    State(api): Shared<O>,
    QueryParams(filters): QueryParams<Filters>,
) -> ApiResult {
    let limit = match &*filters.limit {
        "" => DEFAULT_LIMIT,
        limit => super::parse_limit(limit)?,
    };
    let backlog = api.outbox.outbox_backlog().await?;
    let dead = api.outbox.dead_events(limit).await?;
    let now: Timestamp = api.clock.now();
    Ok(json(&OutboxView {
        waiting: backlog.waiting,
        waiting_or_more: backlog.waiting >= MAX_BACKLOG_COUNTED,
        oldest_age_seconds: backlog.oldest.map(|oldest| age_seconds(oldest, now)),
        dead: backlog.dead,
        dead_events: dead.iter().map(dead_event).collect(),
    }))
}

fn dead_event(dead: &DeadEvent) -> DeadEventView {
    let DeadEvent {
        event,
        written_at,
        dead_at,
        reason,
    } = dead;
    DeadEventView {
        id: event.id.to_string(),
        kind: event.kind.to_string(),
        aggregate: event.aggregate.to_string(),
        payload_bytes: event.payload.len(),
        written_at: time(*written_at),
        dead_at: time(*dead_at),
        reason: reason.to_string(),
    }
}

/// Publish a dead-lettered event again.
///
/// Events have no history; only the log says who asked for it.
#[utoipa::path(
    post,
    path = "/outbox/{id}/retry",
    operation_id = "retry_event",
    tag = "outbox",
    security(("token" = []), ("session" = [], "csrf" = [])),
    params(("id" = String, Path, description = "The event id.", format = "uuid")),
    request_body = Reason,
    responses(
        (status = 200, description = "The event waits to be published.", body = RevivedView),
        DecisionProblems,
        NotFoundProblem,
        AuthProblems,
        StoreProblems,
    ),
)]
async fn retry<O: Store>(
    caller: Caller,
    State(api): Shared<O>,
    PathId(id): PathId,
    JsonBody(body): JsonBody<Reason>,
) -> ApiResult {
    let by = caller.actor(body.by.as_deref())?;
    let reason = decide::reason(&body.reason)?;
    let id: EventId = id.parse().map_err(|_| Problem::dead_event_not_found())?;
    if !api.outbox.revive_event(id).await? {
        return Err(Problem::dead_event_not_found());
    }
    tracing::info!(event = %id, by, reason, "an operator queued a dead-lettered event for publishing");
    Ok(json(&RevivedView {
        id: id.to_string(),
        status: EventStatus::Waiting,
    }))
}
