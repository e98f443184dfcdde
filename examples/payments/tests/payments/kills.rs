//! The shop is killed with SIGKILL between any two statements of a payment and of a refund, and
//! started again. After that there is one payment, one charge, one entry, one receipt, one event,
//! and one answer: whether the client comes back, or nobody does and the completer finishes it.
//!
//! Which points there are is found by watching one payment that nobody interrupts. A point is a
//! statement and the one before it, on the connection that writes or in its transaction, so that
//! whatever else the shop does in the background does not move it.

mod at_the_provider;
mod ground;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use payments::provider;
use payments::shop::Summary;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::harness::{Server, read};
use crate::supervised::{Shop, charges, order, payment_of};
use ground::Ground;

/// How many shops are walked at a time, each with books of its own.
const WALKERS: usize = 4;
/// What follows what more often than this in one payment is a background job going round.
const MAX_NTH: usize = 6;
/// How often a step that did not come by is waited for.
const TRIES: usize = 3;
/// Longer than it takes every frequent background job to come by.
const BACKGROUND: Duration = Duration::from_millis(1500);
/// What goes back of each payment of 1000.
const REFUND: i64 = 300;

/// Between two statements of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    after: String,
    moment: Moment,
    sql: String,
    /// The nth time that it comes to this, from 1.
    nth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// The statement was not begun.
    Before,
    /// It was done, and nobody was told.
    Answered,
}

/// What is going on when the shop is killed.
#[derive(Clone, Copy, Debug)]
enum Story {
    Payment,
    Refund,
}

