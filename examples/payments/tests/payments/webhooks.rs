//! The provider's webhooks.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use payments::provider::{Config, Deliveries, Webhooks};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::net::TcpListener;

use crate::harness::{Server, post as send, read};

const SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Id and body of every event that is signed.
type Taken = Arc<Mutex<Vec<(String, Value)>>>;

async fn take(State(taken): State<Taken>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let key = STANDARD.decode(SECRET).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{}.{}.", header("webhook-id"), header("webhook-timestamp")).as_bytes());
    mac.update(&body);
    let signature = header("webhook-signature");
    let signature = STANDARD.decode(signature.strip_prefix("v1,").unwrap());
    if mac.verify_slice(&signature.unwrap()).is_err() {
        return StatusCode::UNAUTHORIZED;
    }
    let event = serde_json::from_slice(&body).unwrap();
    taken.lock().unwrap().push((header("webhook-id"), event));
    StatusCode::NO_CONTENT
}

#[tokio::test]
async fn duplicate_events_share_an_id_and_forged_events_are_refused() {
    let taken = Taken::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/psp", listener.local_addr().unwrap());
    let router = Router::new()
        .route("/psp", post(take))
        .with_state(Arc::clone(&taken));
    tokio::spawn(async { axum::serve(listener, router).await });

    let mut config = Config::default();
    let mut webhooks = Webhooks::new(url, format!("whsec_{SECRET}"));
    webhooks.duplicate = 1.0;
    webhooks.forge = 1.0;
    config.webhooks = Some(webhooks);
    let provider = Server::provider(config).await;
    let charge = json!({
        "amount": 1, "currency": "EUR", "reference": "r", "metadata": { "operation_id": "op-1" },
    });
    let answer = send(provider.url("/charges"), &charge)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    let deliveries = loop {
        let (_, body) = read(&provider.url("/webhooks/summary")).await;
        let deliveries: Deliveries = serde_json::from_value(body).unwrap();
        if deliveries.under_way == 0 {
            break deliveries;
        }
    };
    let expected = Deliveries {
        taken: 2,
        duplicated: 1,
        forged_refused: 1,
        ..Deliveries::default()
    };
    assert_eq!(deliveries, expected);
    {
        let taken = taken.lock().unwrap();
        assert_eq!(taken.len(), 2);
        assert_eq!(taken[0], taken[1], "the same event, by its id");
        let (_, event) = &taken[0];
        assert_eq!(event["type"], "payment.succeeded");
        assert_eq!(event["data"]["metadata"]["operation_id"], "op-1");
        assert_eq!(event["data"]["object"]["reference"], "r");
    }
    provider.stop().await;
}
