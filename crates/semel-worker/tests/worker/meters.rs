//! What is counted, and under which names.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_core::inbox::{Handling, Message};
use semel_core::outbox::{Event, Publishing, Refused, Sink};
use semel_core::{Chore as _, Inbox as _, Maintain as _, Store as _};
use semel_worker::{About, BacklogGauge, CancellationToken, Notice, Relay, Says, Schedule, apply};

use crate::support::{LEASE, PAY, SECOND, Script, World, completion, paid, response};

/// Keeps every counter and gauge by its name and labels.
#[derive(Default)]
struct Kept(Mutex<BTreeMap<String, (bool, Arc<AtomicU64>)>>);

impl Kept {
    fn slot(&self, key: &Key, gauge: bool) -> Arc<AtomicU64> {
        let labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        let mut kept = self.0.lock().unwrap();
        Arc::clone(&kept.entry(name).or_insert((gauge, Arc::default())).1)
    }

    fn shown(&self) -> Vec<String> {
        let kept = self.0.lock().unwrap();
        kept.iter()
            .map(|(name, (gauge, value))| {
                let value = value.load(Ordering::SeqCst);
                if *gauge {
                    format!("{name} {}", f64::from_bits(value))
                } else {
                    format!("{name} {value}")
                }
            })
            .filter(|line| !line.starts_with("semel_worker_ticks"))
            .collect()
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.slot(key, false))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.slot(key, true))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Runs on this thread, which is where the recorder is.
fn recorded(test: impl Future<Output = ()>) -> Arc<Kept> {
    let kept = Arc::new(Kept::default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    metrics::with_local_recorder(&*kept, || runtime.block_on(test));
    kept
}

#[test]
fn everything_is_counted_under_its_name_and_without_keys() {
    let kept = recorded(async {
        let world = World::new();
        let worker = world.asking(Schedule::default(), Script::of([paid()]));
        let done = world.begin(PAY, "secret-done").await;
        let end = world.store.complete(done, completion("done"));
        end.await.unwrap();
        world.begin(PAY, "secret-silent").await;
        world.unknown("refund", "secret-lost").await;
        world.clock.advance(LEASE);
        worker.measure_once().await.unwrap();
        worker.sweep_once().await.unwrap();
        worker.reconcile_once().await.unwrap();
        world.unknown(PAY, "secret-unclear").await;
        worker.reconcile_once().await.unwrap();

        let message = Message {
            source: "psp".into(),
            id: "evt_1".into(),
            payload: Bytes::new(),
        };
        let handling = Handling {
            look_after: SECOND,
            remember: Duration::from_hours(24),
        };
        world.store.receive(message, handling).await.unwrap();
        world.clock.advance(SECOND);
        worker.deliver_once().await.unwrap();

        let released = world.begin("void", "secret-released").await;
        let release = world.store.release(released, "proven".into());
        release.await.unwrap();
        let event = Notice {
            about: About::Operation(released.id),
            says: Says::Completed(response("")),
            evidence: Bytes::new(),
        };
        apply(&world.store, "psp", &event).await.unwrap();

        world.clock.advance(Duration::from_hours(25));
        worker.retain_once().await.unwrap();
        world.clock.advance(Duration::from_hours(24 * 31));
        worker.retain_once().await.unwrap();
    });
    assert_eq!(
        kept.shown(),
        [
            "api_idempotency_dead_letter_total{operation=refund} 1",
            "api_idempotency_in_progress_age_max_seconds{operation=create_payment} 30",
            "api_idempotency_in_progress_age_max_seconds{operation=refund} 0",
            "api_idempotency_reconcile_failed_total{operation=create_payment} 1",
            "api_idempotency_reconcile_resolved_total{operation=create_payment} 1",
            "api_idempotency_reconcile_scheduled_total{operation=create_payment} 2",
            "api_idempotency_ttl_pruned_total{what=expired} 3",
            "api_idempotency_ttl_pruned_total{what=message} 1",
            "api_idempotency_ttl_pruned_total{what=tombstone} 3",
            "api_idempotency_unknown_count{operation=create_payment} 0",
            "api_idempotency_unknown_count{operation=refund} 1",
            "api_idempotency_zombie_key_total{operation=create_payment} 1",
            "semel_webhook_contradicted_total{source=psp} 1",
            "semel_webhook_given_up_total{source=psp} 1",
        ]
    );
}

#[test]
fn a_gauge_goes_back_to_nothing() {
    let kept = recorded(async {
        let world = World::new();
        let worker = world.asking(Schedule::default(), Script::default());
        let fence = world.unknown(PAY, "k").await;
        worker.measure_once().await.unwrap();
        let end = world.store.complete(fence, completion("late"));
        end.await.unwrap();
        worker.measure_once().await.unwrap();
    });
    assert_eq!(
        kept.shown(),
        [
            "api_idempotency_in_progress_age_max_seconds{operation=create_payment} 0",
            "api_idempotency_unknown_count{operation=create_payment} 0",
        ]
    );
}

/// Takes events, or not, by their kind.
struct Choosy;

impl Sink for Choosy {
    fn publish<'a>(&'a self, event: &'a Event) -> Publishing<'a> {
        let answer = match &*event.kind {
            "poison" => Err(Refused::Rejected("no".into())),
            "away" => Err(Refused::Unavailable("away".into())),
            _ => Ok(()),
        };
        Box::pin(std::future::ready(answer))
    }
}

#[test]
fn an_outbox_is_counted_without_names() {
    let kept = recorded(async {
        let world = World::new();
        let store = world.store.inner().clone();
        let write = |kind: &str| {
            let event = Event::new(kind, format!("secret/{kind}"), "secret");
            store.publish(event.unwrap());
        };
        write("fine");
        write("poison");
        let relay = Relay::new(store.clone(), Arc::new(Choosy)).max_tries(1);
        relay.round().await.unwrap();
        write("away");
        relay.round().await.unwrap_err();
        world.clock.advance(3 * SECOND);
        let gauge = BacklogGauge::new(store.clone(), Arc::new(world.clock.clone()));
        gauge.round().await.unwrap();
    });
    assert_eq!(
        kept.shown(),
        [
            "semel_outbox_backlog{} 1",
            "semel_outbox_dead_count{} 1",
            "semel_outbox_dead_total{} 1",
            "semel_outbox_oldest_age_seconds{} 3",
            "semel_outbox_published_total{} 1",
            "semel_outbox_refused_total{why=rejected} 1",
            "semel_outbox_refused_total{why=unavailable} 1",
        ]
    );
}

#[test]
fn every_round_is_counted() {
    let kept = recorded(async {
        let world = World::new();
        let worker = world.asking(Schedule::default(), Script::default());
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(worker.run(shutdown.clone()));
        world.pass(3 * SECOND).await;
        shutdown.cancel();
        running.await.unwrap();
        assert_eq!(world.store.sweep(1).await.unwrap(), []);
    });
    let counted = kept.0.lock().unwrap();
    for (job, least) in [
        ("sweep", 3),
        ("reconcile", 3),
        ("dead_letter", 3),
        ("deliver", 3),
        ("retain", 1),
        ("measure", 1),
    ] {
        let name = format!("semel_worker_ticks_total{{task={job},result=done}}");
        let ticks = counted[&name].1.load(Ordering::SeqCst);
        assert!((least..=6).contains(&ticks), "{name} {ticks}");
    }
}
