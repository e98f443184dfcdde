//! The admin listener: health, readiness, metrics, the admin API, the console, and access control.

mod access;
mod actions;
pub mod api;
mod console;
mod openapi;
mod problem;
mod token;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{Method, StatusCode, Uri};
use metrics_exporter_prometheus::PrometheusHandle;
use semel_core::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;

pub use access::Access;
pub use api::{Api, FullStore};
pub use token::Token;

use crate::error_pages::ERROR_PATH;
use crate::server::{self, Drained, Limits};
use access::AccessGuard;
use console::Console;
use openapi::{AuthProblems, BaseDocument, documented};
use problem::Problem;

/// The readiness timeout. Orchestrators give a probe about a second; a store that takes longer than
/// this is not ready.
pub const READY_WITHIN: Duration = Duration::from_secs(2);

/// Concurrent connections: many times what probes, scrapers and operators need.
const MAX_CONNECTIONS: usize = 512;

/// The path of the Prometheus metrics.
const METRICS: &str = "/metrics";

/// Security headers of every response. A browser runs and loads only what this listener serves,
/// and does not frame a page or guess a content type.
///
/// `Referrer-Policy` is `same-origin` and not `no-referrer`: with the latter, browsers send
/// `Origin: null` with our own forms, and the origin check would refuse them.
const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
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

/// The routes of the admin listener.
///
/// With a token, `/healthz`, `/readyz`, `/login`, the assets and the pages of the error codes are
/// open. Every other path requires
/// the token, also one that does not exist. Without a token, only loopback callers are served.
///
/// `ready` probes the store, and describes it in lines; its error is the reason shown to operators.
/// `outbox` is the bare store, without its wrappers.
pub fn router<R, F, S, O>(
    access: Access,
    ready: R,
    metrics: PrometheusHandle,
    api: Api<S>,
    outbox: O,
) -> Router
where
    S: FullStore,
    O: Store + Clone,
    R: Fn() -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Vec<String>, String>> + Send + 'static,
{
    let guard = AccessGuard::new(access, api.store.clock());
    let pages = Console {
        store: api.store.clone(),
        reconcilers: api.reconcilers.clone(),
        key_hasher: api.key_hasher.clone(),
        counts: api.counts.clone(),
        layer: Arc::clone(&api.layer),
        outbox: outbox.clone(),
        ready: {
            let ready = ready.clone();
            Arc::new(move || Box::pin(ready()))
        },
    };
    let document_json = Arc::new(OnceLock::new());
    let serve_document = {
        let document_json = Arc::clone(&document_json);
        move || async move { openapi_document(&document_json) }
    };
    let (open, open_paths) = OpenApiRouter::with_openapi(BaseDocument::openapi())
        .routes(documented(__path_health, health))
        .routes(documented(__path_readiness, move || readiness(ready())))
        .split_for_parts();
    let (guarded, guarded_paths) = OpenApiRouter::new()
        .routes(documented(__path_prometheus_metrics, move || async move {
            prometheus_metrics(&metrics)
        }))
        .routes(documented(__path_openapi_document, serve_document))
        .merge(api::router(api, outbox))
        .split_for_parts();
    let mut document = open_paths.merge_from(guarded_paths);
    document.components.as_mut().map(api::restrict_decisions);
    document_json.get_or_init(|| document.to_json().map(Bytes::from).ok());

    let guarded = guarded
        .merge(console::router(pages))
        .fallback(console::not_found)
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() });
    let routes = open
        .merge(guard.login_routes())
        .merge(console::assets::router())
        .merge(error_pages())
        .merge(guard.protect(guarded));
    guard
        .restrict_to_loopback(routes)
        .layer(middleware::from_fn(add_security_headers))
}

/// Serves until `shutdown` is cancelled, then drains the requests in flight. Clients are bounded as
/// those of the gateway, and in number, so that they cannot take its file descriptors.
///
/// # Cancellation
/// Dropping the future closes every connection at once.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) -> Drained {
    let limits = Limits {
        max_connections: limits.max_connections.min(MAX_CONNECTIONS),
        ..limits
    };
    server::serve(listener, router, limits, None, shutdown).await
}

async fn add_security_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Cacheable responses (the assets) set their own.
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The pages that the `type` of a problem points to: they are the same for all, so no token is
/// needed.
fn error_pages() -> Router {
    let answer = |uri: Uri| async move {
        crate::error_pages::answer(&Method::GET, uri.path()).map(axum::body::Body::from)
    };
    Router::new().route(&format!("{ERROR_PATH}{{code}}"), get(answer))
}

/// Liveness: the process runs.
#[utoipa::path(
    get,
    path = "/healthz",
    operation_id = "health",
    tag = "process",
    security(()),
    responses((status = 200, description = "The process runs.", body = String, content_type = "text/plain")),
)]
async fn health() -> &'static str {
    "ok\n"
}

/// Readiness: the store answers.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readiness",
    tag = "process",
    security(()),
    responses(
        (status = 200, description = "The store answers. Lines after the first describe its server.", body = String, content_type = "text/plain"),
        (status = 503, description = "The store does not answer, or the process is stopping; the body is the reason.", body = String, content_type = "text/plain"),
    ),
)]
async fn readiness(
    ready: impl Future<Output = Result<Vec<String>, String>>,
) -> (StatusCode, String) {
    match tokio::time::timeout(READY_WITHIN, ready).await {
        Ok(Ok(lines)) => {
            let lines = lines.iter().map(|line| format!("{line}\n"));
            (
                StatusCode::OK,
                format!("ready\n{}", lines.collect::<String>()),
            )
        }
        Ok(Err(reason)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the store does not answer\n".to_owned(),
        ),
    }
}

/// Metrics in the Prometheus text format.
#[utoipa::path(
    get,
    path = METRICS,
    operation_id = "metrics",
    tag = "process",
    responses(
        (status = 200, description = "Prometheus text format 0.0.4.", body = String, content_type = "text/plain"),
        AuthProblems,
    ),
)]
fn prometheus_metrics(metrics: &PrometheusHandle) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, kind)], metrics.render()).into_response()
}

/// This `OpenAPI` document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "openapi",
    tag = "process",
    responses(
        (status = 200, description = "The OpenAPI 3.1 document.", body = Object, content_type = "application/json"),
        AuthProblems,
    ),
)]
fn openapi_document(json: &OnceLock<Option<Bytes>>) -> Response {
    match json.get().cloned().flatten() {
        Some(json) => ([(CONTENT_TYPE, "application/json")], json).into_response(),
        None => Problem::internal("the OpenAPI document could not be serialized").into_response(),
    }
}
