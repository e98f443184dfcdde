//! A shop in a process of its own, which dies and is started again.

use std::process::Stdio;
use std::time::Duration;

use payments::shop::{Payment, Summary};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::harness::{client, post, read};

/// Long enough for a machine that is busy, short enough that a walk over all points ends: nobody
/// goes on with what a dead process had begun before this is over.
const LEASE_MS: &str = "300";
/// What another process does is asked for this often.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// After so long it will not happen any more.
const GIVE_UP: Duration = Duration::from_mins(1);

pub(crate) struct Shop {
    process: Child,
    pub(crate) pid: u32,
    url: String,
}

/// What a client heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) replayed: bool,
    pub(crate) body: Value,
}

impl Shop {
    /// Starts it, and waits until it answers. `None` where it died before.
    pub(crate) async fn start(store: &str, provider: &str, more: &[&str]) -> Option<Self> {
        let mut process = Command::new(env!("CARGO_BIN_EXE_payments"))
            .args(["shop", "--listen", "127.0.0.1:0", "--lease-ms", LEASE_MS])
            .args(["--store", store, "--provider", provider])
            .args(more)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().expect("a line");
        let url = line
            .strip_prefix("listening shop ")
            .expect(&line)
            .to_owned();
        let shop = Self {
            pid: process.id().unwrap(),
            process,
            url,
        };
        shop.get("/healthz").await?;
        Some(shop)
    }

    /// Reads something; `None` where there is nobody.
    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        let call = client().get(self.url(path)).header("x-account-id", "acc_1");
        let body = call.send().await.ok()?.bytes().await.ok()?;
        Some(serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) {
        let call = client().put(self.url(path));
        let call = call.header("content-type", "application/json");
        let answer = call.body(body.to_string()).send().await.unwrap();
        assert!(answer.status().is_success());
    }

    pub(crate) async fn summary(&self) -> Option<Summary> {
        Some(serde_json::from_value(self.get("/summary").await?).unwrap())
    }

    /// Waits until the books say so; `None` where the shop died.
    pub(crate) async fn until(&self, so: impl Fn(&Summary) -> bool) -> Option<Summary> {
        let asking = async {
            loop {
                let summary = self.summary().await?;
                if so(&summary) {
                    return Some(summary);
                }
                // sleeps because the shop works in another process and tells nobody
                tokio::time::sleep(ASK_EVERY).await;
            }
        };
        let Ok(found) = tokio::time::timeout(GIVE_UP, asking).await else {
            panic!("it never came to that: {:?}", self.summary().await);
        };
        found
    }

    /// One request under a key; `None` where nobody answers.
    pub(crate) async fn ask(&self, path: &str, key: &str, body: &Value) -> Option<Answer> {
        let call = post(self.url(path), body)
            .header("x-account-id", "acc_1")
            .header("idempotency-key", format!("\"{key}\""));
        let answer = call.send().await.ok()?;
        Some(Answer {
            status: answer.status(),
            replayed: answer.headers().contains_key("idempotent-replayed"),
            body: serde_json::from_slice(&answer.bytes().await.ok()?).unwrap_or(Value::Null),
        })
    }

    /// What a client does that wants to know: the same request again, until there is an answer.
    pub(crate) async fn insist(&self, path: &str, key: &str, body: &Value) -> Answer {
        let mut last = None;
        let asking = async {
            loop {
                last = self.ask(path, key, body).await;
                if let Some(answer) = &last
                    && answer.status == StatusCode::CREATED
                {
                    return answer.clone();
                }
                // sleeps because the lease of the process that died ends by its own clock
                tokio::time::sleep(ASK_EVERY).await;
            }
        };
        let answer = tokio::time::timeout(GIVE_UP, asking).await;
        answer.unwrap_or_else(|_| panic!("{key} was never answered, last by {last:?}"))
    }

    /// Kills it as nothing else does.
    pub(crate) async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }

    /// It is dead, or about to be.
    pub(crate) async fn bury(mut self) {
        let ended = tokio::time::timeout(GIVE_UP, self.process.wait()).await;
        let ended = ended.expect("it does not die").unwrap();
        assert_eq!(ended.code(), None, "it ended by itself");
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }
}

/// The body of a payment.
pub(crate) fn order(reference: &str) -> Value {
    json!({ "amount": 1000, "currency": "EUR", "merchant_reference": reference })
}

pub(crate) fn payment_of(answer: &Answer) -> Payment {
    serde_json::from_value(answer.body.clone()).unwrap()
}

/// The provider's charges of one reference.
pub(crate) async fn charges(provider: &str, reference: &str) -> usize {
    let (_, entries) = read(&format!("{provider}/ledger")).await;
    let entries = entries.as_array().unwrap();
    let of_it = |entry: &&Value| entry["reference"] == reference;
    entries.iter().filter(of_it).count()
}
