//! A provider inside the test's process, and a client.

use std::time::Duration;

use payments::provider::{self, Faults};
use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::Value;
use tokio::net::TcpListener;

/// The provider. It ends with the test's runtime.
pub(crate) struct Provider {
    pub(crate) url: String,
}

impl Provider {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let config = provider::Config::default();
        tokio::spawn(async {
            let serving = provider::serve(listener, config, std::future::pending());
            serving.await.expect("the provider starts");
        });
        Self { url }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    pub(crate) async fn put_faults(&self, faults: Faults) {
        let body = serde_json::to_string(&faults).unwrap();
        let call = client().put(self.url("/faults")).body(body);
        assert_eq!(call.send().await.unwrap().status(), StatusCode::OK);
    }

    /// How many charges are under way.
    pub(crate) async fn pending(&self) -> u64 {
        let (status, body) = read(&self.url("/pending")).await;
        assert_eq!(status, StatusCode::OK);
        body.as_u64().unwrap()
    }

    /// How many charges there are with this reference.
    pub(crate) async fn charges(&self, reference: &str) -> usize {
        charges(&self.url, reference).await
    }
}

/// How many charges the provider at this address has with this reference.
pub(crate) async fn charges(provider: &str, reference: &str) -> usize {
    let (_, entries) = read(&format!("{provider}/ledger")).await;
    let entries = entries.as_array().unwrap();
    let matches = |entry: &&Value| entry["reference"] == reference;
    entries.iter().filter(matches).count()
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

/// A request under an idempotency key.
pub(crate) fn post(url: String, key: &str, body: &Value) -> RequestBuilder {
    client()
        .post(url)
        // A shop that was started again has another port, and is the same host to its clients.
        .header("host", "shop.example")
        .header("content-type", "application/json")
        .header("x-account-id", "acc_1")
        .header("idempotency-key", format!("\"{key}\""))
        .body(body.to_string())
}

pub(crate) async fn read(url: &str) -> (StatusCode, Value) {
    let response = client().get(url).send().await.unwrap();
    let status = response.status();
    let body = response.bytes().await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}
