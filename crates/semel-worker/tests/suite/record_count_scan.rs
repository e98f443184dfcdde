//! The record count scan: one process counts every record, in batches.

use std::sync::Arc;
use std::time::Duration;

use semel_core::statistics::{Activity, DecisionCounts, MAX_CALLERS, Misuse, RecordCounts};
use semel_core::store::MAX_BATCH;
use semel_core::{
    BackgroundJob, Clock as _, Code, Fingerprint, Identity, Key, Memory, OperationId, Policy,
    Reserve, Status, Store,
};
use semel_testkit::ManualClock;
use semel_testkit::faulty::{Fault, Faulty, Verb};
use semel_worker::RecordCountScan;

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

fn scanner<S: Store>(store: S, clock: &ManualClock) -> RecordCountScan<S> {
    RecordCountScan::new(store, Arc::new(clock.clone()))
}

/// Runs rounds until the scan ends; returns their number.
async fn run_scan<S: Store>(scanner: &RecordCountScan<S>) -> usize {
    let mut rounds = 1;
    while scanner.round().await.unwrap() {
        rounds += 1;
    }
    rounds
}

fn counts(record_counts: &RecordCounts) -> Vec<(&str, Status, u64)> {
    let counts = record_counts.counts.iter();
    counts
        .map(|count| (&*count.operation, count.status, count.count))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn every_record_is_counted_once_in_batches() {
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
    let scanner = scanner(store.clone(), &clock);
    assert_eq!(run_scan(&scanner).await, 3, "2,000 at a time");
    let record_counts = store.record_counts().await.unwrap().unwrap();
    let expected = [
        ("pay", Status::InProgress, 4500),
        ("refund", Status::Unknown, 1),
    ];
    assert_eq!(counts(&record_counts), expected);
    assert!(record_counts.all_callers);
    let key = Key::new("k").unwrap();
    let found = store.find_key(&key).await.unwrap();
    assert_eq!(found.len(), 1, "callers were met");
    assert_eq!(found[0].fence.id, unknown.id);
}

#[tokio::test(start_paused = true)]
async fn the_next_scan_starts_after_the_interval() {
    let (store, clock) = store();
    let scanner = scanner(store.clone(), &clock);
    run_scan(&scanner).await;
    let first = store.record_counts().await.unwrap().unwrap();
    assert_eq!(counts(&first), []);
    store.reserve(request("t", "pay", "k")).await.unwrap();
    clock.advance(Duration::from_secs(29));
    run_scan(&scanner).await;
    assert_eq!(store.record_counts().await.unwrap().unwrap(), first);
    clock.advance(Duration::from_secs(1));
    run_scan(&scanner).await;
    let second = store.record_counts().await.unwrap().unwrap();
    assert_eq!(counts(&second), [("pay", Status::InProgress, 1)]);
}

#[tokio::test(start_paused = true)]
async fn another_process_takes_over_when_the_lease_expires() {
    let (store, clock) = store();
    for place in 0..3000 {
        store
            .reserve(request("t", "pay", &format!("k{place}")))
            .await
            .unwrap();
    }
    let (one, two) = (
        scanner(store.clone(), &clock),
        scanner(store.clone(), &clock),
    );
    assert!(one.round().await.unwrap(), "half a lap");
    assert!(!two.round().await.unwrap(), "stands by");
    assert_eq!(store.record_counts().await.unwrap(), None);
    clock.advance(Duration::from_mins(1));
    run_scan(&two).await;
    let record_counts = store.record_counts().await.unwrap().unwrap();
    assert_eq!(counts(&record_counts), [("pay", Status::InProgress, 3000)]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_scan_starts_over() {
    let (store, clock) = store();
    for place in 0..3000 {
        store
            .reserve(request("t", "pay", &format!("k{place}")))
            .await
            .unwrap();
    }
    let faulty = Faulty::new(store.clone());
    let scanner = scanner(faulty.clone(), &clock);
    assert!(scanner.round().await.unwrap());
    faulty.next(Verb::ScanRecords, Fault::FailBefore);
    scanner.round().await.unwrap_err();
    run_scan(&scanner).await;
    let record_counts = store.record_counts().await.unwrap().unwrap();
    assert_eq!(counts(&record_counts), [("pay", Status::InProgress, 3000)]);
}

#[tokio::test(start_paused = true)]
async fn operations_past_the_maximum_are_counted_together() {
    let (store, clock) = store();
    for place in 0..250 {
        let operation = format!("POST /payments/{place}");
        store.reserve(request("t", &operation, "k")).await.unwrap();
    }
    run_scan(&scanner(store.clone(), &clock)).await;
    let record_counts = store.record_counts().await.unwrap().unwrap();
    assert_eq!(record_counts.counts.len(), 201);
    let sum: u64 = record_counts.counts.iter().map(|count| count.count).sum();
    assert_eq!(sum, 250);
    let other = record_counts
        .counts
        .iter()
        .find(|one| &*one.operation == "other");
    assert_eq!(other.map(|other| other.count), Some(50));
}

#[tokio::test(start_paused = true)]
async fn too_many_callers_are_reported_as_incomplete() {
    let (store, clock) = store();
    for place in 0..=MAX_CALLERS {
        store
            .reserve(request(&format!("t{place}"), "pay", "k"))
            .await
            .unwrap();
    }
    run_scan(&scanner(store.clone(), &clock)).await;
    let record_counts = store.record_counts().await.unwrap().unwrap();
    assert!(!record_counts.all_callers);
    let found = store.find_key(&Key::new("k").unwrap()).await.unwrap();
    assert_eq!(found.len(), MAX_BATCH, "the newest of them");
}

#[tokio::test(start_paused = true)]
async fn old_activity_and_misuse_are_pruned() {
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
    let counts = DecisionCounts::default();
    let old = Activity {
        at: now,
        operation: "pay".into(),
        decisions: counts,
    };
    let young = Activity {
        at: now.saturating_add(Duration::from_secs(10)),
        ..old.clone()
    };
    store
        .add_counts(vec![old, young.clone()], vec![misuse("a", now)])
        .await
        .unwrap();
    run_scan(&scanner(store.clone(), &clock)).await;
    clock.advance(Duration::from_hours(25) + Duration::from_secs(5));
    // The first round counts, the next one prunes.
    let scanner = scanner(store.clone(), &clock);
    for _ in 0..2 {
        run_scan(&scanner).await;
    }
    assert_eq!(store.activity(now).await.unwrap(), [young]);
    assert_eq!(store.misuses(10).await.unwrap().len(), 1);
    clock.advance(Duration::from_hours(30 * 24));
    for _ in 0..2 {
        run_scan(&scanner).await;
    }
    assert_eq!(store.activity(now).await.unwrap(), []);
    assert_eq!(store.misuses(10).await.unwrap(), []);
}
