//! The shop is killed with SIGKILL between any two statements of a payment and of a refund, and
//! started again. Afterwards there is one payment, one charge, one ledger entry, one receipt, one
//! event and one answer, whether the client retries or the completer finishes the operation.
//!
//! The points are found by tracing one uninterrupted payment. A point is a statement and the one
//! before it, on the writing connection or in its transaction, so that background jobs of the shop
//! do not move it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use payments::provider;
use payments::shop::Summary;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::database::TracedDatabase;
use crate::harness::{Provider, charges, read};
use crate::shop_process::{ShopProcess, order, payment_of};

/// How many shops are walked at a time, each with its own database.
const WALKERS: usize = 4;
/// A pair of statements that comes more often than this in one payment is a background job.
const MAX_NTH: usize = 6;
/// How often a missed step is tried again.
const TRIES: usize = 3;
/// Longer than the period of every frequent background job.
const BACKGROUND: Duration = Duration::from_millis(1500);
/// How much of each payment of 1000 is refunded.
const REFUND: i64 = 300;
/// What only the heartbeats of both stores have in their text.
const HEARTBEATS: [&str; 2] = [
    "locked_until = max(locked_until",
    "locked_until = greatest(",
];

/// A point between two statements of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KillPoint {
    pub(crate) after: String,
    pub(crate) moment: Moment,
    pub(crate) sql: String,
    /// At which occurrence, counted from 1.
    pub(crate) nth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Moment {
    /// The statement has not begun.
    Before,
    /// The server has executed it, and the shop has not received the result.
    Answered,
}

/// The operation during which the shop is killed.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Payment,
    Refund,
}

