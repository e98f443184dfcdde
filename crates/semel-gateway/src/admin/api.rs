//! The admin API: records, statistics, events, and operator actions.

pub(super) mod decide;
mod events;
pub(super) mod extract;
mod outbox;
mod schema;
mod statistics;
mod view;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use semel_core::key::KeyHasher;
use semel_core::store;
use semel_core::{Actor, Key, OperationId, Status, Store};
use semel_worker::Reconcilers;
use serde::{Deserialize, Serialize};
use utoipa_axum::router::OpenApiRouter;

pub(super) use schema::{StatusView, restrict_decisions};

use super::access::{Caller, operators_only};
use super::actions;
use super::openapi::{AuthProblems, NotFoundProblem, QueryProblems, StoreProblems, documented};
use super::problem::Problem;
use crate::activity::Counts;
use crate::observed::Events;
use crate::service::CurrentLayer;
use extract::{PathId, QueryParams};

/// The maximum size of a request body: a response written by hand, and its reason.
const MAX_DECISION: usize = 2 << 20;

/// The default page size.
const DEFAULT_LIMIT: usize = 50;

/// What the admin API works on.
#[derive(Debug)]
pub struct Api<S> {
    /// The record store.
    pub store: S,
    /// Finds the outcome of unknown records.
    pub reconcilers: Reconcilers<S>,
    /// The transitions of this process, as they happen.
    pub events: Events,
    /// Hashes keys as the gateway does, so that records are found by key.
    pub key_hasher: Option<KeyHasher>,
    /// What this process counted, for the weak keys on the console.
    pub counts: Counts,
    /// The routes in use, for the names and schemas of their operations.
    pub layer: CurrentLayer<S>,
}

/// Every store interface, as the admin API needs it.
pub trait FullStore: Store + Clone {}

impl<S: Store + Clone> FullStore for S {}

/// The routes below `/api/v1`.
pub(super) fn router<S: FullStore, O: Store>(api: Api<S>, outbox: O) -> OpenApiRouter {
    let outbox = outbox::router(outbox, api.store.clock());
    let operator_routes = OpenApiRouter::new()
        .routes(documented(decide::__path_resolve, decide::resolve::<S>))
        .routes(documented(decide::__path_reconcile, decide::reconcile::<S>))
        .routes(documented(decide::__path_erase, decide::erase::<S>))
        .layer(DefaultBodyLimit::max(MAX_DECISION))
        .route_layer(middleware::from_fn(operators_only));
    let viewer_routes = OpenApiRouter::new()
        .routes(documented(__path_list, list::<S>))
        .routes(documented(__path_show, show::<S>))
        .routes(documented(statistics::__path_stats, statistics::stats::<S>))
        .routes(documented(
            statistics::__path_activity,
            statistics::activity::<S>,
        ))
        .routes(documented(
            statistics::__path_misuse,
            statistics::misuse::<S>,
        ))
        .routes(documented(events::__path_stream, events::stream::<S>));
    let operations = viewer_routes
        .merge(operator_routes)
        .with_state(Arc::new(api));
    OpenApiRouter::new().nest("/api/v1", operations.merge(outbox))
}

type Shared<S> = State<Arc<Api<S>>>;
type ApiResult = Result<Response, Problem>;

/// Filters of the record list. An empty filter matches everything.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Filters {
    /// The record's status.
    #[serde(default)]
    #[param(schema_with = schema::status_or_none)]
    status: String,
    /// The tenant.
    #[serde(default)]
    tenant: String,
    /// The operation name, such as `create_payment`; also one that it was renamed from.
    #[serde(default)]
    operation: String,
    /// The idempotency key, exactly as the client sent it, or its hash from a record.
    #[serde(default)]
    #[param(max_length = 255, pattern = "^[ -~]*$")]
    key: String,
    /// Only dead-lettered records, or only others.
    #[serde(default)]
    #[param(schema_with = schema::boolean_or_none)]
    dead_lettered: String,
    /// The page size, from 1 to 1000; default 50. With `key`, the first page lists all indexed
    /// records of that key, even if they exceed the limit.
    #[serde(default)]
    #[param(schema_with = schema::limit_or_none)]
    limit: String,
    /// The `next` of the previous page.
    #[serde(default)]
    #[param(schema_with = schema::cursor_or_none)]
    cursor: String,
}

