use std::sync::Arc;

use semel_core::{Clock as _, Fingerprint, Identity, Key as ClientKey, Memory, Policy, Reserve};
use semel_testkit::ManualClock;
use semel_testkit::faulty::{Fault, Faulty, Verb};

use super::*;
use crate::telemetry;

fn store() -> (Memory, ManualClock) {
    let clock = ManualClock::default();
    (Memory::new(Arc::new(clock.clone())), clock)
}

fn request(tenant: &str, key: &str) -> Reserve {
    Reserve {
        id: OperationId::generate(),
        identity: Identity::new(tenant, "pay", ClientKey::new(key).unwrap()).unwrap(),
        fingerprints: Fingerprint::of(&key).unwrap().into(),
        owner: "test".into(),
        policy: Policy::default(),
    }
}

#[tokio::test]
async fn what_the_metrics_count_is_counted_by_command_and_brought_once() {
    let (store, clock) = store();
    let counts = Counts::default();
    let exporter = telemetry::recorder().unwrap();
    let handle = exporter.handle();
    let recorder = Counting {
        inner: exporter,
        counts: counts.clone(),
    };
    metrics::with_local_recorder(&recorder, || {
        for (place, name) in COUNTED.into_iter().enumerate() {
            let step = u64::try_from(place).unwrap() + 1;
            metrics::counter!(name, "operation" => "pay").increment(step);
        }
        metrics::counter!(names::CREATED, "operation" => "refund").increment(10);
        metrics::counter!(names::FENCED, "operation" => "pay").increment(100);
    });
    assert!(
        handle
            .render()
            .contains("created_total{operation=\"pay\"} 1")
    );
    counts.bring(&store).await.unwrap();
    counts.bring(&store).await.unwrap();
    let at = stretch(clock.now());
    let pay = Told {
        created: 1,
        replayed: 2,
        in_progress: 3,
        misuse: 4,
        retried: 5,
        unknown: 6,
        expired: 7,
        failed: 8,
    };
    let refund = Told {
        created: 10,
        ..Told::default()
    };
    let told = |operation: &str, told| Activity {
        at,
        operation: operation.into(),
        told,
    };
    assert_eq!(
        store.activity(at).await.unwrap(),
        [told("pay", pay), told("refund", refund)]
    );
}

#[tokio::test]
async fn what_did_not_arrive_is_brought_the_next_time() {
    let (store, clock) = store();
    let asked = request("t", "k");
    store.reserve(asked.clone()).await.unwrap();
    let counts = Counts::default();
    counts.cells("pay").0[0].store(3, Ordering::Relaxed);
    counts.misused(asked.id, clock.now());
    let faulty = Faulty::new(store.clone());
    faulty.next(Verb::Count, Fault::FailBefore);
    counts.bring(&faulty).await.unwrap_err();
    counts.cells("pay").0[0].fetch_add(1, Ordering::Relaxed);
    counts.misused(asked.id, clock.now());
    counts.bring(&faulty).await.unwrap();
    let told = store.activity(stretch(clock.now())).await.unwrap();
    assert_eq!(told[0].told.created, 4);
    assert_eq!(store.misuses(10).await.unwrap()[0].count, 2);
}

#[tokio::test]
async fn misuse_is_told_by_whose_key_it_was() {
    let (store, clock) = store();
    let counts = Counts::default();
    let (one, two) = (request("a", "k1"), request("a", "k2"));
    let other = request("b", "k1");
    for asked in [&one, &two, &other] {
        store.reserve(asked.clone()).await.unwrap();
    }
    let began = clock.now();
    counts.misused(one.id, clock.now());
    counts.misused(one.id, clock.now());
    clock.advance(Duration::from_secs(1));
    counts.misused(two.id, clock.now());
    counts.misused(other.id, clock.now());
    // Gone before anybody looked.
    counts.misused(OperationId::generate(), clock.now());
    counts.bring(&store).await.unwrap();
    let mut misuses = store.misuses(10).await.unwrap();
    misuses.sort_by(|a, b| a.tenant.cmp(&b.tenant));
    assert_eq!(misuses.len(), 2);
    let a = &misuses[0];
    assert_eq!((&*a.tenant, &*a.operation, a.count), ("a", "pay", 3));
    assert_eq!((a.first_at, a.last_at), (began, clock.now()));
    assert_eq!(a.last_id, two.id);
    assert_eq!((&*misuses[1].tenant, misuses[1].count), ("b", 1));
}

#[test]
fn what_is_told_apart_is_bounded() {
    let counts = Counts::default();
    let now = Timestamp::from_micros(1);
    for place in 0..MAX_LABELS + 50 {
        counts.cells(&format!("c{place}")).0[0].store(1, Ordering::Relaxed);
    }
    let told = counts.take(now);
    assert_eq!(told.len(), MAX_LABELS + 1);
    assert!(told.iter().any(|activity| &*activity.operation == OTHER));
    for _ in 0..MAX_MISUSED + 50 {
        counts.misused(OperationId::generate(), now);
    }
    assert_eq!(lock(&counts.0.misused).len(), MAX_MISUSED);
}
