//! Clients that pay, retry, and sometimes misuse a key.

use std::time::Duration;

use reqwest::{Client, StatusCode};
use serde_json::json;

/// Concurrent clients.
const CLIENTS: u64 = 4;

/// Between two payments of one client: enough for live charts, little load.
const PAUSE: Duration = Duration::from_millis(250);

/// The most attempts of one payment.
const ATTEMPTS: u32 = 4;

/// Runs until the process ends.
pub(super) async fn run(gateway: String) {
    let client = Client::builder().no_proxy().build().unwrap_or_default();
    let clients = (0..CLIENTS).map(|number| pay_forever(client.clone(), gateway.clone(), number));
    futures_util::future::join_all(clients).await;
}

async fn pay_forever(client: Client, gateway: String, number: u64) {
    let mut turn = tokio::time::interval(PAUSE);
    for payment in 0u64.. {
        turn.tick().await;
        let key = uuid::Uuid::new_v4().to_string();
        let fault = match (payment + number * 3) % 20 {
            5 => "slow:1200",
            9 => "reset_after_success",
            13 => "decline",
            17 => "error_500",
            _ => "none",
        };
        pay(&client, &gateway, &key, 1000 + payment, fault).await;
        if payment % 11 == 7 {
            // The same key for another amount.
            pay(&client, &gateway, &key, 1, "none").await;
        }
    }
}

/// Pays, retries, and sends one duplicate after the success.
async fn pay(client: &Client, gateway: &str, key: &str, amount: u64, fault: &str) {
    let mut pause = PAUSE;
    for _ in 0..ATTEMPTS {
        let request = client
            .post(format!("{gateway}/payments"))
            .header("Idempotency-Key", format!("\"{key}\""))
            .header("X-Demo-Fault", fault)
            .json(&json!({
                "amount": amount,
                "currency": "EUR",
                "account": "acc_demo",
                "merchant_reference": key,
            }));
        let status = request.send().await.map(|response| response.status());
        let finished =
            status.is_ok_and(|status| !status.is_server_error() && status != StatusCode::CONFLICT);
        if finished && pause > PAUSE {
            return;
        }
        pause *= 2;
        tokio::time::sleep(pause).await;
    }
}