/// Runs one shop after the other on one database.
struct Walker {
    database: TracedDatabase,
    provider: String,
    operation: Operation,
    /// How often the operation was performed on this database.
    performed: i64,
    shop: ShopProcess,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_survives_a_kill_at_every_statement_on_sqlite() {
    let killed = walk(Operation::Payment, async || TracedDatabase::sqlite()).await;
    assert!(killed >= 35, "only {killed} points");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_survives_a_kill_at_every_statement_on_sqlite() {
    let killed = walk(Operation::Refund, async || TracedDatabase::sqlite()).await;
    assert!(killed >= 28, "only {killed} points");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_survives_a_kill_at_every_statement_on_postgres() {
    if !TracedDatabase::has_postgres() {
        return;
    }
    let killed = walk(Operation::Payment, TracedDatabase::postgres).await;
    assert!(killed >= 50, "only {killed} points");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_survives_a_kill_at_every_statement_on_postgres() {
    if !TracedDatabase::has_postgres() {
        return;
    }
    let killed = walk(Operation::Refund, TracedDatabase::postgres).await;
    assert!(killed >= 45, "only {killed} points");
}

/// Kills the shop at every point of an operation; returns at how many.
async fn walk(operation: Operation, database: impl AsyncFn() -> TracedDatabase) -> usize {
    let provider = Provider::start().await;
    let mut first = Walker::start(database().await, &provider.url, operation).await;
    let (points, own_steps) = first.find_points().await;
    let (next, killed) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
    let mut walkers = vec![first];
    while walkers.len() < WALKERS {
        walkers.push(Walker::start(database().await, &provider.url, operation).await);
    }
    let walking = walkers.into_iter().map(async |mut walker| {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(point) = points.get(index) else {
                return walker;
            };
            if walker.survive(point, index % 2 == 0).await {
                killed.lock().unwrap().insert(point.clone());
            }
        }
    });
    let mut walkers = futures_util::future::join_all(walking).await;

    let mut killed = killed.into_inner().unwrap();
    // A background job need not run again, or may have run between two statements. The operation's
    // own steps always run.
    let steps = |killed: &BTreeSet<KillPoint>| -> BTreeSet<KillPoint> {
        killed.iter().map(|point| point.clone().at(0)).collect()
    };
    for missed in own_steps.difference(&steps(&killed)) {
        for _ in 0..TRIES {
            if walkers[0].survive(&missed.clone().at(1), true).await {
                killed.insert(missed.clone().at(1));
                break;
            }
        }
    }
    for step in &own_steps {
        println!("{:?} {}", step.moment, first_line(&step.sql));
    }
    println!(
        "killed at {} of {} points, {} of them only in the operation itself",
        killed.len(),
        points.len(),
        own_steps.len()
    );
    let steps = steps(&killed);
    let missed: Vec<_> = own_steps.difference(&steps).collect();
    assert!(missed.is_empty(), "never killed at {missed:#?}");
    let performed: i64 = walkers.iter().map(|walker| walker.performed).sum();
    let (_, ledger) = read(&provider.url("/ledger/summary")).await;
    let ledger: provider::Summary = serde_json::from_value(ledger).unwrap();
    let performed = usize::try_from(performed).unwrap();
    assert_eq!((ledger.count, ledger.succeeded), (performed, performed));
    assert_eq!(ledger.duplicate_references, BTreeMap::new());
    assert_eq!(ledger.refunded_more_than_once, BTreeMap::new());
    if let Operation::Refund = operation {
        assert_eq!(ledger.refunds, performed);
    }
    killed.len()
}

impl Walker {
    async fn start(database: TracedDatabase, provider: &str, operation: Operation) -> Self {
        let shop = ShopProcess::start(&database.store(), provider).await;
        Self {
            database,
            provider: provider.to_owned(),
            operation,
            performed: 0,
            shop: shop.unwrap(),
        }
    }

    /// Performs the operation without interruption. Returns the points at which it could have been
    /// interrupted, and those that certainly belong to the operation itself.
    async fn find_points(&mut self) -> (Vec<KillPoint>, BTreeSet<KillPoint>) {
        let mut idle: BTreeSet<KillPoint> = BTreeSet::new();
        let mut runs = Vec::new();
        for _ in 0..2 {
            // sleeps because background jobs run at their own pace, and their points must be known
            tokio::time::sleep(BACKGROUND).await;
            idle.extend(self.database.take_points(&self.shop).await);
            let (path, key, body) = self.next_request().await;
            drop(self.database.take_points(&self.shop).await);
            self.shop.retry_until_created(&path, &key, &body).await;
            self.wait_until_finished().await.expect("it is not killed");
            runs.push(self.database.take_points(&self.shop).await);
        }
        let steps = |run: &[KillPoint]| run.iter().cloned().collect::<BTreeSet<_>>();
        let mut both = &steps(&runs[0]) & &steps(&runs[1]);
        // A heartbeat comes with time: on a busy machine in both runs, and later in none.
        let is_heartbeat = |sql: &str| HEARTBEATS.iter().any(|heartbeat| sql.contains(heartbeat));
        both.retain(|step| !is_heartbeat(&step.sql) && !is_heartbeat(&step.after));
        // The second run: it has no statements that run once in the life of a database.
        let mut seen: BTreeMap<KillPoint, usize> = BTreeMap::new();
        for step in runs.swap_remove(1) {
            *seen.entry(step).or_default() += 1;
        }
        let points = seen
            .into_iter()
            .flat_map(|(step, times)| (1..=times.min(MAX_NTH)).map(move |nth| step.clone().at(nth)))
            .collect();
        (points, &both - &idle)
    }

    /// Performs the operation while the shop is killed at the point, and checks the end. Returns
    /// whether the shop reached the point.
    async fn survive(&mut self, point: &KillPoint, client_returns: bool) -> bool {
        let (path, key, body) = self.next_request().await;
        self.database.arm(&self.shop, point).await;
        let response = self.shop.send(&path, &key, &body).await;
        let was_alive = response.is_some() && self.wait_until_finished().await.is_some();
        // On a busy machine the lease may expire during the attempt. The completer then owns the
        // record, and the client is asked to come back.
        let first = response.filter(|response| !response.asks_to_come_back());
        if let Some(first) = &first {
            assert_eq!(
                first.status,
                StatusCode::CREATED,
                "{first:?}, to be killed {point}"
            );
        }
        let is_alive = self.database.disarm(&self.shop, was_alive).await;
        if !is_alive {
            let shop = ShopProcess::start(&self.database.store(), &self.provider).await;
            std::mem::replace(&mut self.shop, shop.unwrap())
                .wait_for_death()
                .await;
            if !client_returns {
                self.let_the_completer_finish(&path, &key, &body).await;
            }
        }
        let answer = self.shop.retry_until_created(&path, &key, &body).await;
        if let Some(first) = first {
            assert_eq!(answer.body, first.body, "another answer, killed {point}");
        }
        let again = self.shop.send(&path, &key, &body).await.unwrap();
        assert!(
            again.replayed && again.body == answer.body,
            "killed {point}"
        );
        let summary = self.wait_until_finished().await.unwrap();
        assert_eq!(summary, self.expected(), "killed {point}");
        assert_eq!(
            charges(&self.provider, &self.reference()).await,
            1,
            "killed {point}"
        );
        !is_alive
    }

    /// An operation of which anything is written is finished without its client.
    async fn let_the_completer_finish(&self, path: &str, key: &str, body: &Value) {
        let found = self.shop.summary().await.unwrap();
        let begun = match self.operation {
            Operation::Payment => found.processing + found.succeeded == self.performed,
            Operation::Refund => found.refunding + found.refunded == self.performed,
        };
        if begun {
            self.wait_until_finished().await.unwrap();
            let answer = self.shop.send(path, key, body).await.unwrap();
            assert!(
                answer.replayed,
                "it was finished, and {key} was executed again: {answer:?}"
            );
        }
    }

    /// The path, key and body of the next request.
    async fn next_request(&mut self) -> (String, String, Value) {
        self.performed += 1;
        let key = format!("key-{}-{}", self.shop.pid, self.performed);
        let order = order(&self.reference());
        match self.operation {
            Operation::Payment => ("/payments".to_owned(), key, order),
            Operation::Refund => {
                let paid = format!("paid-{key}");
                let paid = self
                    .shop
                    .retry_until_created("/payments", &paid, &order)
                    .await;
                // The payment is not interrupted: its events are delivered first.
                let waits = |summary: &Summary| summary.receipts < self.performed;
                self.shop
                    .wait_for(|summary| !waits(summary) && summary.events_waiting == 0)
                    .await;
                let path = format!("/payments/{}/refunds", payment_of(&paid).id);
                (path, key, json!({ "amount": REFUND }))
            }
        }
    }

    /// Waits until every operation is finished; `None` where the shop died.
    async fn wait_until_finished(&self) -> Option<Summary> {
        let expected = self.expected();
        self.shop.wait_for(|summary| *summary == expected).await
    }

    /// The books after every operation is finished.
    fn expected(&self) -> Summary {
        let payments = Summary {
            succeeded: self.performed,
            ledger_entries: self.performed,
            ledger_total: 1000 * self.performed,
            receipts: self.performed,
            ..Summary::default()
        };
        match self.operation {
            Operation::Payment => payments,
            Operation::Refund => Summary {
                refunded: self.performed,
                ledger_entries: 2 * self.performed,
                ledger_total: (1000 - REFUND) * self.performed,
                ..payments
            },
        }
    }

    fn reference(&self) -> String {
        format!("{}-{}", self.database.name(), self.performed)
    }
}

/// The first line of a statement that is not a comment.
pub(crate) fn first_line(sql: &str) -> &str {
    let mut lines = sql.lines().filter(|line| !line.starts_with("--"));
    lines.next().unwrap_or_default()
}

impl KillPoint {
    fn at(self, nth: usize) -> Self {
        Self { nth, ..self }
    }
}

impl fmt::Display for KillPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            after,
            moment,
            sql,
            nth,
        } = self;
        write!(
            f,
            "{moment:?} (time {nth}):\n{sql}\nwhich came after:\n{after}"
        )
    }
}
