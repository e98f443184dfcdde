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
async fn counters_are_counted_by_operation_and_written_once() {
    let (store, clock) = store();
    let counts = Counts::default();
    let exporter = telemetry::recorder().unwrap();
    let handle = exporter.handle();
    let recorder = CountingRecorder {
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
    counts.write_to(&store).await.unwrap();
    counts.write_to(&store).await.unwrap();
    let at = interval_start(clock.now());
    let pay = DecisionCounts {
        created: 1,
        replayed: 2,
        in_progress: 3,
        misuse: 4,
        retried: 5,
        unknown: 6,
        expired: 7,
        failed: 8,
    };
    let refund = DecisionCounts {
        created: 10,
        ..DecisionCounts::default()
    };
    let activity = |operation: &str, decisions| Activity {
        at,
        operation: operation.into(),
        decisions,
    };
    assert_eq!(
        store.activity(at).await.unwrap(),
        [activity("pay", pay), activity("refund", refund)]
    );
}

#[tokio::test]
async fn counts_that_could_not_be_written_are_written_the_next_time() {
    let (store, clock) = store();
    let asked = request("t", "k");
    store.reserve(asked.clone()).await.unwrap();
    let counts = Counts::default();
    counts.cells("pay").0[0].store(3, Ordering::Relaxed);
    counts.misused(asked.id, clock.now());
    let faulty = Faulty::new(store.clone());
    faulty.next(Verb::AddCounts, Fault::FailBefore);
    counts.write_to(&faulty).await.unwrap_err();
    counts.cells("pay").0[0].fetch_add(1, Ordering::Relaxed);
    counts.misused(asked.id, clock.now());
    counts.write_to(&faulty).await.unwrap();
    let activity = store.activity(interval_start(clock.now())).await.unwrap();
    assert_eq!(activity[0].decisions.created, 4);
    assert_eq!(store.misuses(10).await.unwrap()[0].count, 2);
}

#[tokio::test]
async fn misuse_is_summed_by_tenant_and_operation() {
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
    // Deleted before the write.
    counts.misused(OperationId::generate(), clock.now());
    counts.write_to(&store).await.unwrap();
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
fn operations_and_misuses_are_bounded() {
    let counts = Counts::default();
    let now = Timestamp::from_micros(1);
    for place in 0..MAX_LABELS + 50 {
        counts.cells(&format!("c{place}")).0[0].store(1, Ordering::Relaxed);
    }
    let taken = counts.take(now);
    assert_eq!(taken.len(), MAX_LABELS + 1);
    assert!(taken.iter().any(|activity| &*activity.operation == OTHER));
    for _ in 0..MAX_MISUSED + 50 {
        counts.misused(OperationId::generate(), now);
    }
    assert_eq!(lock(&counts.0.misused).len(), MAX_MISUSED);
}

#[test]
fn weak_keys_are_counted_by_operation_and_reason() {
    let counts = Counts::default();
    let exporter = telemetry::recorder().unwrap();
    let handle = exporter.handle();
    let recorder = CountingRecorder {
        inner: exporter,
        counts: counts.clone(),
    };
    metrics::with_local_recorder(&recorder, || {
        for (operation, reason) in [("refund", "email"), ("pay", "email"), ("pay", "counter")] {
            let labels = [("operation", operation), ("reason", reason)];
            metrics::counter!(names::KEY_WEAK, &labels).increment(1);
            metrics::counter!(names::KEY_WEAK, &labels).increment(1);
        }
    });
    let rendered = handle.render();
    let line = "key_weak_total{operation=\"pay\",reason=\"counter\"} 2";
    assert!(rendered.contains(line), "{rendered}");
    let counted = [("pay", "counter"), ("pay", "email"), ("refund", "email")];
    let counted = counted.map(|(operation, reason)| (operation.into(), reason.into(), 2));
    assert_eq!(counts.weak_keys(), counted);
}
