//! The operators' API: what is remembered, and the decisions that only a person can take.

mod decide;
mod events;
mod outbox;
mod problem;
mod view;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use semel_core::store;
use semel_core::{Inbox, Inspect, Key, Maintain, OperationId, Outbox, Record, Status, Store};
use semel_worker::Reconcilers;
use serde::{Deserialize, Serialize};

use crate::observed::Events;
use problem::Problem;

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
pub trait Whole: Store + Maintain + Inspect + Inbox + Clone {}

impl<S: Store + Maintain + Inspect + Inbox + Clone> Whole for S {}

/// The paths below `/api/v1`.
pub(super) fn router<S: Whole, O: Outbox>(api: Api<S>, outbox: O) -> Router {
    let outbox = outbox::router(outbox, api.store.clock());
    let decisions = Router::new()
        .route("/operations/{id}/resolve", post(decide::resolve::<S>))
        .route("/operations/{id}/reconcile", post(decide::reconcile::<S>))
        .route("/operations/{id}/erase", post(decide::erase::<S>))
        .layer(DefaultBodyLimit::max(MAX_DECISION));
    let looks = Router::new()
        .route("/operations", get(list::<S>))
        .route("/operations/{id}", get(show::<S>))
        .route("/stats", get(stats::<S>))
        .route("/events", get(events::stream::<S>));
    Router::new()
        .nest("/api/v1", looks.merge(decisions))
        .with_state(Arc::new(api))
        .nest("/api/v1", outbox)
}

type Shared<S> = State<Arc<Api<S>>>;
type Answer = Result<Response, Problem>;

/// Which operations to list. A filter that is empty is none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Filters {
    #[serde(default)]
    status: String,
    #[serde(default)]
    tenant: String,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    key: String,
    #[serde(default)]
    dead_lettered: String,
    #[serde(default)]
    limit: String,
    #[serde(default)]
    cursor: String,
}

async fn list<S: Whole>(
    State(api): Shared<S>,
    filters: Result<Query<Filters>, axum::extract::rejection::QueryRejection>,
) -> Answer {
    let Query(filters) = filters.map_err(|refused| Problem::query(refused.body_text()))?;
    let page = api.store.list(filters.query()?).await?;
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
        })
    }
}

fn limit(text: &str) -> Result<usize, Problem> {
    let limit = text.parse().ok();
    limit
        .filter(|limit| (1..=store::MAX_BATCH).contains(limit))
        .ok_or_else(|| Problem::query("limit is a number from 1 to 1000".to_owned()))
}

/// Whether the stored body is shown: it may hold what is nobody else's business.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reveal {
    #[serde(default)]
    reveal: bool,
}

async fn show<S: Whole>(
    State(api): Shared<S>,
    Path(id): Path<String>,
    reveal: Result<Query<Reveal>, axum::extract::rejection::QueryRejection>,
) -> Answer {
    let Query(Reveal { reveal }) = reveal.map_err(|refused| Problem::query(refused.body_text()))?;
    let record = find(&api.store, &id).await?;
    let history = api.store.history(record.id).await?;
    Ok(json(&view::operation(
        &api.store, &record, &history, reveal,
    )))
}

async fn stats<S: Whole>(State(api): Shared<S>) -> Answer {
    let standing = api.store.standing().await?;
    Ok(json(&view::stats(&standing, api.store.clock().now())))
}

async fn find<S: Inspect>(store: &S, id: &str) -> Result<Record, Problem> {
    let id: OperationId = id.parse().map_err(|_| Problem::not_found())?;
    store.find(id).await?.ok_or_else(Problem::not_found)
}

fn json(shown: &impl Serialize) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    match serde_json::to_vec(shown) {
        Ok(body) => (headers, body).into_response(),
        Err(error) => Problem::internal(&error.to_string()).into_response(),
    }
}
