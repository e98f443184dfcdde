//! Processes hear of each other: ends that somebody waits for, and erasures.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code says what is wrong by panicking"
)]

mod support;

use std::time::Duration;

use futures_util::FutureExt as _;
use semel_core::store::Epoch;
use semel_core::{Fence, Maintain, Resolve, Store, Verdict};
use semel_postgres::Postgres;
use semel_testkit::database::Database;
use support::{completion, granted};

/// Longer than any machine is busy: only what never comes should be given up on.
const PATIENCE: Duration = Duration::from_secs(30);

/// A way in which an execution ends.
type End = fn(Postgres, Fence) -> futures_util::future::BoxFuture<'static, ()>;

async fn two() -> Option<(Database, Postgres, Postgres)> {
    let database = Database::new().await?;
    let one = Postgres::open(&database.url).await.unwrap();
    let other = Postgres::open(&database.url).await.unwrap();
    Some((database, one, other))
}

/// Every way an execution ends is heard, and nothing is heard before.
#[tokio::test]
async fn whoever_watches_hears_of_the_end_in_another_process() {
    let Some((_database, one, other)) = two().await else {
        return;
    };
    let ends: [(&str, End); 4] = [
        ("complete", |store, fence| {
            async move {
                store.complete(fence, completion("{}")).await.unwrap();
            }
            .boxed()
        }),
        ("release", |store, fence| {
            async move {
                store.release(fence, "x".into()).await.unwrap();
            }
            .boxed()
        }),
        ("evict", |store, fence| {
            async move {
                store.evict(fence, "x".into()).await.unwrap();
            }
            .boxed()
        }),
        ("mark_unknown", |store, fence| {
            async move {
                store.mark_unknown(fence, "x".into(), None).await.unwrap();
            }
            .boxed()
        }),
    ];
    for (name, end) in ends {
        let fence = granted(&one, name).await;
        let mut hearing = other.watch(fence).await.unwrap();
        let mut second = other.watch(fence).await.unwrap();
        assert!((&mut hearing).now_or_never().is_none(), "{name}: too early");
        end(one.clone(), fence).await;
        for hearing in [&mut hearing, &mut second] {
            let heard = tokio::time::timeout(PATIENCE, hearing).await;
            assert!(heard.is_ok(), "{name} is not heard");
        }
    }
}

#[tokio::test]
async fn a_verdict_is_heard_by_who_began_to_wait_before() {
    let Some((_database, one, other)) = two().await else {
        return;
    };
    let fence = granted(&one, "k").await;
    let hearing = other.watch(fence).await.unwrap();
    one.mark_unknown(fence, "x".into(), None).await.unwrap();
    tokio::time::timeout(PATIENCE, hearing).await.unwrap();
    // Whoever comes now watches an attempt that has ended: it may hear nothing, and hangs on
    // nothing either.
    let late = other.watch(fence).await.unwrap();
    let verdict = Resolve {
        fence,
        verdict: Verdict::Completed(completion("{}")),
        by: "test".into(),
        evidence: None,
    };
    one.resolve(verdict).await.unwrap();
    drop(late);
}

async fn until(store: &Postgres, what: impl Fn(Option<Epoch>) -> bool) {
    let looking = async {
        while !what(store.epoch()) {
            tokio::task::yield_now().await;
        }
    };
    let seen = tokio::time::timeout(PATIENCE, looking).await;
    assert!(seen.is_ok(), "the epoch is {:?}", store.epoch());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_begins_an_epoch_in_every_process() {
    let Some((database, one, other)) = two().await else {
        return;
    };
    let fence = granted(&one, "k").await;
    one.complete(fence, completion("{}")).await.unwrap();
    let before = one.epoch().unwrap();
    assert_eq!(other.epoch(), Some(before));
    assert!(one.erase(fence.id, "test".into()).await.unwrap());
    // Here at once, before anybody is told; elsewhere as soon as it is heard.
    assert_eq!(one.epoch(), Some(Epoch(before.0 + 1)));
    until(&other, |epoch| epoch == Some(Epoch(before.0 + 1))).await;
    // One who starts now knows it, too.
    let third = Postgres::open(&database.url).await.unwrap();
    assert_eq!(third.epoch(), Some(Epoch(before.0 + 1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_hear_does_not_know_the_epoch_until_it_has_caught_up() {
    let Some((database, one, other)) = two().await else {
        return;
    };
    let fence = granted(&one, "k").await;
    one.complete(fence, completion("{}")).await.unwrap();
    let client = database.client().await;
    let rename = |from: &str, to: &str| format!("ALTER TABLE semel.{from} RENAME TO {to}");
    // Nobody can begin to listen while the table is away, so it is seen that nobody does.
    client
        .batch_execute(&rename("epoch", "away"))
        .await
        .unwrap();
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = current_database() AND query LIKE '%semel.epoch%'
                 AND pid <> pg_backend_pid()";
    client.query(cut, &[]).await.unwrap();
    until(&one, |epoch| epoch.is_none()).await;
    until(&other, |epoch| epoch.is_none()).await;
    assert!(other.watch(fence).await.is_none());
    client
        .batch_execute(&rename("away", "epoch"))
        .await
        .unwrap();
    until(&one, |epoch| epoch.is_some()).await;
    until(&other, |epoch| epoch.is_some()).await;
    assert_eq!(one.epoch(), other.epoch());
}
