//! The census: every operation is counted, by one process at a time, a stretch after the other.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::sync::Arc;
use std::time::Duration;

use semel_core::figures::{Activity, Census, MAX_CALLERS, Misuse, Told};
use semel_core::store::MAX_BATCH;
use semel_core::{
    Chore, Clock as _, Code, Figures, Fingerprint, Identity, Key, Memory, OperationId, Policy,
    Reserve, Status, Store,
};
use semel_testkit::ManualClock;
use semel_testkit::faulty::{Fault, Faulty, Verb};
use semel_worker::CensusTaker;

fn request(tenant: &str, operation: &str, key: &str) -> Reserve {
    Reserve {
        id: OperationId::generate(),
        identity: Identity::new(tenant, operation, Key::new(key).unwrap()).unwrap(),
        fingerprints: Fingerprint::of(&key).unwrap().into(),
        owner: "test".into(),
        policy: Policy::default(),
    }
}

fn store() -> (Memory, ManualClock) {
    let clock = ManualClock::default();
    (Memory::new(Arc::new(clock.clone())), clock)
}

fn taker<S: Figures>(store: S, clock: &ManualClock) -> CensusTaker<S> {
    CensusTaker::new(store, Arc::new(clock.clone()))
}

/// Rounds until there is nothing more to do at once.
async fn lap<S: Figures>(taker: &CensusTaker<S>) -> usize {
    let mut rounds = 1;
    while taker.round().await.unwrap() {
        rounds += 1;
    }
    rounds
}

fn counts(census: &Census) -> Vec<(&str, Status, u64)> {
    let counts = census.counts.iter();
    counts
        .map(|count| (&*count.operation, count.status, count.count))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn every_operation_is_counted_once_in_stretches() {
    let (store, clock) = store();
    for place in 0..4500 {
        store
            .reserve(request("t", "pay", &format!("k{place}")))
            .await
            .unwrap();
    }
    let unknown = request("t", "refund", "k");
    store.reserve(unknown.clone()).await.unwrap();
    let fence = semel_core::Fence {
        id: unknown.id,
        attempt: 1,
    };
    let code = Code::from("timeout");
    store.mark_unknown(fence, code, None).await.unwrap();
    let taker = taker(store.clone(), &clock);
    assert_eq!(lap(&taker).await, 3, "2,000 at a time");
    let census = store.census().await.unwrap().unwrap();
    let expected = [
        ("pay", Status::InProgress, 4500),
        ("refund", Status::Unknown, 1),
    ];
    assert_eq!(counts(&census), expected);
    assert!(census.all_callers);
    let key = Key::new("k").unwrap();
    let found = store.find_key(&key).await.unwrap();
    assert_eq!(found.len(), 1, "callers were met");
    assert_eq!(found[0].fence.id, unknown.id);
}

#[tokio::test(start_paused = true)]
async fn the_next_census_waits_for_its_time() {
    let (store, clock) = store();
    let taker = taker(store.clone(), &clock);
    lap(&taker).await;
    let first = store.census().await.unwrap().unwrap();
    assert_eq!(counts(&first), []);
    store.reserve(request("t", "pay", "k")).await.unwrap();
    clock.advance(Duration::from_secs(29));
    lap(&taker).await;
    assert_eq!(store.census().await.unwrap().unwrap(), first);
    clock.advance(Duration::from_secs(1));
    lap(&taker).await;
    let second = store.census().await.unwrap().unwrap();
    assert_eq!(counts(&second), [("pay", Status::InProgress, 1)]);
}

#[tokio::test(start_paused = true)]
async fn one_process_counts_and_another_takes_over_when_it_falls_silent() {
    let (store, clock) = store();
    for place in 0..3000 {
        store
            .reserve(request("t", "pay", &format!("k{place}")))
            .await
            .unwrap();
    }
    let (one, two) = (taker(store.clone(), &clock), taker(store.clone(), &clock));
    assert!(one.round().await.unwrap(), "half a lap");
    assert!(!two.round().await.unwrap(), "stands by");
    assert_eq!(store.census().await.unwrap(), None);
    clock.advance(Duration::from_mins(1));
    lap(&two).await;
    let census = store.census().await.unwrap().unwrap();
    assert_eq!(counts(&census), [("pay", Status::InProgress, 3000)]);
}

#[tokio::test(start_paused = true)]
async fn a_lap_that_failed_is_begun_anew() {
    let (store, clock) = store();
    for place in 0..3000 {
        store
            .reserve(request("t", "pay", &format!("k{place}")))
            .await
            .unwrap();
    }
    let faulty = Faulty::new(store.clone());
    let taker = taker(faulty.clone(), &clock);
    assert!(taker.round().await.unwrap());
    faulty.next(Verb::Survey, Fault::FailBefore);
    taker.round().await.unwrap_err();
    lap(&taker).await;
    let census = store.census().await.unwrap().unwrap();
    assert_eq!(counts(&census), [("pay", Status::InProgress, 3000)]);
}

#[tokio::test(start_paused = true)]
async fn commands_past_a_number_are_counted_together() {
    let (store, clock) = store();
    for place in 0..250 {
        let operation = format!("POST /payments/{place}");
        store.reserve(request("t", &operation, "k")).await.unwrap();
    }
    lap(&taker(store.clone(), &clock)).await;
    let census = store.census().await.unwrap().unwrap();
    assert_eq!(census.counts.len(), 201);
    let sum: u64 = census.counts.iter().map(|count| count.count).sum();
    assert_eq!(sum, 250);
    let other = census.counts.iter().find(|one| &*one.operation == "other");
    assert_eq!(other.map(|other| other.count), Some(50));
}

#[tokio::test(start_paused = true)]
async fn it_says_so_where_there_are_more_callers_than_are_kept() {
    let (store, clock) = store();
    for place in 0..=MAX_CALLERS {
        store
            .reserve(request(&format!("t{place}"), "pay", "k"))
            .await
            .unwrap();
    }
    lap(&taker(store.clone(), &clock)).await;
    let census = store.census().await.unwrap().unwrap();
    assert!(!census.all_callers);
    let found = store.find_key(&Key::new("k").unwrap()).await.unwrap();
    assert_eq!(found.len(), MAX_BATCH, "the newest of them");
}

#[tokio::test(start_paused = true)]
async fn figures_that_nobody_looks_at_any_more_are_let_go_of() {
    let (store, clock) = store();
    let now = clock.now();
    let misuse = |tenant: &str, at| Misuse {
        tenant: tenant.into(),
        operation: "pay".into(),
        count: 1,
        first_at: at,
        last_at: at,
        last_id: OperationId::generate(),
    };
    let told = Told::default();
    let old = Activity {
        at: now,
        operation: "pay".into(),
        told,
    };
    let young = Activity {
        at: now.saturating_add(Duration::from_secs(10)),
        ..old.clone()
    };
    store
        .count(vec![old, young.clone()], vec![misuse("a", now)])
        .await
        .unwrap();
    lap(&taker(store.clone(), &clock)).await;
    clock.advance(Duration::from_hours(25) + Duration::from_secs(5));
    // The first round counts, the next has time for this.
    let taker = taker(store.clone(), &clock);
    for _ in 0..2 {
        lap(&taker).await;
    }
    assert_eq!(store.activity(now).await.unwrap(), [young]);
    assert_eq!(store.misuses(10).await.unwrap().len(), 1);
    clock.advance(Duration::from_hours(30 * 24));
    for _ in 0..2 {
        lap(&taker).await;
    }
    assert_eq!(store.activity(now).await.unwrap(), []);
    assert_eq!(store.misuses(10).await.unwrap(), []);
}
