//! An application behind the layer or the gateway, with a faulty store and a manual clock.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use semel_core::store::Query;
use semel_core::{Memory, Record, Status, Store as _};
use semel_gateway::server::{Limits, serve};
use semel_gateway::upstream::{Forward, Upstream, UpstreamConfig};
use semel_gateway::{GatewayService, InternalRoutes};
use semel_http::{Builder, InFlight, KeyRule, Layer, tenant};
use semel_testkit::{Faulty, ManualClock};
use semel_worker::webhook::Sources;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::boundary::app::App;

pub type Store = Faulty<Memory>;

/// How requests reach the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryPoint {
    /// The tower layer in the axum application itself.
    Layer,
    /// The gateway in front of it.
    Gateway,
}

pub struct Fixture {
    pub address: SocketAddr,
    pub app: Arc<App>,
    pub store: Store,
    pub clock: ManualClock,
    pub layer: Layer<Store>,
    _gateway: Option<DropGuard>,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Fixture {
    /// The usual routes: `/do/…` needs a key.
    pub async fn new(entry: EntryPoint) -> Self {
        Self::with(entry, |layer| layer).await
    }

    /// As `new`; `change` configures the layer before the routes are added.
    pub async fn with(
        entry: EntryPoint,
        change: impl FnOnce(Layer<Store>) -> Layer<Store>,
    ) -> Self {
        // Long enough for a busy machine: only a stuck store may time out.
        Self::with_patience(entry, Duration::from_mins(1), change).await
    }

    /// As `with`, with a store timeout, for stores that never answer.
    pub async fn with_patience(
        entry: EntryPoint,
        patience: Duration,
        change: impl FnOnce(Layer<Store>) -> Layer<Store>,
    ) -> Self {
        let build = |builder: Builder<Store>| builder.store_timeouts(patience, patience);
        Self::build(entry, build, change).await
    }

    /// As `with`; `build` configures what cannot be changed any more once there is a layer.
    pub async fn build(
        entry: EntryPoint,
        build: impl FnOnce(Builder<Store>) -> Builder<Store>,
        change: impl FnOnce(Layer<Store>) -> Layer<Store>,
    ) -> Self {
        let clock = ManualClock::default();
        let store = Faulty::new(Memory::new(Arc::new(clock.clone())));
        let layer = build(Layer::new(store.clone()))
            .tenant(tenant::header("X-Account"))
            .status_path("/.semel/operations/");
        let layer = change(layer)
            .route("POST /do/{what}", |route| route.operation("do"))
            .route("POST /optional/{what}", |route| {
                route.key(KeyRule::Optional)
            })
            .route("POST /ignored/{what}", |route| route.key(KeyRule::Ignored))
            .route("PUT /do/{what}", |route| route.operation("put"));
        let app = Arc::new(App::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut address = listener.local_addr().unwrap();
        let mut gateway = None;
        let router = match entry {
            EntryPoint::Layer => app.router().layer(layer.clone()),
            EntryPoint::Gateway => {
                let gateway_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let uri = format!("http://{address}").parse().unwrap();
                address = gateway_listener.local_addr().unwrap();
                let upstream = Upstream::new(&UpstreamConfig::new(uri)).unwrap();
                let service = GatewayService::new(
                    Arc::new(ArcSwap::from_pointee(layer.clone())),
                    Arc::new(InternalRoutes {
                        store: store.clone(),
                        sources: ArcSwap::from_pointee(Sources::new([])),
                    }),
                    Forward::new(upstream, Duration::from_mins(1)),
                );
                let stop = CancellationToken::new();
                gateway = Some(stop.clone().drop_guard());
                tokio::spawn(serve(
                    gateway_listener,
                    service,
                    Limits::default(),
                    None,
                    stop,
                ));
                app.router()
            }
        };
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            address,
            app,
            store,
            clock,
            layer,
            _gateway: gateway,
        }
    }

    pub async fn post(&self, path: &str, key: &str, body: &str) -> Answer {
        self.call(path, key, body).send().await
    }

    /// A request that is not sent yet.
    pub fn call(&self, path: &str, key: &str, body: &str) -> Call {
        let call = Call::to(self.address, Method::POST, path)
            .header("x-account", "acme")
            .header("content-type", "application/json")
            .body(body.to_owned());
        if key.is_empty() {
            return call;
        }
        call.header("idempotency-key", key)
    }

    /// All records in the store.
    pub async fn records(&self) -> Vec<Record> {
        let page = self.store.inner().list(Query::default()).await.unwrap();
        let mut records = Vec::new();
        for summary in page.operations {
            let found = self.store.inner().find(summary.fence.id).await.unwrap();
            records.extend(found);
        }
        records
    }

    /// The state of the only record.
    pub async fn status(&self) -> Option<Status> {
        let records = self.records().await;
        assert!(records.len() <= 1, "{records:?}");
        records.first().map(|record| record.state.status())
    }
}

pub struct Call {
    address: SocketAddr,
    request: http::request::Builder,
    body: Bytes,
}

impl Call {
    pub fn to(address: SocketAddr, method: Method, path: &str) -> Self {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", address.to_string());
        Self {
            address,
            request,
            body: Bytes::new(),
        }
    }

    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.request = self.request.header(name, value.as_ref());
        self
    }

    pub fn host(mut self, host: &str) -> Self {
        if let Some(headers) = self.request.headers_mut() {
            headers.insert("host", host.parse().unwrap());
        }
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub fn method(mut self, method: Method) -> Self {
        self.request = self.request.method(method);
        self
    }

    pub async fn send(self) -> Answer {
        self.try_send().await.unwrap()
    }

    pub async fn try_send(self) -> Result<Answer, hyper::Error> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = self.request.body(Full::new(self.body)).unwrap();
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body.collect().await?.to_bytes(),
        })
    }
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.get_all(name).iter();
        let value = lines.next()?.to_str().unwrap();
        assert!(lines.next().is_none(), "{name} occurs twice");
        Some(value)
    }

    pub fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Checks a refusal in the IETF form.
    #[track_caller]
    pub fn refuses(&self, status: u16, code: &str) {
        assert_eq!(self.status.as_u16(), status, "{}", self.text());
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        let problem = self.json();
        assert_eq!(problem["code"], code);
        assert_eq!(problem["status"], status);
        assert_eq!(problem["type"], "about:blank", "no error_base is set");
        assert!(problem["title"].is_string() && problem["detail"].is_string());
        assert!(problem["retryable"].is_boolean());
        assert!(!self.is_replay());
    }

    /// Checks a refusal in Stripe's form.
    #[track_caller]
    pub fn refuses_like_stripe(&self, status: u16, kind: &str, code: &str) {
        assert_eq!(self.status.as_u16(), status, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/json"));
        let error = &self.json()["error"];
        assert_eq!(error["type"], kind);
        assert_eq!(error["code"], code);
        assert!(error["message"].is_string());
    }
}

/// `in_flight = "wait"`, long enough for any test.
pub fn patient(layer: Layer<Store>) -> Layer<Store> {
    let max = Duration::from_mins(5);
    layer.defaults(|route| route.in_flight(InFlight::Wait { max }))
}

/// Waits until `condition` holds, and panics after 30 seconds.
pub async fn eventually(condition: impl AsyncFn() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    let seen = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    assert!(seen.is_ok(), "the condition never held");
}

/// The store timeout for stores that never answer: the test waits this long.
pub const SHORT: Duration = Duration::from_millis(300);

pub fn stripe(layer: Layer<Store>) -> Layer<Store> {
    layer.dialect(semel_core::key::Dialect::Stripe)
}
