//! Nothing stays unknown: the payments example, a provider that breaks, events that are lost,
//! doubled, late and forged, and clients that retry until they know.
//!
//! `SEMEL_OPERATIONS=20000` makes it the campaign that the documentation reports.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use payments::provider::{Charge, ChargeStatus, Deliveries, Summary, Webhooks};
use reqwest::{Client, StatusCode};
use semel_testkit::database::Database;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use support::{Gateway, PATIENCE, Place, Random};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// A Standard Webhooks secret.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// How many clients pay at a time.
const CLIENTS: usize = 48;

/// Shorter than a slow provider takes.
const PROVIDER_TIMEOUT: Duration = Duration::from_millis(250);

/// The longest that a client asks. Nothing here takes nearly as long.
const MOST_ASKED: usize = 2000;

/// What one client was told at last.
#[derive(Debug)]
struct Told {
    key: String,
    status: StatusCode,
    body: String,
    asked: usize,
}

/// The application, its provider and the ledger, around gateways that are processes.
struct World {
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

impl World {
    /// The gateways stand on `store`; there is one for each place.
    async fn start(places: &[Place], store: &str) -> Self {
        let (app, app_url) = listen().await;
        let (provider, provider_url) = listen().await;
        let gateways: Vec<_> = places
            .iter()
            .map(|place| {
                let mut command = place.command_on(&app_url, store);
                command.env("PSP_WEBHOOK_SECRET", SECRET);
                Gateway::start(command)
            })
            .collect();
        let mut merchant = payments::app::Config::new(provider_url.clone());
        merchant.database = Some(places[0].path("payments.db"));
        merchant.provider_timeout = PROVIDER_TIMEOUT;
        tokio::spawn(payments::app::serve(app, merchant, std::future::pending()));

        let receiver = gateways[gateways.len() - 1].address;
        let mut webhooks = Webhooks::new(format!("http://{receiver}/.semel/webhooks/psp"), SECRET);
        webhooks.drop = 0.3;
        webhooks.duplicate = 0.2;
        webhooks.forge = 0.1;
        webhooks.late = Duration::from_millis(500);
        let mut psp = payments::provider::Config::with_ledger(places[0].path("ledger.jsonl"));
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

    /// Pays until the answer is final: an end, or that it waits for a person.
    async fn pay(&self, key: &str, fault: &str) -> Told {
        let mut pause = Duration::from_millis(20);
        for asked in 1..=MOST_ASKED {
            let gateway = self.gateways[asked % self.gateways.len()].address;
            let request = self
                .client
                .post(format!("http://{gateway}/payments"))
                .header("Idempotency-Key", format!("\"{key}\""))
                // What broke once need not break again.
                .header("X-Demo-Fault", if asked == 1 { fault } else { "none" })
                .json(&json!({
                    "amount": 1000,
                    "currency": "EUR",
                    "account": "acc_1",
                    "merchant_reference": key,
                }));
            let answer = timeout(PATIENCE, request.send()).await.expect("an answer");
            if let Ok(answer) = answer {
                let status = answer.status();
                let body = answer.text().await.unwrap_or_default();
                match status.as_u16() {
                    201 | 402 => {
                        return Told {
                            key: key.to_owned(),
                            status,
                            body,
                            asked,
                        };
                    }
                    409 | 503 | 504 => {}
                    _ => panic!("{key}: {status} {body}"),
                }
                if asked > 10 && self.dead_lettered(key).await {
                    return Told {
                        key: key.to_owned(),
                        status,
                        body,
                        asked,
                    };
                }
            }
            sleep(pause).await; // sleeps because a client that is told to come back later does
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

    /// All operations of that filter.
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

    /// Waits until nothing is unknown that does not wait for a person, and nothing under way.
    async fn settled(&self) {
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
        panic!("something is still unknown");
    }
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

fn operations() -> usize {
    let asked = std::env::var("SEMEL_OPERATIONS").ok();
    asked.map_or(300, |asked| asked.parse().unwrap())
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

async fn campaign(world: World, downstream_idempotent: bool) {
    let mut random = Random::seeded();
    let world = std::sync::Arc::new(world);
    let total = operations();
    let mut running = JoinSet::new();
    let mut told = Vec::new();
    for number in 0..total {
        if running.len() == CLIENTS {
            told.push(running.join_next().await.unwrap().unwrap());
        }
        let (world, fault) = (std::sync::Arc::clone(&world), fault(&mut random));
        running.spawn(async move { world.pay(&format!("order-{number:06}-key"), fault).await });
    }
    while let Some(ended) = running.join_next().await {
        told.push(ended.unwrap());
    }
    world.settled().await;

    let ledger: Vec<Charge> = world.read(&format!("{}/ledger", world.provider)).await;
    let summary: Summary = world
        .read(&format!("{}/ledger/summary", world.provider))
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

    // What every client was told is what the ledger says, and what it is told again.
    let mut dead = 0;
    for told in &told {
        let charge = charged.get(&*told.key);
        match told.status.as_u16() {
            201 => assert_eq!(charge.unwrap().status, ChargeStatus::Succeeded, "{told:?}"),
            402 => assert_eq!(charge.unwrap().status, ChargeStatus::Declined, "{told:?}"),
            _ => {
                dead += 1;
                continue;
            }
        }
        let again = world.pay(&told.key, "none").await;
        assert_eq!(
            (again.status, &again.body, again.asked),
            (told.status, &told.body, 1)
        );
    }
    let open = world.operations("status=unknown&dead_lettered=false").await;
    assert_eq!(open, Vec::<Value>::new(), "unknown, and nobody looks");
    let letters = world.operations("dead_lettered=true").await;
    assert_eq!(letters.len(), dead);
    for letter in &letters {
        explained(&world, letter).await;
    }
    if downstream_idempotent {
        assert_eq!(dead, 0, "everything could be found out");
    }
    let webhooks: Deliveries = world
        .read(&format!("{}/webhooks/summary", world.provider))
        .await;
    assert_eq!(webhooks.forged_taken, 0, "{webhooks:?}");
    assert!(webhooks.forged_refused > 0, "{webhooks:?}");
    let unknown = told.iter().filter(|told| told.asked > 1).count();
    println!(
        "{total} operations: {} charges, {} declines, {unknown} asked again, {dead} dead letters; {webhooks:?}",
        summary.succeeded, summary.declined
    );
}

/// A dead letter says what happened and what the provider answered, and its history is whole.
async fn explained(world: &World, letter: &Value) {
    let id = letter["id"].as_str().unwrap();
    let shown: Value = world.admin(&format!("/api/v1/operations/{id}")).await;
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
    let asked = of("asked");
    assert_eq!(asked.len(), 6, "{shown}");
    for entry in asked {
        assert!(
            entry["evidence"].as_str().unwrap().contains("404"),
            "{shown}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_everything_is_found_out() {
    let places = [Place::new(&config(true))];
    let world = World::start(&places, "sqlite:semel.db").await;
    campaign(world, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_what_cannot_be_found_out_waits_for_a_person() {
    let Some(database) = Database::new().await else {
        return;
    };
    let places = [Place::new(&config(false)), Place::new(&config(false))];
    let world = World::start(&places, &database.url).await;
    campaign(world, false).await;
}
