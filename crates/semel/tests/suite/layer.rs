//! The layer in an axum application.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use semel::{KeyRule, Layer, Memory, Operation, Outcome};
use tower::ServiceExt as _;

fn account(head: &Parts) -> Option<String> {
    Some(head.headers.get("x-account-id")?.to_str().ok()?.to_owned())
}

async fn send(app: &Router, path: &str, key: &str) -> (StatusCode, bool, String) {
    let request = Request::post(path)
        .header("x-account-id", "acme")
        .header("idempotency-key", key)
        .body(Body::from("{}"))
        .unwrap();
    let (head, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let replayed = head.headers.contains_key("idempotent-replayed");
    (
        head.status,
        replayed,
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

#[tokio::test]
async fn a_handler_gets_its_operation() {
    let handler = |operation: Operation| async move {
        format!(
            "{} {}",
            operation.attempt(),
            operation.downstream_key("charge")
        )
    };
    let directory = tempfile::tempdir().unwrap();
    let store = semel::Sqlite::open(directory.path().join("semel.db"))
        .await
        .unwrap();
    let app = Router::new().route("/payments", post(handler)).layer(
        Layer::new(store)
            .tenant(account)
            .route("POST /payments", |route| route.operation("create_payment")),
    );
    let (status, replayed, first) = send(&app, "/payments", "k1").await;
    assert_eq!((status, replayed), (StatusCode::OK, false));
    assert!(first.starts_with("1 "));
    assert_eq!(
        send(&app, "/payments", "k1").await,
        (StatusCode::OK, true, first)
    );
}

#[tokio::test]
async fn an_outcome_of_the_handler_decides_the_record() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let handler = move |operation: Operation| async move {
        counted.fetch_add(1, Ordering::SeqCst);
        match operation.attempt() {
            1 => Err(Outcome::not_executed("provider_unreachable")),
            2 => Err(Outcome::unknown("provider_timeout")),
            _ => Ok("charged"),
        }
    };
    let app = Router::new()
        .route("/payments", post(handler))
        .layer(Layer::new(Memory::default()).tenant(account));
    let (status, _, body) = send(&app, "/payments", "k1").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains("operation_not_executed"), "{body}");
    let (status, _, body) = send(&app, "/payments", "k1").await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert!(body.contains("idempotency_outcome_unknown"), "{body}");
    let (status, _, _) = send(&app, "/payments", "k1").await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// A nested router sees its path without the prefix. If the layer did, two versions of an API
/// would share their keys.
#[tokio::test]
async fn nested_routers_do_not_share_keys() {
    let layer = Layer::new(Memory::default()).tenant(account);
    let version = |answer: &'static str| {
        Router::new()
            .route("/payments", post(move || async move { answer }))
            .layer(layer.clone())
    };
    let app = Router::new()
        .nest("/v1", version("one"))
        .nest("/v2", version("two"));
    assert_eq!(send(&app, "/v1/payments", "k1").await.2, "one");
    assert_eq!(send(&app, "/v2/payments", "k1").await.2, "two");
    let (_, replayed, body) = send(&app, "/v1/payments", "k1").await;
    assert_eq!((replayed, body.as_str()), (true, "one"));
}

#[tokio::test]
async fn an_unguarded_request_has_no_operation() {
    let handler = |operation: Option<Operation>| async move { operation.is_some().to_string() };
    let strict = |_: Operation| async {};
    let app = Router::new()
        .route("/maybe", post(handler))
        .route("/strict", post(strict))
        .layer(
            Layer::new(Memory::default())
                .tenant(account)
                .route("POST /maybe", |route| route.key(KeyRule::Ignored))
                .route("POST /strict", |route| route.key(KeyRule::Ignored)),
        );
    assert_eq!(send(&app, "/maybe", "k1").await.2, "false");
    let (status, _, _) = send(&app, "/strict", "k1").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
}
