//! Clients that pay, retry, and now and then misbehave.

use std::time::Duration;

use reqwest::{Client, StatusCode};
use serde_json::json;

/// How many clients pay at the same time.
const CLIENTS: u64 = 4;

/// Between two requests of one client: a page that is alive, and a laptop that stays cool.
const PAUSE: Duration = Duration::from_millis(250);

/// How often a client retries what did not end well.
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

/// One payment, with retries, and once more although it is over: as clients do.
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
        let answer = request.send().await.map(|answer| answer.status());
        let over =
            answer.is_ok_and(|status| !status.is_server_error() && status != StatusCode::CONFLICT);
        if over && pause > PAUSE {
            return;
        }
        pause *= 2;
        tokio::time::sleep(pause).await;
    }
}
