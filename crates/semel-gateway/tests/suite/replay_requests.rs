//! `[route.reconstruct]` and `[route.authorize]`: the gateway's requests to a real application.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use semel_core::Memory;
use semel_gateway::config::{Environment, Flags, Source};
use semel_gateway::server::{Limits, serve};
use semel_gateway::upstream::Forward;
use semel_gateway::{GatewayService, InternalRoutes, build_layer};
use semel_worker::webhook::Sources;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::boundary::fixture::{Answer, Call};
use crate::support::upstream_at;

/// What the application was asked: the target and the headers of each `GET`.
type Asked = Arc<Mutex<Vec<(Uri, HeaderMap)>>>;

struct Gateway {
    address: SocketAddr,
    asked: Asked,
    paid: Arc<Mutex<usize>>,
    _stop: DropGuard,
}

#[derive(Clone, Default)]
struct Shop {
    asked: Asked,
    paid: Arc<Mutex<usize>>,
}

async fn pay(State(shop): State<Shop>) -> impl IntoResponse {
    *shop.paid.lock().unwrap() += 1;
    let headers = [
        ("semel-resource", "payment/pay 7/8"),
        ("location", "/payments/7"),
    ];
    (StatusCode::CREATED, headers, "paid")
}

async fn read(
    State(shop): State<Shop>,
    Path(payment): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> impl IntoResponse {
    shop.asked.lock().unwrap().push((uri, headers));
    let headers = [
        ("etag", "\"2\""),
        ("connection", "etag-of-the-hop"),
        ("semel-outcome", "unknown"),
    ];
    (headers, format!("current {payment}"))
}

/// Permits one token.
async fn permission(
    State(shop): State<Shop>,
    uri: Uri,
    headers: HeaderMap,
) -> axum::response::Response {
    let permitted = headers.get("authorization").is_some_and(|it| it == "good");
    shop.asked.lock().unwrap().push((uri, headers));
    if permitted {
        return StatusCode::NO_CONTENT.into_response();
    }
    let headers = [("www-authenticate", "Bearer"), ("semel-outcome", "unknown")];
    (StatusCode::UNAUTHORIZED, headers, "log in again").into_response()
}

impl Gateway {
    /// A gateway with one route, `POST /payments`, and these settings of it.
    async fn new(settings: &str, variables: &[(&str, &str)]) -> Self {
        let shop = Shop::default();
        let app = Router::new()
            .route("/payments", post(pay))
            .route("/payments/{id}", get(read))
            .route("/permission", get(permission))
            .with_state(shop.clone());
        let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream_address = upstream.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(upstream, app).await });

        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "upstream = \"http://{upstream_address}\"\nstore = \"memory:\"\n\
             [tenant]\nfrom = \"header:X-Account\"\n\
             [[route]]\nmatch = \"POST /payments\"\noperation = \"pay\"\n\
             fingerprint = {{ headers = [\"API-Version\"] }}\n{settings}"
        );
        std::fs::write(file.path(), text).unwrap();
        let source = Source {
            file: Some(file.path().to_owned()),
            flags: Flags {
                allow_volatile: true,
                ..Flags::default()
            },
            environment: Environment::from_pairs(variables.iter().copied()),
        };
        let config = source.load().unwrap_or_else(|report| panic!("{report}"));
        let store = Memory::default();
        let layer = build_layer(&config, store.clone()).unwrap();
        let service = GatewayService::new(
            Arc::new(ArcSwap::from_pointee(layer)),
            Arc::new(InternalRoutes {
                store,
                sources: ArcSwap::from_pointee(Sources::new([])),
            }),
            Forward::new(upstream_at(upstream_address), Duration::from_mins(1)),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        tokio::spawn(serve(
            listener,
            service,
            Limits::default(),
            None,
            cancel.clone(),
        ));
        Self {
            address,
            asked: shop.asked,
            paid: shop.paid,
            _stop: cancel.drop_guard(),
        }
    }

    async fn pay(&self, token: &str) -> Answer {
        Call::to(self.address, http::Method::POST, "/payments")
            .header("idempotency-key", "k1")
            .header("x-account", "acme")
            .header("authorization", token)
            .header("cookie", "session=1")
            .header("x-api-key", "key")
            .header("api-version", "3")
            .header("accept", "text/plain")
            .header("x-secret", "no")
            .body("{}")
            .send()
            .await
    }

    fn last_asked(&self) -> (Uri, HeaderMap) {
        self.asked.lock().unwrap().last().cloned().unwrap()
    }
}

