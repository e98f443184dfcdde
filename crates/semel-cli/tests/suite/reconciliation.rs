//! Unknown outcomes are resolved: the payments example with a provider that fails, webhook events
//! that are lost, duplicated, late and forged, and clients that retry until the answer is final.
//!
//! `SEMEL_OPERATIONS=20000` makes it the campaign that the documentation reports.

use std::collections::BTreeMap;
use std::time::Duration;

use payments::provider::{Charge, ChargeStatus, Deliveries, Summary, Webhooks};
use reqwest::{Client, StatusCode};
use semel_testkit::database::Database;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::{Gateway, GatewayDirectory, Random, TEST_TIMEOUT};

/// A Standard Webhooks secret.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// How many clients pay at a time.
const CLIENTS: usize = 48;

/// Shorter than a slow provider takes.
const PROVIDER_TIMEOUT: Duration = Duration::from_millis(250);

/// The most requests of one client, far more than any client needs.
const MAX_REQUESTS: usize = 2000;

/// The final answer to one client.
#[derive(Debug)]
struct FinalAnswer {
    key: String,
    status: StatusCode,
    body: String,
    requests: usize,
}

/// The application, its provider with a ledger, and gateways as processes.
struct Deployment {
    client: Client,
    provider: String,
    gateways: Vec<Gateway>,
}

fn config(downstream_idempotent: bool) -> String {
    format!(
        r#"
        [policy]
        lease = "5s"
        upstream_timeout = "10s"

        [[route]]
        match = "POST /payments"
        operation = "create_payment"

        [route.reconcile]
        poll = "GET /payments/by-operation/{{operation_id}}"
        completed = ["200", "402"]
        status_from = {{ "200" = "201" }}
        not_executed = "404"
        downstream_idempotent = {downstream_idempotent}
        every = "200ms"
        max_every = "2s"
        attempts = 6

        [[webhook]]
        source = "psp"
        scheme = "standard"
        secret_env = "PSP_WEBHOOK_SECRET"
        operation_id = "/data/metadata/operation_id"
        completed = {{ pointer = "/type", equals = ["payment.succeeded", "payment.declined"] }}
        status = 201
        statuses = {{ "payment.declined" = 402 }}
        response_body = "/data/object"
        "#
    )
}

impl Deployment {
    /// Starts one gateway for each directory; all of them use `store`.
    async fn start(directories: &[GatewayDirectory], store: &str) -> Self {
        let (app, app_url) = listen().await;
        let (provider, provider_url) = listen().await;
        let gateways: Vec<_> = directories
            .iter()
            .map(|gateway_dir| {
                let mut command = gateway_dir.command_on(&app_url, store);
                command.env("PSP_WEBHOOK_SECRET", SECRET);
                Gateway::start(command)
            })
            .collect();
        let mut merchant = payments::app::Config::new(provider_url.clone());
        merchant.database = Some(directories[0].path("payments.db"));
        merchant.provider_timeout = PROVIDER_TIMEOUT;
        tokio::spawn(payments::app::serve(app, merchant, std::future::pending()));

        let receiver = gateways[gateways.len() - 1].address;
        let mut webhooks = Webhooks::new(format!("http://{receiver}/.semel/webhooks/psp"), SECRET);
        webhooks.drop = 0.3;
        webhooks.duplicate = 0.2;
        webhooks.forge = 0.1;
        webhooks.late = Duration::from_millis(500);
        let mut psp = payments::provider::Config::with_ledger(directories[0].path("ledger.jsonl"));
        psp.webhooks = Some(webhooks);
        tokio::spawn(payments::provider::serve(
            provider,
            psp,
            std::future::pending(),
        ));
        Self {
            client: Client::builder().no_proxy().build().unwrap(),
            provider: provider_url,
            gateways,
        }
    }

