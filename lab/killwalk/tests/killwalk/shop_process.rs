//! A shop in its own process, which is killed and started again.

use std::process::Stdio;
use std::time::Duration;

use payments::shop::{Payment, Summary};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::harness::{client, post, read};

/// Long enough for a busy machine, short enough that a walk over all points ends: what a killed
/// process had begun continues only after its lease.
const LEASE_MS: &str = "300";
/// How often another process is polled.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// When the test gives up.
const GIVE_UP: Duration = Duration::from_mins(1);

pub(crate) struct ShopProcess {
    process: Child,
    pub(crate) pid: u32,
    url: String,
    control: String,
}

/// A response, as the client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) replayed: bool,
    pub(crate) body: Value,
}

impl Answer {
    /// Whether it is a refusal of Semel that a later retry does not get.
    pub(crate) fn asks_to_come_back(&self) -> bool {
        let code = self.body["code"].as_str().unwrap_or_default();
        matches!(
            code,
            "idempotency_key_in_progress"
                | "idempotency_outcome_unknown"
                | "idempotency_outcome_pending"
        )
    }
}

impl ShopProcess {
    /// Starts it, and waits until it answers. `None` where it died before.
    pub(crate) async fn start(store: &str, provider: &str) -> Option<Self> {
        let mut process = Command::new(env!("CARGO_BIN_EXE_semel-killwalk"))
            .args(["--lease-ms", LEASE_MS])
            .args(["--store", store, "--provider", provider])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let shop = Self {
            pid: process.id().unwrap(),
            process,
            url: read_address(&mut lines, "shop").await,
            control: read_address(&mut lines, "control").await,
        };
        shop.get("/healthz").await?;
        Some(shop)
    }

    /// Reads a path; `None` where the shop does not answer.
    async fn get(&self, path: &str) -> Option<Value> {
        let call = client().get(self.url(path)).header("x-account-id", "acc_1");
        let body = call.send().await.ok()?.bytes().await.ok()?;
        Some(serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// The statements that ran on the writing connection since the last call.
    pub(crate) async fn take_statements(&self) -> Vec<String> {
        let (_, statements) = read(&format!("{}/kill-point", self.control)).await;
        serde_json::from_value(statements).unwrap()
    }

    /// Sets where the process kills itself. Returns whether it was alive to hear it.
    pub(crate) async fn set_kill_point(&self, after: &str, before: &str, nth: usize) -> bool {
        let point = json!({ "after": after, "before": before, "nth": nth });
        let call = client().put(format!("{}/kill-point", self.control));
        let call = call.header("content-type", "application/json");
        let Ok(answer) = call.body(point.to_string()).send().await else {
            return false;
        };
        assert!(answer.status().is_success());
        true
    }

    pub(crate) async fn summary(&self) -> Option<Summary> {
        Some(serde_json::from_value(self.get("/summary").await?).unwrap())
    }

    /// Waits for a state of the books; `None` where the shop died.
    pub(crate) async fn wait_for(&self, reached: impl Fn(&Summary) -> bool) -> Option<Summary> {
        let polling = async {
            loop {
                let summary = self.summary().await?;
                if reached(&summary) {
                    return Some(summary);
                }
                // sleeps because the shop works in another process and sends no event
                tokio::time::sleep(POLL_EVERY).await;
            }
        };
        let Ok(found) = tokio::time::timeout(GIVE_UP, polling).await else {
            panic!("the books never reached it: {:?}", self.summary().await);
        };
        found
    }

    /// Sends one request under a key; `None` where the shop does not answer.
    pub(crate) async fn send(&self, path: &str, key: &str, body: &Value) -> Option<Answer> {
        let answer = post(self.url(path), key, body).send().await.ok()?;
        Some(Answer {
            status: answer.status(),
            replayed: answer.headers().contains_key("idempotent-replayed"),
            body: serde_json::from_slice(&answer.bytes().await.ok()?).unwrap_or(Value::Null),
        })
    }

    /// Retries the request, as a client does, until it is answered with 201.
    pub(crate) async fn retry_until_created(&self, path: &str, key: &str, body: &Value) -> Answer {
        let mut last = None;
        let retrying = async {
            loop {
                last = self.send(path, key, body).await;
                if let Some(answer) = &last
                    && answer.status == StatusCode::CREATED
                {
                    return answer.clone();
                }
                // sleeps because the lease of the killed process ends by its own clock
                tokio::time::sleep(POLL_EVERY).await;
            }
        };
        let answer = tokio::time::timeout(GIVE_UP, retrying).await;
        answer.unwrap_or_else(|_| panic!("{key} was never answered with 201, last: {last:?}"))
    }

    /// Kills it with SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }

    /// Waits for the end of a process that was killed.
    pub(crate) async fn wait_for_death(mut self) {
        let ended = tokio::time::timeout(GIVE_UP, self.process.wait()).await;
        let ended = ended.expect("it does not die").unwrap();
        assert_eq!(ended.code(), None, "it exited instead of being killed");
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }
}

async fn read_address(lines: &mut Lines<BufReader<ChildStdout>>, name: &str) -> String {
    let line = lines.next_line().await.unwrap().expect("a line");
    let prefix = format!("listening {name} ");
    line.strip_prefix(&prefix).expect(&line).to_owned()
}

/// The body of a payment.
pub(crate) fn order(reference: &str) -> Value {
    json!({ "amount": 1000, "currency": "EUR", "merchant_reference": reference })
}

pub(crate) fn payment_of(answer: &Answer) -> Payment {
    serde_json::from_value(answer.body.clone()).unwrap()
}