/// List records, newest first.
#[utoipa::path(
    get,
    path = "/operations",
    operation_id = "list_operations",
    tag = "operations",
    params(Filters),
    responses(
        (status = 200, description = "A page of records.", body = view::RecordPageView),
        QueryProblems,
        AuthProblems,
        StoreProblems,
    ),
)]
async fn list<S: FullStore>(
    caller: Caller,
    State(api): Shared<S>,
    QueryParams(filters): QueryParams<Filters>,
) -> ApiResult {
    let query = filters.into_query()?;
    let layer = api.layer.load();
    let page = actions::search_records(&layer, api.key_hasher.as_ref(), query).await?;
    Ok(json(&view::page(&caller, &layer, &page)))
}

impl Filters {
    fn into_query(self) -> Result<store::Query, Problem> {
        let given = |text: String| (!text.is_empty()).then_some(text);
        let invalid = |detail: &str| Problem::invalid_query(detail.to_owned());
        let limit = given(self.limit).map_or(Ok(DEFAULT_LIMIT), |text| parse_limit(&text))?;
        Ok(store::Query {
            status: given(self.status)
                .map(|status| {
                    Status::from_word(&status).ok_or_else(|| {
                        invalid("invalid status: use in_progress, completed, failed_retryable, unknown or expired")
                    })
                })
                .transpose()?,
            tenant: given(self.tenant).map(Into::into),
            operation: given(self.operation).map(Into::into),
            key: given(self.key)
                .map(|key| Key::new(key).map_err(|error| Problem::invalid_query(error.to_string())))
                .transpose()?,
            dead_lettered: match &*self.dead_lettered {
                "" => None,
                "true" => Some(true),
                "false" => Some(false),
                _ => return Err(invalid("invalid dead_lettered: use true or false")),
            },
            before: given(self.cursor)
                .map(|cursor| {
                    let cursor = cursor.parse().map_err(|_| invalid("invalid cursor: use the next of the previous page"));
                    cursor as Result<OperationId, Problem>
                })
                .transpose()?,
            oldest_first: false,
            limit,
            walk: 0,
        })
    }
}

fn parse_limit(text: &str) -> Result<usize, Problem> {
    // `parse` alone would accept a sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    let limit = text.parse().ok();
    limit
        .filter(|_| digits)
        .filter(|limit| (1..=store::MAX_BATCH).contains(limit))
        .ok_or_else(|| {
            Problem::invalid_query("invalid limit: use a number from 1 to 1000".to_owned())
        })
}

/// Whether to return the stored body, which may contain personal data.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Reveal {
    /// Return the stored body. Requires the operator role; the history lists it.
    #[serde(default)]
    #[param(schema_with = schema::boolean)]
    reveal: bool,
}

/// Show a record and its history.
#[utoipa::path(
    get,
    path = "/operations/{id}",
    operation_id = "show_operation",
    tag = "operations",
    params(("id" = String, Path, description = "The record id.", format = "uuid"), Reveal),
    responses(
        (status = 200, description = "The record and its history.", body = view::RecordView),
        QueryProblems,
        NotFoundProblem,
        AuthProblems,
        StoreProblems,
    ),
)]
async fn show<S: FullStore>(
    caller: Caller,
    State(api): Shared<S>,
    PathId(id): PathId,
    QueryParams(Reveal { reveal }): QueryParams<Reveal>,
) -> ApiResult {
    let mut record = actions::find_record(&api.store, &id).await?;
    if reveal {
        caller.require_operator()?;
    }
    if reveal && record.state.status() == Status::Completed {
        let who = caller.actor(None)?;
        record = actions::reveal_response(&api.store, &id, Actor::from(&*who)).await?;
    }
    let history = api.store.history(record.id).await?;
    let view = view::record(&caller, &api.layer.load(), &record, &history, reveal);
    Ok(json(&view))
}

fn json(view: &impl Serialize) -> Response {
    let kind = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    match serde_json::to_vec(view) {
        Ok(body) => (kind, body).into_response(),
        Err(error) => Problem::internal(&error.to_string()).into_response(),
    }
}