    /// Retries a payment until it is completed or dead-lettered.
    async fn pay(&self, key: &str, fault: &str) -> FinalAnswer {
        let mut pause = Duration::from_millis(20);
        for requests in 1..=MAX_REQUESTS {
            let gateway = self.gateways[requests % self.gateways.len()].address;
            let request = self
                .client
                .post(format!("http://{gateway}/payments"))
                .header("Host", "shop")
                .header("Idempotency-Key", format!("\"{key}\""))
                // Only the first request fails.
                .header("X-Demo-Fault", if requests == 1 { fault } else { "none" })
                .json(&json!({
                    "amount": 1000,
                    "currency": "EUR",
                    "account": "acc_1",
                    "merchant_reference": key,
                }));
            let answer = timeout(TEST_TIMEOUT, request.send())
                .await
                .expect("an answer");
            if let Ok(answer) = answer {
                let status = answer.status();
                let body = answer.text().await.unwrap_or_default();
                match status.as_u16() {
                    201 | 402 => {
                        return FinalAnswer {
                            key: key.to_owned(),
                            status,
                            body,
                            requests,
                        };
                    }
                    409 | 503 | 504 => {}
                    _ => panic!("{key}: {status} {body}"),
                }
                if requests > 10 && self.dead_lettered(key).await {
                    return FinalAnswer {
                        key: key.to_owned(),
                        status,
                        body,
                        requests,
                    };
                }
            }
            sleep(pause).await; // sleeps because clients wait before a retry
            pause = (pause * 2).min(Duration::from_millis(500));
        }
        panic!("{key} is stuck");
    }

    async fn dead_lettered(&self, key: &str) -> bool {
        let path = format!("/api/v1/operations?dead_lettered=true&key={key}&limit=1");
        let page: Value = self.admin(&path).await;
        !page["operations"].as_array().unwrap().is_empty()
    }

    async fn admin<T: DeserializeOwned>(&self, path: &str) -> T {
        let admin = self.gateways[0].admin;
        self.read(&format!("http://{admin}{path}")).await
    }

    async fn read<T: DeserializeOwned>(&self, url: &str) -> T {
        let answer = self.client.get(url).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{url}");
        serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap()
    }

    /// All records that match the filter.
    async fn operations(&self, filter: &str) -> Vec<Value> {
        let mut cursor = String::new();
        let mut all = Vec::new();
        loop {
            let path = format!("/api/v1/operations?{filter}&limit=1000&cursor={cursor}");
            let page: Value = self.admin(&path).await;
            all.extend(page["operations"].as_array().unwrap().iter().cloned());
            match page["next"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => return all,
            }
        }
    }

    /// Waits until every unknown record is dead-lettered, and no record or delivery is in progress.
    async fn wait_until_settled(&self) {
        for _ in 0..600 {
            let stats: Value = self.admin("/api/v1/stats").await;
            let count = |of: &str| stats[of]["count"].as_u64().unwrap();
            let deliveries: Deliveries = self
                .read(&format!("{}/webhooks/summary", self.provider))
                .await;
            let waiting = count("in_progress") + count("unknown") - count("dead_lettered");
            if waiting == 0 && deliveries.under_way == 0 {
                return;
            }
            sleep(Duration::from_millis(100)).await; // sleeps because workers in other processes work
        }
        panic!("a record is still unknown");
    }
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

fn operations() -> usize {
    let count = std::env::var("SEMEL_OPERATIONS").ok();
    count.map_or(300, |count| count.parse().unwrap())
}

/// 10 % resets after the charge, 10 % timeouts, 5 % declines, 2 % resets before it.
fn fault(random: &mut Random) -> &'static str {
    match random.below(100) {
        0..10 => "reset_after_success",
        10..20 => "slow:400",
        20..25 => "decline",
        25..27 => "reset_before",
        _ => "none",
    }
}

