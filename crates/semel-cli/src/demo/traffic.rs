//! Clients that pay, lose responses and retry, and sometimes misuse a key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use semel_client::{
    BoxFuture, Client, Journal, Received, Request, Reqwest, Transport, TransportError,
};
use serde_json::json;

/// Concurrent clients.
const CLIENTS: u64 = 4;

/// Between two payments of one client: enough for live charts, little load.
const PAUSE: Duration = Duration::from_millis(250);

/// One response in so many is lost on its way, so that its request is retried and replayed.
const LOST: u64 = 5;

/// How long a payment is retried: longer than the demo reconciles, and shorter than an operator takes.
const DEADLINE: Duration = Duration::from_secs(30);

/// How long the journal keeps a payment: nothing here asks for one again.
const RETENTION: Duration = Duration::from_mins(1);

/// Runs until the process ends.
pub(super) async fn run(gateway: String) {
    let inner = match Reqwest::from_builder(reqwest::Client::builder().no_proxy()) {
        Ok(inner) => inner,
        Err(error) => return tracing::error!(%error, "the traffic cannot start"),
    };
    let transport = Lossy {
        inner,
        received: Arc::default(),
    };
    let client = Client::builder(Journal::memory().retention(RETENTION))
        .deadline(DEADLINE)
        .build_with(transport);
    let url = format!("{gateway}/payments");
    let clients = (0..CLIENTS).map(|number| pay_forever(client.clone(), url.clone(), number));
    futures_util::future::join_all(clients).await;
}

async fn pay_forever(client: Client, url: String, number: u64) {
    let mut turn = tokio::time::interval(PAUSE);
    for payment in 0u64.. {
        turn.tick().await;
        let fault = match (payment + number * 3) % 20 {
            5 => "slow:1200",
            9 => "reset_after_success",
            13 => "decline",
            17 => "error_500",
            _ => "none",
        };
        let (client, url) = (client.clone(), url.clone());
        // Beside the others: an unknown outcome takes until the deadline, and few of them are under way at a time.
        tokio::spawn(async move {
            let ended = if payment % 11 == 7 {
                misuse(&client, &url).await
            } else {
                pay(&client, &url, payment, fault).await
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a payment did not end");
            }
        });
    }
}

/// Pays under an intent of its own. The client retries.
async fn pay(
    client: &Client,
    url: &str,
    payment: u64,
    fault: &'static str,
) -> Result<(), semel_client::Error> {
    let intent = uuid::Uuid::new_v4().to_string();
    let request = request(url, &intent, 1000 + payment)?.header(
        HeaderName::from_static("x-demo-fault"),
        HeaderValue::from_static(fault),
    );
    client.call(&intent, request).await.map(drop)
}

/// One key for two amounts, as a client without intents might send it.
async fn misuse(client: &Client, url: &str) -> Result<(), semel_client::Error> {
    let key = uuid::Uuid::new_v4().to_string();
    for amount in [1000, 1] {
        let mut request = request(url, &key, amount)?;
        if let Ok(value) = HeaderValue::try_from(format!("\"{key}\"")) {
            request.headers.insert("idempotency-key", value);
        }
        client.send(request).await?;
    }
    Ok(())
}

fn request(url: &str, reference: &str, amount: u64) -> Result<Request, semel_client::Error> {
    let body = json!({
        "amount": amount,
        "currency": "EUR",
        "account": "acc_demo",
        "merchant_reference": reference,
    });
    Ok(Request::post(url)?.json(body.to_string()))
}

/// A network that loses responses.
#[derive(Clone)]
struct Lossy {
    inner: Reqwest,
    received: Arc<AtomicU64>,
}

impl Transport for Lossy {
    fn send(
        &self,
        request: http::Request<bytes::Bytes>,
    ) -> BoxFuture<'_, Result<Received, TransportError>> {
        Box::pin(async move {
            let received = self.inner.send(request).await?;
            if self.received.fetch_add(1, Ordering::Relaxed) % LOST == LOST - 1 {
                return Err(TransportError::Failed("the demo lost it".to_owned()));
            }
            Ok(received)
        })
    }
}