/// One shop after the other, on one set of books.
struct Walker {
    ground: Ground,
    provider: String,
    story: Story,
    /// How often the story was told, on these books.
    told: i64,
    shop: Shop,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_survives_at_every_statement_on_sqlite() {
    let walked = walk(Story::Payment, async || Ground::sqlite()).await;
    assert!(walked >= 35, "only {walked} points");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_survives_at_every_statement_on_sqlite() {
    let walked = walk(Story::Refund, async || Ground::sqlite()).await;
    assert!(walked >= 28, "only {walked} points");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_survives_at_every_statement_on_postgres() {
    if !Ground::has_postgres() {
        return;
    }
    let walked = walk(Story::Payment, async || Ground::postgres().await).await;
    assert!(walked >= 50, "only {walked} points");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_survives_at_every_statement_on_postgres() {
    if !Ground::has_postgres() {
        return;
    }
    let walked = walk(Story::Refund, async || Ground::postgres().await).await;
    assert!(walked >= 45, "only {walked} points");
}

/// Kills at every point of a story; says at how many.
async fn walk(story: Story, ground: impl AsyncFn() -> Ground) -> usize {
    let provider = Server::provider(provider::Config::default()).await;
    let mut first = Walker::start(ground().await, &provider.url, story).await;
    let (points, story_only) = first.watch().await;
    let (next, killed) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
    let mut walkers = vec![first];
    while walkers.len() < WALKERS {
        walkers.push(Walker::start(ground().await, &provider.url, story).await);
    }
    let walking = walkers.into_iter().map(async |mut walker| {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(point) = points.get(place) else {
                return walker;
            };
            if walker.survive(point, place % 2 == 0).await {
                killed.lock().unwrap().insert(point.clone());
            }
        }
    });
    let mut walkers = futures_util::future::join_all(walking).await;

    let mut killed = killed.into_inner().unwrap();
    // A background job need not come by again, and may have come between two statements. The story
    // itself always comes by.
    let steps = |killed: &BTreeSet<Point>| -> BTreeSet<Point> {
        killed.iter().map(|point| point.clone().at(0)).collect()
    };
    for missed in story_only.difference(&steps(&killed)) {
        for _ in 0..TRIES {
            if walkers[0].survive(&missed.clone().at(1), true).await {
                killed.insert(missed.clone().at(1));
                break;
            }
        }
    }
    for step in &story_only {
        println!("{:?} {}", step.moment, first_line(&step.sql));
    }
    let (of, points) = (killed.len(), points.len());
    println!(
        "killed at {of} of {points} points, {} of them only the story's",
        story_only.len()
    );
    let steps = steps(&killed);
    let missed: Vec<_> = story_only.difference(&steps).collect();
    assert!(missed.is_empty(), "never killed at {missed:#?}");
    let told: i64 = walkers.iter().map(|walker| walker.told).sum();
    let (_, ledger) = read(&provider.url("/ledger/summary")).await;
    let ledger: provider::Summary = serde_json::from_value(ledger).unwrap();
    let told = usize::try_from(told).unwrap();
    assert_eq!((ledger.count, ledger.succeeded), (told, told));
    assert_eq!(ledger.duplicate_references, BTreeMap::new());
    assert_eq!(ledger.refunded_more_than_once, BTreeMap::new());
    if let Story::Refund = story {
        assert_eq!(ledger.refunds, told);
    }
    killed.len()
}

impl Walker {
    async fn start(ground: Ground, provider: &str, story: Story) -> Self {
        let shop = Shop::start(&ground.store(), provider, &[]).await.unwrap();
        Self {
            ground,
            provider: provider.to_owned(),
            story,
            told: 0,
            shop,
        }
    }

    /// Tells the story without interruption, and says where it could have been interrupted; and
    /// which of these steps are certainly the story's own.
    async fn watch(&mut self) -> (Vec<Point>, BTreeSet<Point>) {
        let mut idle: BTreeSet<Point> = BTreeSet::new();
        let mut told = Vec::new();
        for _ in 0..2 {
            // sleeps because background jobs come by at their own pace, and are to be known
            tokio::time::sleep(BACKGROUND).await;
            idle.extend(self.ground.seen(&self.shop).await);
            let (path, key, body) = self.begin().await;
            self.ground.forget(&self.shop).await;
            self.shop.insist(&path, &key, &body).await;
            self.settled().await.expect("nobody kills it");
            told.push(self.ground.seen(&self.shop).await);
        }
        let steps = |told: &[Point]| told.iter().cloned().collect::<BTreeSet<_>>();
        let both = &steps(&told[0]) & &steps(&told[1]);
        // The second time: what is done once in the life of a database is not what this is about.
        let mut seen: BTreeMap<Point, usize> = BTreeMap::new();
        for step in told.swap_remove(1) {
            *seen.entry(step).or_default() += 1;
        }
        let points = seen
            .into_iter()
            .flat_map(|(step, times)| (1..=times.min(MAX_NTH)).map(move |nth| step.clone().at(nth)))
            .collect();
        (points, &both - &idle)
    }

    /// Tells the story and dies at the point; says whether it came to that. Then all is well.
    async fn survive(&mut self, point: &Point, client_returns: bool) -> bool {
        let (path, key, body) = self.begin().await;
        self.ground.arm(&self.shop, point).await;
        let first = self.shop.ask(&path, &key, &body).await;
        if let Some(first) = &first {
            assert_eq!(
                first.status,
                StatusCode::CREATED,
                "{first:?}, to be killed {point}"
            );
        }
        let is_alive = first.is_some() && self.settled().await.is_some();
        self.ground.disarm(&self.shop, is_alive).await;
        if !is_alive {
            let shop = Shop::start(&self.ground.store(), &self.provider, &[]).await;
            std::mem::replace(&mut self.shop, shop.unwrap())
                .bury()
                .await;
            if !client_returns {
                self.let_the_completer_finish(&path, &key, &body).await;
            }
        }
        let answer = self.shop.insist(&path, &key, &body).await;
        if let Some(first) = first {
            assert_eq!(answer.body, first.body, "another answer, killed {point}");
        }
        let again = self.shop.ask(&path, &key, &body).await.unwrap();
        assert!(
            again.replayed && again.body == answer.body,
            "killed {point}"
        );
        let summary = self.settled().await.unwrap();
        assert_eq!(summary, self.expected(), "killed {point}");
        assert_eq!(
            charges(&self.provider, &self.reference()).await,
            1,
            "killed {point}"
        );
        !is_alive
    }

    /// Where anything is written, it is finished without the client.
    async fn let_the_completer_finish(&self, path: &str, key: &str, body: &Value) {
        let found = self.shop.summary().await.unwrap();
        let begun = match self.story {
            Story::Payment => found.processing + found.succeeded == self.told,
            Story::Refund => found.refunding + found.refunded == self.told,
        };
        if begun {
            self.settled().await.unwrap();
            let answer = self.shop.ask(path, key, body).await.unwrap();
            assert!(
                answer.replayed,
                "it was finished, and {key} is answered anew: {answer:?}"
            );
        }
    }

    /// The next request of the story.
    async fn begin(&mut self) -> (String, String, Value) {
        self.told += 1;
        let key = format!("key-{}-{}", self.shop.pid, self.told);
        let order = order(&self.reference());
        match self.story {
            Story::Payment => ("/payments".to_owned(), key, order),
            Story::Refund => {
                let paid = format!("paid-{key}");
                let paid = self.shop.insist("/payments", &paid, &order).await;
                // Not interrupted: its events are out of the way.
                let waits = |summary: &Summary| summary.receipts < self.told;
                self.shop
                    .until(|summary| !waits(summary) && summary.events_waiting == 0)
                    .await;
                let path = format!("/payments/{}/refunds", payment_of(&paid).id);
                (path, key, json!({ "amount": REFUND }))
            }
        }
    }

    /// Waits until the story has been told to its end; `None` where the shop died.
    async fn settled(&self) -> Option<Summary> {
        let expected = self.expected();
        self.shop.until(|summary| *summary == expected).await
    }

    /// What the books say when the story was told so often.
    fn expected(&self) -> Summary {
        let payments = Summary {
            succeeded: self.told,
            ledger_entries: self.told,
            ledger_total: 1000 * self.told,
            receipts: self.told,
            ..Summary::default()
        };
        match self.story {
            Story::Payment => payments,
            Story::Refund => Summary {
                refunded: self.told,
                ledger_entries: 2 * self.told,
                ledger_total: (1000 - REFUND) * self.told,
                ..payments
            },
        }
    }

    fn reference(&self) -> String {
        format!("{}-{}", self.ground.name(), self.told)
    }
}

/// What a statement does, without why.
fn first_line(sql: &str) -> &str {
    let mut lines = sql.lines().filter(|line| !line.starts_with("--"));
    lines.next().unwrap_or_default()
}

impl Point {
    fn at(self, nth: usize) -> Self {
        Self { nth, ..self }
    }
}

impl fmt::Display for Point {
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