async fn campaign(deployment: Deployment, downstream_idempotent: bool) {
    let mut random = Random::seeded();
    let deployment = std::sync::Arc::new(deployment);
    let total = operations();
    let mut running = JoinSet::new();
    let mut answers = Vec::new();
    for number in 0..total {
        if running.len() == CLIENTS {
            answers.push(running.join_next().await.unwrap().unwrap());
        }
        let (deployment, fault) = (std::sync::Arc::clone(&deployment), fault(&mut random));
        running.spawn(async move {
            deployment
                .pay(&format!("order-{number:06}-key"), fault)
                .await
        });
    }
    while let Some(ended) = running.join_next().await {
        answers.push(ended.unwrap());
    }
    deployment.wait_until_settled().await;

    let ledger: Vec<Charge> = deployment
        .read(&format!("{}/ledger", deployment.provider))
        .await;
    let summary: Summary = deployment
        .read(&format!("{}/ledger/summary", deployment.provider))
        .await;
    assert_eq!(
        summary.duplicate_references,
        BTreeMap::new(),
        "charged twice"
    );
    assert_eq!(summary.duplicate_keys, BTreeMap::new(), "charged twice");
    let charged: BTreeMap<&str, &Charge> = ledger
        .iter()
        .map(|charge| (&*charge.reference, charge))
        .collect();

    // Every answer agrees with the ledger, and a retry gets the same answer.
    let mut dead = 0;
    for answer in &answers {
        let charge = charged.get(&*answer.key);
        match answer.status.as_u16() {
            201 => assert_eq!(
                charge.unwrap().status,
                ChargeStatus::Succeeded,
                "{answer:?}"
            ),
            402 => assert_eq!(charge.unwrap().status, ChargeStatus::Declined, "{answer:?}"),
            _ => {
                dead += 1;
                continue;
            }
        }
        let again = deployment.pay(&answer.key, "none").await;
        assert_eq!(
            (again.status, &again.body, again.requests),
            (answer.status, &answer.body, 1)
        );
    }
    let open = deployment
        .operations("status=unknown&dead_lettered=false")
        .await;
    assert_eq!(
        open,
        Vec::<Value>::new(),
        "unknown, and neither resolved nor dead-lettered"
    );
    let letters = deployment.operations("dead_lettered=true").await;
    assert_eq!(letters.len(), dead);
    for letter in &letters {
        assert_dead_letter_history(&deployment, letter).await;
    }
    if downstream_idempotent {
        assert_eq!(dead, 0, "every unknown record can be resolved");
    }
    let webhooks: Deliveries = deployment
        .read(&format!("{}/webhooks/summary", deployment.provider))
        .await;
    assert_eq!(webhooks.forged_taken, 0, "{webhooks:?}");
    assert!(webhooks.forged_refused > 0, "{webhooks:?}");
    let retried = answers.iter().filter(|answer| answer.requests > 1).count();
    println!(
        "{total} operations: {} charges, {} declines, {retried} retried, {dead} dead letters; {webhooks:?}",
        summary.succeeded, summary.declined
    );
}

/// Asserts that the history of a dead letter is intact and has the evidence of every lookup.
async fn assert_dead_letter_history(deployment: &Deployment, letter: &Value) {
    let id = letter["id"].as_str().unwrap();
    let shown: Value = deployment.admin(&format!("/api/v1/operations/{id}")).await;
    assert_eq!(shown["history_intact"], json!(true), "{shown}");
    let history = shown["history"].as_array().unwrap();
    let of = |what: &str| {
        history
            .iter()
            .filter(|entry| entry["what"] == what)
            .collect::<Vec<_>>()
    };
    assert_eq!(of("unknown").len(), 1, "{shown}");
    assert_eq!(of("dead_lettered").len(), 1, "{shown}");
    let lookups = of("asked");
    assert_eq!(lookups.len(), 6, "{shown}");
    for entry in lookups {
        // 202: the application could not reach its provider for this lookup.
        let status = entry["code"]
            .as_str()
            .and_then(|code| code.strip_prefix("poll_status_"));
        let status = status.filter(|status| ["404", "202"].contains(status));
        let evidence = entry["evidence"].as_str().unwrap();
        let expected = format!("{id} → {} ", status.unwrap_or_else(|| panic!("{shown}")));
        assert!(evidence.contains(&expected), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_with_downstream_idempotency_resolves_every_unknown_record() {
    let directories = [GatewayDirectory::new(&config(true))];
    let deployment = Deployment::start(&directories, "sqlite:semel.db").await;
    campaign(deployment, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_without_downstream_idempotency_dead_letters_what_it_cannot_resolve() {
    let Some(database) = Database::new().await else {
        return;
    };
    let directories = [
        GatewayDirectory::new(&config(false)),
        GatewayDirectory::new(&config(false)),
    ];
    let deployment = Deployment::start(&directories, &database.url).await;
    campaign(deployment, false).await;
}
