//! Calls that arrive during a commit share the next one, and a failing call does not affect the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::support::{granted, request};
use semel_core::{Clock, Error, Store, Timestamp};
use semel_sqlite::{Options, Sqlite};

/// A clock that never returns the same time twice. A group reads it once, so the number of
/// different times is the number of commits.
#[derive(Debug, Default)]
struct Ticking(AtomicI64);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// One thread, so that every spawned call has reached the store once it was yielded to.
#[tokio::test(flavor = "current_thread")]
async fn calls_that_arrive_during_a_commit_share_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("semel.db");
    let store = Options::new(&path)
        .clock(Arc::<Ticking>::default())
        .open()
        .await
        .unwrap();

    let holder = rusqlite::Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let calls: Vec<_> = (0..100)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { granted(&store, &format!("key-{number}")).await })
        })
        .collect();
    tokio::task::yield_now().await;
    holder.execute_batch("ROLLBACK").unwrap();

    let mut commits = BTreeSet::new();
    for call in calls {
        let record = store.find(call.await.unwrap().id).await.unwrap().unwrap();
        commits.insert(record.created_at);
    }
    // One commit for the calls that arrived before the writer started, and one for the rest.
    assert!(
        commits.len() <= 2,
        "100 calls took {} commits",
        commits.len()
    );
}

#[tokio::test(flavor = "current_thread")]
async fn a_failing_call_does_not_fail_its_group() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("semel.db");
    let store = Sqlite::open(&path).await.unwrap();
    let taken = granted(&store, "the first").await;

    let holder = rusqlite::Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let calls: Vec<_> = (0..20)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut request = request(&format!("key-{number}"));
                if number == 7 {
                    // The id exists already, so the database refuses it.
                    request.id = taken.id;
                }
                store.reserve(request).await
            })
        })
        .collect();
    tokio::task::yield_now().await;
    holder.execute_batch("ROLLBACK").unwrap();

    for (number, call) in calls.into_iter().enumerate() {
        match call.await.unwrap() {
            Ok(_) => assert_ne!(number, 7),
            Err(error) => {
                assert_eq!(number, 7, "{error}");
                assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            }
        }
    }
}
