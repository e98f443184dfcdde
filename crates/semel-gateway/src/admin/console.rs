//! The console: pages for people, rendered here. Everything works without the script, which only
//! refreshes what is live and copies ids.

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
use semel_core::{Outbox, Timestamp};
use semel_worker::Reconcilers;

use super::access::Caller;
use super::api::Whole;
use super::problem::Problem;
use layout::{Layout, Place};

/// The most bytes of a form: a response that somebody writes by hand, and its reason.
const MAX_FORM: usize = 2 << 20;

/// Asks the store whether it is there; the error says what is wrong.
pub(super) type Ready = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// What the pages need.
pub(super) struct Console<S, O> {
    /// Where everything is.
    pub(super) store: S,
    /// How the truth is found.
    pub(super) reconcilers: Reconcilers<S>,
    /// The events that go out: the store's own, without what is around it.
    pub(super) outbox: O,
    /// Whether the store answers.
    pub(super) ready: Ready,
}

type Shared<S, O> = State<Arc<Console<S, O>>>;
type Answer = Result<Response, Problem>;

/// The pages. They are to be inside whatever says who the [`Caller`] is.
pub(super) fn router<S: Whole, O: Outbox>(console: Console<S, O>) -> Router {
    let looks = Router::new()
        .route("/", get(overview::page))
        .route("/fragments/overview", get(overview::fragment))
        .route("/operations", get(operations::page))
        .route("/operations/{id}", get(operation::page))
        .route("/dead-letters", get(dead_letters::page))
        .route("/misuse", get(misuse::page))
        .route("/outbox", get(outbox::page));
    // What changes or uncovers something: no handler in here can forget to ask for the role.
    let decisions = Router::new()
        .route("/operations/{id}/reveal", post(operation::reveal))
        .route("/operations/{id}/reconcile", post(decide::reconcile))
        .route("/operations/{id}/erase", post(decide::erase))
        .route(
            "/operations/{id}/decide",
            get(decide::page).post(decide::decide),
        )
        .route("/outbox/{id}/retry", post(outbox::retry))
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .route_layer(middleware::from_fn(operators));
    looks.merge(decisions).with_state(Arc::new(console))
}

/// What is nowhere.
pub(super) async fn missing(caller: Caller, headers: HeaderMap) -> Response {
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    if !accepts.is_some_and(|accepts| accepts.contains("text/html")) {
        return Problem::nothing_here().into_response();
    }
    let page = layout::ErrorPage {
        layout: Layout::new(&caller, Place::Elsewhere),
        status: StatusCode::NOT_FOUND.as_u16(),
        title: "There is nothing here",
        detail: text::Text::line("No page has this address."),
        advice: "",
    };
    html(StatusCode::NOT_FOUND, &page)
}

async fn operators(caller: Caller, request: Request, next: Next) -> Response {
    match caller.operator() {
        Ok(()) => next.run(request).await,
        Err(problem) => told(&caller, Err(problem)),
    }
}

impl<S: Whole, O: Outbox> Console<S, O> {
    /// All times on a page are told by the store's clock.
    fn now(&self) -> Timestamp {
        self.store.clock().now()
    }
}

/// An answer, or the page that says why there is none.
fn told(caller: &Caller, answer: Answer) -> Response {
    answer.unwrap_or_else(|problem| {
        let status = problem.status();
        let page = layout::ErrorPage {
            layout: Layout::new(caller, Place::Elsewhere),
            status: status.as_u16(),
            title: problem.title(),
            detail: text::Text::line(problem.detail()),
            advice: advice(status),
        };
        html(status, &page)
    })
}

fn advice(status: StatusCode) -> &'static str {
    match status {
        StatusCode::CONFLICT => {
            "Nothing was changed. Go back, load the operation again, and look at how it stands now."
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            "If you were deciding something, look at the operation before you repeat it: whether \
             it was done may not be known."
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

/// After a form was acted upon: another page, by GET.
fn see_other(place: &str) -> Answer {
    let place = HeaderValue::from_str(place)
        .map_err(|_| Problem::internal("an address cannot be written"))?;
    let headers = [
        (LOCATION, place),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((StatusCode::SEE_OTHER, headers).into_response())
}
