//! A route with a command: parsed and validated before the key is reserved, compared by its meaning,
//! and given to the handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::post;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use semel_core::store::Query;
use semel_core::{
    Completion, Decision, Fingerprint, Identity, Key, Memory, OperationId, Policy, Reserve,
    Store as _,
};
use semel_http::{Command, Layer, Route, tenant};
use serde::{Deserialize, Serialize};
use tower::ServiceExt as _;

#[derive(Debug, Deserialize, Serialize)]
struct Refund {
    amount: u64,
    #[serde(default = "euro")]
    currency: String,
}

fn euro() -> String {
    "EUR".to_owned()
}

fn validate(refund: &Refund) -> Result<(), &'static str> {
    if refund.amount == 0 {
        return Err("the amount must not be zero");
    }
    Ok(())
}

struct Shop {
    app: Router,
    store: Memory,
    refunds: Arc<AtomicUsize>,
}

async fn refund(
    State(refunds): State<Arc<AtomicUsize>>,
    Path(payment): Path<String>,
    Command(refund): Command<Refund>,
) -> String {
    refunds.fetch_add(1, Ordering::SeqCst);
    format!("{} {} of {payment}", refund.amount, refund.currency)
}

impl Shop {
    fn new() -> Self {
        Self::with(|route| route.operation("refund").command_with(validate))
    }

    fn with(change: impl FnOnce(Route) -> Route) -> Self {
        let (store, refunds) = (Memory::default(), Arc::default());
        let layer = Layer::new(store.clone())
            .tenant(tenant::header("X-Account"))
            .route("POST /payments/{id}/refunds", change);
        let app = Router::new()
            .route("/payments/{id}/refunds", post(refund))
            .with_state(Arc::clone(&refunds))
            .layer(layer);
        Self {
            app,
            store,
            refunds,
        }
    }

    async fn post(&self, path: &str, kind: &str, body: impl Into<Body>) -> (StatusCode, String) {
        let request = Request::post(path)
            .header("x-account", "acme")
            .header("idempotency-key", "k1")
            .header("content-type", kind)
            .body(body.into())
            .unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn records(&self) -> usize {
        let page = self.store.list(Query::default()).await.unwrap();
        page.operations.len()
    }
}

const PATH: &str = "/payments/7/refunds";
const JSON: &str = "application/json";

#[tokio::test]
async fn requests_are_compared_by_the_command_that_the_handler_is_given() {
    let shop = Shop::new();
    let first = shop.post(PATH, JSON, r#"{"amount":100}"#).await;
    assert_eq!(first, (StatusCode::OK, "100 EUR of 7".to_owned()));
    for (path, kind, body, status) in [
        (PATH, JSON, r#"{"amount":100}"#, 200),
        (PATH, JSON, r#"{ "currency": "EUR", "amount": 100 }"#, 200),
        (
            PATH,
            "application/json; charset=utf-8",
            r#"{"amount":100,"x":1}"#,
            200,
        ),
        (PATH, JSON, r#"{"amount":101}"#, 422),
        (PATH, JSON, r#"{"amount":100,"currency":"USD"}"#, 422),
        // The same command for another payment is another command.
        ("/payments/8/refunds", JSON, r#"{"amount":100}"#, 422),
        ("/payments/7/refunds?dry=1", JSON, r#"{"amount":100}"#, 422),
    ] {
        let (found, text) = shop.post(path, kind, body).await;
        assert_eq!(found, status, "{path} {body}: {text}");
    }
    assert_eq!(shop.refunds.load(Ordering::SeqCst), 1);
}

/// Records of versions that took the path as it was sent, and left the authority out.
#[tokio::test]
async fn record_of_the_first_version_replays_and_another_host_is_misuse() {
    let shop = Shop::new();
    let understood = serde_json::json!({
        "target": { "method": "POST", "path": PATH, "query": null, "headers": [] },
        "command": { "amount": 100, "currency": "EUR" },
    });
    let reserve = Reserve {
        id: OperationId::generate(),
        identity: Identity::new("acme", "refund", Key::new("k1").unwrap()).unwrap(),
        fingerprints: Fingerprint::of_operation("refund", &understood)
            .unwrap()
            .into(),
        owner: "an earlier version".into(),
        policy: Policy::default(),
    };
    let Decision::Execute(grant) = shop.store.reserve(reserve).await.unwrap() else {
        panic!("the key is used");
    };
    let completion = Completion::new(200, Vec::new(), "first");
    shop.store.complete(grant.fence, completion).await.unwrap();
    let replayed = shop.post(PATH, JSON, r#"{"amount":100}"#).await;
    assert_eq!(replayed, (StatusCode::OK, "first".to_owned()));
    let other = shop.post(PATH, JSON, r#"{"amount":101}"#).await;
    assert_eq!(other.0, 422);

    let shop = Shop::new();
    for (host, status) in [("a", 200), ("A.", 200), ("b", 422)] {
        let request = Request::post("/payments/%37/refunds")
            .header("x-account", "acme")
            .header("idempotency-key", "k1")
            .header("content-type", JSON)
            .header("host", host)
            .body(Body::from(r#"{"amount":100}"#))
            .unwrap();
        let response = shop.app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{host}");
    }
    assert_eq!(shop.refunds.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_invalid_command_returns_400_and_leaves_the_key_unused() {
    let shop = Shop::new();
    for (kind, body, detail) in [
        (JSON, "", "EOF"),
        (JSON, "{", "EOF"),
        (JSON, r#"{"amount":"x"}"#, "invalid type"),
        (JSON, r#"{"amount":1,"amount":2}"#, "duplicate field"),
        (JSON, r#"{"amount":0}"#, "must not be zero"),
        ("text/plain", r#"{"amount":1}"#, "content type"),
        (
            "application/json; charset=utf-16",
            r#"{"amount":1}"#,
            "content type",
        ),
    ] {
        let (status, text) = shop.post(PATH, kind, body).await;
        assert_eq!(status, 400, "{body}: {text}");
        assert!(text.contains(r#""code":"request_invalid""#), "{text}");
        assert!(text.contains(detail), "{text}");
        assert_eq!(shop.records().await, 0);
    }
    let (status, _) = shop.post(PATH, JSON, r#"{"amount":1}"#).await;
    assert_eq!((status.as_u16(), shop.records().await), (200, 1));
}

#[tokio::test]
async fn a_command_of_another_type_is_an_error_of_the_service() {
    let shop = Shop::with(Route::command::<u64>);
    assert_eq!(shop.post(PATH, JSON, "1").await.0, 500);
    let shop = Shop::with(|route| route);
    assert_eq!(shop.post(PATH, JSON, r#"{"amount":1}"#).await.0, 500);
    assert_eq!(shop.refunds.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn options_about_the_body_are_refused_beside_a_command() {
    let options = semel_core::fingerprint::Options {
        ignore: vec!["/trace".into()],
        ..Default::default()
    };
    let layer = Layer::new(Memory::default()).tenant(tenant::header("X-Account"));
    let refused = layer.try_route("POST /pay", |route| {
        route.command::<Refund>().fingerprint(options)
    });
    let error = refused.err().map(|error| error.to_string());
    assert!(error.is_some_and(|error| error.contains("`headers`")));
}
