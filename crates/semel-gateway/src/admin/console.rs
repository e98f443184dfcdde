//! The console: HTML pages for operators, rendered on the server. Every page works without the
//! script, which only refreshes the live part of the overview and copies ids.

pub(super) mod assets;
mod charts;
mod dead_letters;
mod decide;
mod layout;
pub(super) mod login;
mod misuse;
mod operation;
mod operations;
mod outbox;
mod overview;
mod text;
mod timeline;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LOCATION};
use http::{HeaderMap, StatusCode};
use semel_core::Store;
use semel_core::Timestamp;
use semel_core::key::KeyHasher;
use semel_worker::Reconcilers;

use super::access::{Caller, operators_only};
use super::api::FullStore;
use super::problem::Problem;
use crate::activity::Counts;
use crate::service::CurrentLayer;
use layout::{Layout, Section};

/// The maximum size of a form: a response written by hand, and its reason.
const MAX_FORM: usize = 2 << 20;

/// Probes the store; the error is the reason shown to operators.
pub(super) type ReadinessProbe =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Vec<String>, String>> + Send + Sync>;

/// What the pages work on.
pub(super) struct Console<S, O> {
    pub(super) store: S,
    /// Finds the outcome of unknown records.
    pub(super) reconcilers: Reconcilers<S>,
    /// Hashes keys as the gateway does, so that records are found by key.
    pub(super) key_hasher: Option<KeyHasher>,
    /// What this process counted.
    pub(super) counts: Counts,
    /// The routes in use, for the names and schemas of their operations.
    pub(super) layer: CurrentLayer<S>,
    /// The bare store's outbox, without wrappers.
    pub(super) outbox: O,
    pub(super) ready: ReadinessProbe,
}

type Shared<S, O> = State<Arc<Console<S, O>>>;

/// A page, or a problem that [`render_problems`] turns into one.
type PageResult = Result<Response, Problem>;

/// The routes of the console. They require the layer that provides the [`Caller`].
pub(super) fn router<S: FullStore, O: Store>(console: Console<S, O>) -> Router {
    let viewer_routes = Router::new()
        .route("/", get(overview::page))
        .route("/fragments/overview", get(overview::fragment))
        .route("/operations", get(operations::page))
        .route("/operations/{id}", get(operation::page))
        .route("/dead-letters", get(dead_letters::page))
        .route("/misuse", get(misuse::page))
        .route("/outbox", get(outbox::page));
    let operator_routes = Router::new()
        .route("/operations/{id}/reveal", post(operation::reveal))
        .route("/operations/{id}/reconcile", post(decide::reconcile))
        .route("/operations/{id}/erase", post(decide::erase))
        .route(
            "/operations/{id}/decide",
            get(decide::page).post(decide::decide),
        )
        .route("/outbox/{id}/retry", post(outbox::retry))
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .route_layer(middleware::from_fn(operators_only));
    viewer_routes
        .merge(operator_routes)
        .route_layer(middleware::from_fn(render_problems))
        .with_state(Arc::new(console))
}

/// The fallback of the listener: a page for browsers, a problem for programs.
pub(super) async fn not_found(caller: Caller, headers: HeaderMap) -> Response {
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    if !accepts.is_some_and(|accepts| accepts.contains("text/html")) {
        return Problem::path_not_found().into_response();
    }
    let page = layout::ErrorPage {
        layout: Layout::new(&caller, Section::Other),
        status: StatusCode::NOT_FOUND.as_u16(),
        title: "Page not found",
        detail: text::Text::line("No page has this address."),
        advice: "",
    };
    html(StatusCode::NOT_FOUND, &page)
}

/// Replaces the JSON of a [`Problem`] by an HTML page.
async fn render_problems(caller: Caller, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    match response.extensions().get::<Problem>() {
        Some(problem) => {
            let status = problem.status();
            let page = layout::ErrorPage {
                layout: Layout::new(&caller, Section::Other),
                status: status.as_u16(),
                title: problem.title(),
                detail: text::Text::line(problem.detail()),
                advice: advice(status),
            };
            html(status, &page)
        }
        None => response,
    }
}

impl<S: FullStore, O: Store> Console<S, O> {
    /// The store's clock, which all times on a page refer to.
    fn now(&self) -> Timestamp {
        self.store.clock().now()
    }

    /// The name that users see of an operation in the store.
    fn shown_operation(&self, stored: &str) -> Box<str> {
        self.layer.load().shown_operation(stored).into()
    }
}

fn advice(status: StatusCode) -> &'static str {
    match status {
        StatusCode::CONFLICT => {
            "Nothing was changed. Go back, reload the record and check its status."
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            "If you submitted a decision, check the record before you repeat it: it may have been \
             applied."
        }
        _ => "",
    }
}

fn html(status: StatusCode, page: &impl askama::Template) -> Response {
    let headers = [
        (
            CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        ),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    match page.render() {
        Ok(body) => (status, headers, body).into_response(),
        Err(error) => Problem::internal(&error.to_string()).into_response(),
    }
}

/// Redirects to a page after a form was processed.
fn see_other(location: &str) -> PageResult {
    let location = HeaderValue::from_str(location)
        .map_err(|_| Problem::internal("the redirect address is not a valid header value"))?;
    let headers = [
        (LOCATION, location),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((StatusCode::SEE_OTHER, headers).into_response())
}
