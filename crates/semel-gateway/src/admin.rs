//! The listener for operators: health, readiness, metrics, the API, and who may come in.

mod access;
mod acts;
pub mod api;
mod console;
mod document;
mod problem;
mod token;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use metrics_exporter_prometheus::PrometheusHandle;
use semel_core::Outbox;
use tokio::net::TcpListener;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;

pub use access::Access;
pub use api::{Api, Whole};
pub use token::Token;

use access::Gate;
use console::Console;
use document::{Common, Refused, documented};
use problem::Problem;

/// How long the store may take to say that it is there. Orchestrators give a probe about a
/// second; after this it is not ready.
pub const READY_WITHIN: Duration = Duration::from_secs(2);

/// Where the metrics are.
const METRICS: &str = "/metrics";

/// What goes with every answer. Nothing runs in a browser, or is loaded by it, but what this
/// listener serves itself; nothing is kept, framed, or taken for another type than it says.
///
/// The address of a page goes to no other site. Within this one it does: with `no-referrer`
/// browsers write `Origin: null` on our own forms, and they could not be told from a stranger's.
const ALWAYS: [(HeaderName, &str); 6] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; \
         connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "same-origin"),
    (X_FRAME_OPTIONS, "DENY"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// The paths of the admin listener.
///
/// With a token, `/healthz`, `/readyz` and `/login` are open and everything else asks for it; a
/// path that does not exist, too. Without one, only callers on this machine are served.
///
/// `ready` asks the store, and its error says what is wrong. `outbox` is the store's own, without
/// what is around it.
pub fn router<R, F, S, O>(
    access: Access,
    ready: R,
    metrics: PrometheusHandle,
    api: Api<S>,
    outbox: O,
) -> Router
where
    S: Whole,
    O: Outbox + Clone,
    R: Fn() -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let gate = Gate::new(access, api.store.clock());
    let pages = Console {
        store: api.store.clone(),
        reconcilers: api.reconcilers.clone(),
        outbox: outbox.clone(),
        ready: {
            let ready = ready.clone();
            Arc::new(move || Box::pin(ready()))
        },
    };
    let written = Arc::new(OnceLock::new());
    let describe = {
        let written = Arc::clone(&written);
        move || async move { description(&written) }
    };
    let (open, open_paths) = OpenApiRouter::with_openapi(Common::openapi())
        .routes(documented(__path_health, health))
        .routes(documented(__path_readiness, move || readiness(ready())))
        .split_for_parts();
    let (guarded, guarded_paths) = OpenApiRouter::new()
        .routes(documented(__path_exposition, move || async move {
            exposition(&metrics)
        }))
        .routes(documented(__path_description, describe))
        .merge(api::router(api, outbox))
        .split_for_parts();
    let mut document = open_paths.merge_from(guarded_paths);
    document.components.as_mut().map(api::narrow);
    written.get_or_init(|| document.to_json().map(Bytes::from).ok());

    let guarded = guarded
        .merge(console::router(pages))
        .fallback(console::missing)
        .method_not_allowed_fallback(|| async { Problem::method() });
    let paths = open
        .merge(gate.entrance())
        .merge(console::assets::router())
        .merge(gate.guard(guarded));
    gate.local(paths).layer(middleware::from_fn(always))
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

async fn always(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    for (name, value) in ALWAYS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // What may be kept says so itself.
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    answer
}

/// Whether the process is there.
#[utoipa::path(
    get,
    path = "/healthz",
    operation_id = "health",
    tag = "process",
    security(()),
    responses((status = 200, description = "It is.", body = String, content_type = "text/plain")),
)]
async fn health() -> &'static str {
    "ok\n"
}

/// Whether the store answers.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readiness",
    tag = "process",
    security(()),
    responses(
        (status = 200, description = "It does.", body = String, content_type = "text/plain"),
        (status = 503, description = "It does not, and why.", body = String, content_type = "text/plain"),
    ),
)]
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

/// What was counted, for Prometheus.
#[utoipa::path(
    get,
    path = METRICS,
    operation_id = "metrics",
    tag = "process",
    responses(
        (status = 200, description = "In the text format 0.0.4.", body = String, content_type = "text/plain"),
        Refused,
    ),
)]
fn exposition(metrics: &PrometheusHandle) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, kind)], metrics.render()).into_response()
}

/// This document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "openapi",
    tag = "process",
    responses(
        (status = 200, description = "OpenAPI 3.1.", body = Object, content_type = "application/json"),
        Refused,
    ),
)]
fn description(written: &OnceLock<Option<Bytes>>) -> Response {
    match written.get().cloned().flatten() {
        Some(written) => ([(CONTENT_TYPE, "application/json")], written).into_response(),
        None => Problem::internal("the document cannot be written").into_response(),
    }
}

/// Bytes as people write them.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
