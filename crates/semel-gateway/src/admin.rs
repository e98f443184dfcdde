//! The listener for operators: health, readiness, metrics, and the API.

pub mod api;
mod token;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, WWW_AUTHENTICATE};
use http::uri::Authority;
use http::{HeaderMap, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use semel_core::Outbox;
use tokio::net::TcpListener;

pub use api::{Api, Whole};
pub use token::Token;

use crate::tenant::{bearer, only};

/// How long the store may take to say that it is there. Orchestrators give a probe about a
/// second; after this it is not ready.
pub const READY_WITHIN: Duration = Duration::from_secs(2);

/// Where the metrics are.
const METRICS: &str = "/metrics";

/// The paths of the admin listener.
///
/// With a token, `/healthz` and `/readyz` are open and everything else asks for it; a path that
/// does not exist, too. Without one, only callers on this machine are served.
///
/// `ready` asks the store, and its error says what is wrong. `outbox` is the store's own, without
/// what is around it.
pub fn router<R, F, S, O>(
    token: Option<Token>,
    ready: R,
    metrics: PrometheusHandle,
    api: Api<S>,
    outbox: O,
) -> Router
where
    S: Whole,
    O: Outbox,
    R: Fn() -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let access = Arc::new(token.map_or(Access::Loopback, Access::Token));
    let guarded = Router::new()
        .route(METRICS, get(move || async move { exposition(&metrics) }))
        .merge(api::router(api, outbox))
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is nothing here\n") })
        .layer(middleware::from_fn_with_state(
            Arc::clone(&access),
            authorised,
        ));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || readiness(ready())))
        .merge(guarded)
        .layer(middleware::from_fn_with_state(access, local))
}

/// Serves until `shutdown` is over, and then until the requests under way are answered.
///
/// # Errors
/// When the listener fails.
///
/// # Cancellation
/// Dropping it stops accepting; requests under way are answered by tasks of their own.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
        .with_graceful_shutdown(shutdown)
        .await
}

/// Who may come in.
enum Access {
    Token(Token),
    Loopback,
}

async fn authorised(
    State(access): State<Arc<Access>>,
    headers: HeaderMap,
    request: Request,
    next: Next,
) -> Response {
    match &*access {
        Access::Token(token) if !presents(token, &headers) => (
            StatusCode::UNAUTHORIZED,
            [(WWW_AUTHENTICATE, "Bearer")],
            "send the admin token: Authorization: Bearer TOKEN\n",
        )
            .into_response(),
        // What is counted names nobody, and scrapers have names of their own for this machine.
        Access::Loopback
            if request.uri().path() != METRICS && !names_this_machine(request.headers()) =>
        {
            (
                StatusCode::FORBIDDEN,
                "without an admin token only requests to localhost are served, by that name or \
                 its address; set SEMEL_ADMIN_TOKEN to use another\n",
            )
                .into_response()
        }
        Access::Token(_) | Access::Loopback => next.run(request).await,
    }
}

fn presents(token: &Token, headers: &HeaderMap) -> bool {
    only(headers, &AUTHORIZATION)
        .ok()
        .flatten()
        .and_then(|value| value.to_str().ok())
        .and_then(bearer)
        .is_some_and(|presented| token.is(presented))
}

/// A second check besides that of the configuration: a listener can be handed over.
async fn local(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let peer = request
        .extensions()
        .get::<ConnectInfo<SocketAddr>>()
        .is_some_and(|ConnectInfo(peer)| peer.ip().to_canonical().is_loopback());
    match &*access {
        Access::Loopback if !peer => (
            StatusCode::FORBIDDEN,
            "without an admin token only this machine is served; set SEMEL_ADMIN_TOKEN\n",
        )
            .into_response(),
        Access::Loopback | Access::Token(_) => next.run(request).await,
    }
}

/// A page in a browser on this machine reaches this listener as well, under a name that its author
/// lets point here. It cannot choose the `Host` that the browser then sends.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let host = only(headers, &HOST).ok().flatten();
    let authority = host.and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    authority.is_some_and(|authority| {
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost")
            || host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    })
}

async fn readiness(ready: impl Future<Output = Result<(), String>>) -> (StatusCode, String) {
    match tokio::time::timeout(READY_WITHIN, ready).await {
        Ok(Ok(())) => (StatusCode::OK, "ready\n".to_owned()),
        Ok(Err(reason)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the store does not answer\n".to_owned(),
        ),
    }
}

fn exposition(metrics: &PrometheusHandle) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, kind)], metrics.render()).into_response()
}