#[tokio::test]
async fn the_gateway_fetches_the_representation_with_the_callers_credentials() {
    let settings = "replay = \"reconstruct\"\n[route.reconstruct]\n\
                    get = \"GET /payments/{resource_id}?type={resource_type}\"";
    let gateway = Gateway::new(settings, &[]).await;
    assert_eq!(gateway.pay("good").await.text(), "paid");
    let again = gateway.pay("good").await;
    assert_eq!(
        (again.status.as_u16(), again.text()),
        (201, "current pay 7/8")
    );
    assert_eq!(again.header("location"), Some("/payments/7"));
    assert_eq!(again.header("etag"), Some("\"2\""));
    assert_eq!(again.header("semel-reconstructed"), Some("true"));
    assert_eq!(again.header("semel-outcome"), None);
    assert!(again.is_replay());

    let (uri, headers) = gateway.last_asked();
    assert_eq!(uri, "/payments/pay%207%2F8?type=payment");
    for (name, value) in [
        ("authorization", "good"),
        ("cookie", "session=1"),
        ("x-api-key", "key"),
        ("x-account", "acme"),
        ("api-version", "3"),
        ("accept", "text/plain"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    for name in [
        "x-secret",
        "idempotency-key",
        "content-type",
        "content-length",
    ] {
        assert!(!headers.contains_key(name), "{name}");
    }
    assert_eq!(*gateway.paid.lock().unwrap(), 1);
}

#[tokio::test]
async fn a_configured_credential_replaces_those_of_the_caller() {
    let settings = "replay = \"reconstruct\"\n[route.reconstruct]\n\
                    get = \"GET /payments/{operation_id}\"\nauthorization_env = \"TOKEN\"";
    let gateway = Gateway::new(settings, &[("TOKEN", "Bearer service")]).await;
    gateway.pay("good").await;
    gateway.pay("good").await;
    let (uri, headers) = gateway.last_asked();
    assert_eq!(headers["authorization"], "Bearer service");
    assert!(!headers.contains_key("cookie") && !headers.contains_key("x-api-key"));
    assert_eq!(
        format!(
            "/payments/{}",
            headers["semel-operation-id"].to_str().unwrap()
        ),
        uri.path()
    );
}

#[tokio::test]
async fn a_server_that_is_not_reached_returns_503() {
    let settings = "replay = \"reconstruct\"\n[route.reconstruct]\n\
                    get = \"GET http://127.0.0.1:1/{operation_id}\"";
    let gateway = Gateway::new(settings, &[]).await;
    gateway.pay("good").await;
    let again = gateway.pay("good").await;
    assert_eq!(again.status.as_u16(), 503, "{}", again.text());
    assert_eq!(again.json()["code"], "idempotency_replay_unavailable");
    assert_eq!(*gateway.paid.lock().unwrap(), 1);
}

#[tokio::test]
async fn the_gateway_asks_for_the_callers_permission_before_every_replay() {
    let settings = "on_revoked = \"ask\"\n[route.authorize]\nget = \"GET /permission?key={key}\"";
    let gateway = Gateway::new(settings, &[]).await;
    gateway.pay("good").await;
    for _ in 0..2 {
        let again = gateway.pay("good").await;
        assert_eq!((again.text(), again.is_replay()), ("paid", true));
    }
    assert_eq!(gateway.last_asked().0, "/permission?key=k1");
    let denied = gateway.pay("revoked").await;
    assert_eq!(
        (denied.status.as_u16(), denied.text()),
        (401, "log in again")
    );
    assert_eq!(denied.header("www-authenticate"), Some("Bearer"));
    assert_eq!(denied.header("semel-outcome"), None);
    assert_eq!(gateway.asked.lock().unwrap().len(), 3);
    assert_eq!(*gateway.paid.lock().unwrap(), 1);
}
