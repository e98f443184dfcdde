//! The operators' API: what is remembered, and the decisions that only a person can take.

pub(super) mod decide;
mod events;
pub(super) mod extract;
mod figures;
mod outbox;
mod view;
mod words;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use semel_core::store;
use semel_core::{By, Figures, Inbox, Inspect, Key, Maintain, OperationId, Outbox, Status, Store};
use semel_worker::Reconcilers;
use serde::{Deserialize, Serialize};
use utoipa_axum::router::OpenApiRouter;

pub(super) use words::{StatusWord, narrow};

use super::access::{Caller, operators_only};
use super::acts;
use super::document::{NotAsked, NotThere, Refused, Unanswered, documented};
use super::problem::Problem;
use crate::observed::Events;
use extract::{Asked, Id};

/// The most bytes of a decision: a response that somebody writes by hand, and its reason.
const MAX_DECISION: usize = 2 << 20;

/// How many operations a page has, unless it is told.
const PAGE: usize = 50;

/// What the API needs.
#[derive(Debug)]
pub struct Api<S> {
    /// Where everything is.
    pub store: S,
    /// How the truth is found.
    pub reconcilers: Reconcilers<S>,
    /// What happens, as it happens.
    pub events: Events,
}

/// All that the API needs of a store.
pub trait Whole: Store + Maintain + Inspect + Inbox + Figures + Clone {}

impl<S: Store + Maintain + Inspect + Inbox + Figures + Clone> Whole for S {}

/// The paths below `/api/v1`.
pub(super) fn router<S: Whole, O: Outbox>(api: Api<S>, outbox: O) -> OpenApiRouter {
    let outbox = outbox::router(outbox, api.store.clock());
    let decisions = OpenApiRouter::new()
        .routes(documented(decide::__path_resolve, decide::resolve::<S>))
        .routes(documented(decide::__path_reconcile, decide::reconcile::<S>))
        .routes(documented(decide::__path_erase, decide::erase::<S>))
        .layer(DefaultBodyLimit::max(MAX_DECISION))
        .route_layer(middleware::from_fn(operators_only));
    let looks = OpenApiRouter::new()
        .routes(documented(__path_list, list::<S>))
        .routes(documented(__path_show, show::<S>))
        .routes(documented(figures::__path_stats, figures::stats::<S>))
        .routes(documented(figures::__path_activity, figures::activity::<S>))
        .routes(documented(figures::__path_misuse, figures::misuse::<S>))
        .routes(documented(events::__path_stream, events::stream::<S>));
    let operations = looks.merge(decisions).with_state(Arc::new(api));
    OpenApiRouter::new().nest("/api/v1", operations.merge(outbox))
}

type Shared<S> = State<Arc<Api<S>>>;
type Answer = Result<Response, Problem>;

/// Which operations to list. A filter that is empty is none.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Filters {
    /// Where they stand.
    #[serde(default)]
    #[param(schema_with = words::status_or_none)]
    status: String,
    /// Whose they are.
    #[serde(default)]
    tenant: String,
    /// What was asked for.
    #[serde(default)]
    operation: String,
    /// By which key.
    #[serde(default)]
    #[param(max_length = 255, pattern = "^[ -~]*$")]
    key: String,
    /// Whether they wait for a person.
    #[serde(default)]
    #[param(schema_with = words::boolean_or_none)]
    dead_lettered: String,
    /// How many at most, from 1 to 1000; 50 unless it is told. The first page under a key has all
    /// that are found by it, even if there are more.
    #[serde(default)]
    #[param(schema_with = words::limit_or_none)]
    limit: String,
    /// The `next` of the page before.
    #[serde(default)]
    #[param(schema_with = words::cursor_or_none)]
    cursor: String,
}

/// Operations, newest first.
#[utoipa::path(
    get,
    path = "/operations",
    operation_id = "list_operations",
    tag = "operations",
    params(Filters),
    responses(
        (status = 200, description = "A page of them.", body = view::ShownPage),
        NotAsked,
        Refused,
        Unanswered,
    ),
)]
async fn list<S: Whole>(State(api): Shared<S>, Asked(filters): Asked<Filters>) -> Answer {
    let page = acts::search(&api.store, filters.query()?).await?;
    Ok(json(&view::page(&page)))
}

impl Filters {
    fn query(self) -> Result<store::Query, Problem> {
        let given = |text: String| (!text.is_empty()).then_some(text);
        let wrong = |what: &str| Problem::query(what.to_owned());
        let limit = given(self.limit).map_or(Ok(PAGE), |text| limit(&text))?;
        Ok(store::Query {
            status: given(self.status)
                .map(|status| {
                    Status::from_word(&status).ok_or_else(|| {
                        wrong("status is in_progress, completed, failed_retryable, unknown or expired")
                    })
                })
                .transpose()?,
            tenant: given(self.tenant).map(Into::into),
            operation: given(self.operation).map(Into::into),
            key: given(self.key)
                .map(|key| Key::new(key).map_err(|error| Problem::query(error.to_string())))
                .transpose()?,
            dead_lettered: match &*self.dead_lettered {
                "" => None,
                "true" => Some(true),
                "false" => Some(false),
                _ => return Err(wrong("dead_lettered is true or false")),
            },
            before: given(self.cursor)
                .map(|cursor| {
                    let cursor = cursor.parse().map_err(|_| wrong("cursor is the next of a page"));
                    cursor as Result<OperationId, Problem>
                })
                .transpose()?,
            limit,
            walk: 0,
        })
    }
}

fn limit(text: &str) -> Result<usize, Problem> {
    // Digits only: a sign or a blank is somebody's mistake.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    let limit = text.parse().ok();
    limit
        .filter(|_| digits)
        .filter(|limit| (1..=store::MAX_BATCH).contains(limit))
        .ok_or_else(|| Problem::query("limit is a number from 1 to 1000".to_owned()))
}

/// Whether the stored body is shown: it may hold what is nobody else's business.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Reveal {
    /// Whether the stored body is shown, to operators only.
    #[serde(default)]
    #[param(schema_with = words::boolean)]
    reveal: bool,
}

/// One operation: the record, and its history.
#[utoipa::path(
    get,
    path = "/operations/{id}",
    operation_id = "show_operation",
    tag = "operations",
    params(("id" = String, Path, description = "The operation's.", format = "uuid"), Reveal),
    responses(
        (status = 200, description = "All of it.", body = view::ShownOperation),
        NotAsked,
        NotThere,
        Refused,
        Unanswered,
    ),
)]
async fn show<S: Whole>(
    caller: Caller,
    State(api): Shared<S>,
    Id(id): Id,
    Asked(Reveal { reveal }): Asked<Reveal>,
) -> Answer {
    let mut record = acts::find(&api.store, &id).await?;
    if reveal {
        caller.operator()?;
    }
    if reveal && record.state.status() == Status::Completed {
        let who = caller.actor(None)?;
        record = acts::uncover(&api.store, &id, By::from(&*who)).await?;
    }
    let history = api.store.history(record.id).await?;
    Ok(json(&view::operation(
        &api.store, &record, &history, reveal,
    )))
}

fn json(shown: &impl Serialize) -> Response {
    let kind = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    match serde_json::to_vec(shown) {
        Ok(body) => (kind, body).into_response(),
        Err(error) => Problem::internal(&error.to_string()).into_response(),
    }
}
