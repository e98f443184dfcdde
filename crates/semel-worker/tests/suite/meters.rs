//! Metric names and labels.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_core::inbox::{Handling, Message};
use semel_core::outbox::{Event, Publishing, Refused, Sink};
use semel_core::{BackgroundJob as _, Store as _};
use semel_worker::unreconciled::OVERDUE;
use semel_worker::{
    BacklogGauge, CancellationToken, Notice, NoticeTarget, NoticeVerdict, Relay, Schedule, Worker,
    apply,
};

use crate::support::{Fixture, LEASE, PAY, SECOND, ScriptedProvider, completion, paid, response};

/// Keeps every counter and gauge by its name and labels.
#[derive(Default)]
struct TestRecorder(Mutex<BTreeMap<String, (bool, Arc<AtomicU64>)>>);

impl TestRecorder {
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

impl Recorder for TestRecorder {
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

/// Runs the test on this thread, where the recorder is installed.
fn recorded(test: impl Future<Output = ()>) -> Arc<TestRecorder> {
    let kept = Arc::new(TestRecorder::default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    metrics::with_local_recorder(&*kept, || runtime.block_on(test));
    kept
}

#[test]
fn every_metric_has_its_name_and_no_keys() {
    let kept = recorded(async {
        let fixture = Fixture::new();
        let worker = fixture.worker_with(Schedule::default(), ScriptedProvider::of([paid()]));
        let done = fixture.begin(PAY, "secret-done").await;
        let end = fixture.store.complete(done, completion("done"));
        end.await.unwrap();
        fixture.begin(PAY, "secret-silent").await;
        fixture.unknown("refund", "secret-lost").await;
        fixture.clock.advance(LEASE);
        worker.measure_once().await.unwrap();
        worker.sweep_once().await.unwrap();
        worker.reconcile_once().await.unwrap();
        fixture.unknown(PAY, "secret-unclear").await;
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
        fixture
            .store
            .receive_message(message, handling)
            .await
            .unwrap();
        fixture.clock.advance(SECOND);
        worker.deliver_once().await.unwrap();

        let released = fixture.begin("void", "secret-released").await;
        let release = fixture.store.release(released, "proven".into());
        release.await.unwrap();
        let event = Notice {
            target: NoticeTarget::Operation(released.id),
            verdict: NoticeVerdict::Completed(response("")),
            evidence: Bytes::new(),
        };
        apply(&fixture.store, "psp", &event).await.unwrap();

        fixture.clock.advance(Duration::from_hours(25));
        worker.retain_once().await.unwrap();
        fixture.clock.advance(Duration::from_hours(24 * 31));
        worker.retain_once().await.unwrap();
    });
    assert_eq!(
        kept.shown(),
        [
            "api_idempotency_became_unknown_total{operation=create_payment,reason=in_progress_lock_expired} 1",
            "api_idempotency_dead_letter_total{operation=refund} 1",
            "api_idempotency_dead_letter_waiting{operation=create_payment} 0",
            "api_idempotency_dead_letter_waiting{operation=refund} 0",
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
            "api_idempotency_unreconciled{operation=create_payment} 0",
            "api_idempotency_unreconciled{operation=refund} 0",
            "api_idempotency_zombie_key_total{operation=create_payment} 1",
            "semel_webhook_contradicted_total{source=psp} 1",
            "semel_webhook_given_up_total{source=psp} 1",
        ]
    );
}

#[test]
fn a_gauge_returns_to_zero() {
    let kept = recorded(async {
        let fixture = Fixture::new();
        let worker = fixture.worker_with(Schedule::default(), ScriptedProvider::default());
        let fence = fixture.unknown(PAY, "k").await;
        let dead = fixture.store.dead_letter(fence, "exhausted".into());
        dead.await.unwrap();
        worker.measure_once().await.unwrap();
        let end = fixture.store.complete(fence, completion("late"));
        end.await.unwrap();
        worker.measure_once().await.unwrap();
    });
    assert_eq!(
        kept.shown(),
        [
            "api_idempotency_dead_letter_waiting{operation=create_payment} 0",
            "api_idempotency_in_progress_age_max_seconds{operation=create_payment} 0",
            "api_idempotency_unknown_count{operation=create_payment} 0",
            "api_idempotency_unreconciled{operation=create_payment} 0",
        ]
    );
}

#[test]
fn dead_letters_and_records_that_no_process_reconciles_are_gauges() {
    let kept = recorded(async {
        let fixture = Fixture::new();
        let worker = Worker::new(fixture.store.clone());
        let fence = fixture.unknown(PAY, "dead").await;
        let dead = fixture.store.dead_letter(fence, "exhausted".into());
        dead.await.unwrap();
        fixture.unknown(PAY, "waiting").await;
        fixture.unknown(PAY, "also waiting").await;
        fixture.clock.advance(OVERDUE);
        worker.measure_once().await.unwrap();
    });
    assert_eq!(
        kept.shown(),
        [
            "api_idempotency_dead_letter_waiting{operation=create_payment} 1",
            "api_idempotency_in_progress_age_max_seconds{operation=create_payment} 0",
            "api_idempotency_unknown_count{operation=create_payment} 3",
            "api_idempotency_unreconciled{operation=create_payment} 2",
        ]
    );
}

/// Accepts or rejects events by their kind.
struct SinkByKind;

impl Sink for SinkByKind {
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
fn outbox_metrics_contain_no_event_names() {
    let kept = recorded(async {
        let fixture = Fixture::new();
        let store = fixture.store.inner().clone();
        let write = |kind: &str| {
            let event = Event::new(kind, format!("secret/{kind}"), "secret");
            store.publish(event.unwrap());
        };
        write("fine");
        write("poison");
        let relay = Relay::new(store.clone(), Arc::new(SinkByKind)).max_tries(1);
        relay.round().await.unwrap();
        write("away");
        relay.round().await.unwrap_err();
        fixture.clock.advance(3 * SECOND);
        let gauge = BacklogGauge::new(store.clone(), Arc::new(fixture.clock.clone()));
        gauge.round().await.unwrap();
    });
    assert_eq!(
        kept.shown(),
        [
            "semel_outbox_backlog{} 1",
            "semel_outbox_dead_total{} 1",
            "semel_outbox_dead_waiting{} 1",
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
        let fixture = Fixture::new();
        let worker = fixture.worker_with(Schedule::default(), ScriptedProvider::default());
        let worker = worker.dead_letter_unreconciled(LEASE);
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(worker.run(shutdown.clone()));
        fixture.pass(3 * SECOND).await;
        shutdown.cancel();
        running.await.unwrap();
        assert_eq!(fixture.store.sweep(1).await.unwrap(), []);
    });
    let counted = kept.0.lock().unwrap();
    for (job, least) in [
        ("sweep", 3),
        ("reconcile", 3),
        ("dead_letter", 1),
        ("deliver", 3),
        ("retain", 1),
        ("measure", 1),
    ] {
        let name = format!("semel_worker_ticks_total{{task={job},result=done}}");
        let ticks = counted[&name].1.load(Ordering::SeqCst);
        assert!((least..=6).contains(&ticks), "{name} {ticks}");
    }
}
