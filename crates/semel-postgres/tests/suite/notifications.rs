//! Notifications between processes: ended attempts and erasures.

use std::time::Duration;

use crate::support::{completion, granted};
use futures_util::FutureExt as _;
use semel_core::store::ErasureEpoch;
use semel_core::{Backend as _, Fence, Resolve, Store, Verdict};
use semel_postgres::Postgres;
use semel_testkit::database::Database;

/// Long enough for a busy machine: only a missing notification times out.
const PATIENCE: Duration = Duration::from_secs(30);

/// A way in which an execution ends.
type End = fn(Postgres, Fence) -> futures_util::future::BoxFuture<'static, ()>;

async fn two() -> Option<(Database, Postgres, Postgres)> {
    let database = Database::new().await?;
    let one = Postgres::open(&database.url).await.unwrap();
    let other = Postgres::open(&database.url).await.unwrap();
    Some((database, one, other))
}

/// A watcher is notified of every way an attempt ends, and not before.
#[tokio::test]
async fn a_watcher_is_notified_when_another_process_ends_the_attempt() {
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
        let mut hearing = other.watch(fence).await.unwrap().unwrap();
        let mut second = other.watch(fence).await.unwrap().unwrap();
        assert!((&mut hearing).now_or_never().is_none(), "{name}: too early");
        end(one.clone(), fence).await;
        for hearing in [&mut hearing, &mut second] {
            let heard = tokio::time::timeout(PATIENCE, hearing).await;
            assert!(heard.is_ok(), "{name} is not heard");
        }
    }
}

#[tokio::test]
async fn an_earlier_watcher_is_notified_of_mark_unknown() {
    let Some((_database, one, other)) = two().await else {
        return;
    };
    let fence = granted(&one, "k").await;
    let hearing = other.watch(fence).await.unwrap().unwrap();
    one.mark_unknown(fence, "x".into(), None).await.unwrap();
    tokio::time::timeout(PATIENCE, hearing).await.unwrap();
    // A later watcher watches an attempt that has ended: it may get no notification, and does
    // not block the verdict.
    let late = other.watch(fence).await.unwrap().unwrap();
    let verdict = Resolve {
        fence,
        verdict: Verdict::Completed(completion("{}")),
        by: "test".into(),
        evidence: None,
    };
    one.resolve(verdict).await.unwrap();
    drop(late);
}

async fn until(store: &Postgres, what: impl Fn(Option<ErasureEpoch>) -> bool) {
    let looking = async {
        while !what(store.erasure_epoch()) {
            tokio::task::yield_now().await;
        }
    };
    let seen = tokio::time::timeout(PATIENCE, looking).await;
    assert!(seen.is_ok(), "the epoch is {:?}", store.erasure_epoch());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_advances_the_epoch_in_every_process() {
    let Some((database, one, other)) = two().await else {
        return;
    };
    let fence = granted(&one, "k").await;
    one.complete(fence, completion("{}")).await.unwrap();
    let before = one.erasure_epoch().unwrap();
    assert_eq!(other.erasure_epoch(), Some(before));
    assert!(one.erase(fence.id, "test".into()).await.unwrap());
    // In this process at once; in others as soon as the notification arrives.
    assert_eq!(one.erasure_epoch(), Some(ErasureEpoch(before.0 + 1)));
    until(&other, |epoch| epoch == Some(ErasureEpoch(before.0 + 1))).await;
    // A process that starts now reads the new epoch.
    let third = Postgres::open(&database.url).await.unwrap();
    assert_eq!(third.erasure_epoch(), Some(ErasureEpoch(before.0 + 1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_epoch_is_unknown_while_the_listener_is_disconnected() {
    let Some((database, one, other)) = two().await else {
        return;
    };
    let fence = granted(&one, "k").await;
    one.complete(fence, completion("{}")).await.unwrap();
    let client = database.client().await;
    let rename = |from: &str, to: &str| format!("ALTER TABLE semel.{from} RENAME TO {to}");
    // No connection can start to listen while the table is missing, so the epoch stays unknown.
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
    assert!(other.watch(fence).await.unwrap().is_none());
    client
        .batch_execute(&rename("away", "epoch"))
        .await
        .unwrap();
    until(&one, |epoch| epoch.is_some()).await;
    until(&other, |epoch| epoch.is_some()).await;
    assert_eq!(one.erasure_epoch(), other.erasure_epoch());
}
