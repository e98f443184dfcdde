//! Servers inside the test's process, and a client.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use payments::provider::{Charge, Faults, Summary};
use payments::{Error, app, provider, shop};
use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How often a test polls before it gives up. Each poll is a round trip.
pub(crate) const MAX_POLLS: usize = 200_000;

pub(crate) struct Server {
    pub(crate) url: String,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn provider(config: provider::Config) -> Self {
        Self::start(|listener, stopped| provider::serve(listener, config, stopped)).await
    }

    pub(crate) async fn app(config: app::Config) -> Self {
        Self::start(|listener, stopped| app::serve(listener, config, stopped)).await
    }

    pub(crate) async fn shop(config: shop::Config) -> Self {
        Self::start(|listener, stopped| shop::serve(listener, config, stopped)).await
    }

    async fn start<F>(serve: impl FnOnce(TcpListener, BoxFuture<'static, ()>) -> F) -> Self
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let serving = serve(listener, stopped.map(|_| ()).boxed());
        // A server that cannot start fails here at once, and not only in `stop`.
        let ended = tokio::spawn(async { serving.await.expect("the server starts") });
        Self { url, stop, ended }
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).expect("it runs");
        self.ended.await.expect("no panic");
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }
}

pub(crate) fn client() -> Client {
    Client::builder()
        .retry(reqwest::retry::never())
        .no_proxy()
        .pool_max_idle_per_host(0)
        .timeout(Duration::from_mins(1))
        .build()
        .unwrap()
}

pub(crate) fn post(url: String, body: &Value) -> RequestBuilder {
    client()
        .post(url)
        .header("content-type", "application/json")
        .body(body.to_string())
}

pub(crate) async fn read(url: &str) -> (StatusCode, Value) {
    let response = client().get(url).send().await.unwrap();
    let status = response.status();
    let body = response.bytes().await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// Polls until the answer has this status.
pub(crate) async fn read_until(url: &str, wanted: StatusCode) -> Value {
    for _ in 0..MAX_POLLS {
        let (status, body) = read(url).await;
        if status == wanted {
            return body;
        }
    }
    panic!("{url} never answered {wanted}");
}

/// Polls a shop until its books have this content.
pub(crate) async fn wait_for_books(shop: &Server, expected: shop::Summary) {
    let mut last = Value::Null;
    for _ in 0..MAX_POLLS {
        last = read(&shop.url("/summary")).await.1;
        if serde_json::from_value::<shop::Summary>(last.clone()).unwrap() == expected {
            return;
        }
    }
    panic!("the books have {last}, expected {expected:?}");
}

pub(crate) async fn json_of(response: reqwest::Response) -> Value {
    serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
}

pub(crate) async fn put_faults(provider: &Server, faults: Faults) {
    let body = serde_json::to_string(&faults).unwrap();
    let call = client().put(provider.url("/faults")).body(body);
    assert_eq!(call.send().await.unwrap().status(), StatusCode::OK);
}

pub(crate) async fn ledger(provider: &Server) -> Vec<Charge> {
    let (status, body) = read(&provider.url("/ledger")).await;
    assert_eq!(status, StatusCode::OK);
    serde_json::from_value(body).unwrap()
}

pub(crate) async fn summary(provider: &Server) -> Summary {
    let (_, body) = read(&provider.url("/ledger/summary")).await;
    serde_json::from_value(body).unwrap()
}

pub(crate) fn charge(reference: &str) -> Value {
    json!({ "amount": 1000, "currency": "EUR", "reference": reference, "card": "tok_1" })
}

pub(crate) fn payment(reference: &str) -> Value {
    json!({
        "amount": 1000,
        "currency": "EUR",
        "account": "acc_1",
        "merchant_reference": reference,
        "metadata": { "trace_id": "ignored" },
    })
}

/// The body of a payment at the shop.
pub(crate) fn order(reference: &str) -> Value {
    json!({ "amount": 1000, "currency": "EUR", "merchant_reference": reference })
}
