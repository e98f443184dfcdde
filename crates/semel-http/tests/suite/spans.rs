//! Every log line of an operation names it, and spans that no subscriber enables are not created.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Answer, answer, send};
use semel_core::{Memory, OperationId};
use semel_http::{Layer, Operation, tenant};
use semel_testkit::Faulty;
use semel_testkit::faulty::{Fault, Gate, Verb};
use serde_json::Value;
use tokio::task::yield_now;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry;

const KEY: &str = "\"a-key-that-is-a-secret\"";

/// The log of this thread, in the format of the command.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start(level: LevelFilter) -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_max_level(level)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The messages since the last call; each line must name this operation.
    #[track_caller]
    fn messages_of(&self, id: OperationId) -> Vec<String> {
        let text = std::mem::take(&mut *self.0.lock().unwrap());
        let text = String::from_utf8(text).unwrap();
        assert!(!text.contains("a-key-that-is-a-secret"), "{text}");
        let line = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            let spans = line["spans"].as_array().cloned().unwrap_or_default();
            let names = spans.iter().map(|span| &span["semel.operation.id"]);
            let mut names = names.filter(|name| !name.is_null());
            assert!(names.any(|name| *name == id.to_string()), "{line}");
            line["message"].as_str().unwrap().to_owned()
        };
        text.lines().map(line).collect()
    }
}

fn layer(store: Faulty<Memory>) -> Layer<Faulty<Memory>> {
    Layer::new(store)
        .store_timeouts(Duration::from_secs(10), Duration::from_secs(5))
        .tenant(tenant::header("x-account"))
        .route("POST /payments", |route| route.operation("create_payment"))
}

/// The operation that the layer passed to a handler.
#[derive(Clone, Default)]
struct SeenOperation(Arc<Mutex<Option<OperationId>>>);

impl SeenOperation {
    fn set(&self, operation: Option<Operation>) {
        *self.0.lock().unwrap() = Some(operation.unwrap().id());
    }

    fn id(&self) -> OperationId {
        self.0.lock().unwrap().unwrap()
    }
}

/// A payment whose handler logs, waits and logs again.
async fn pay(layer: &Layer<Faulty<Memory>>, seen: &SeenOperation) -> Answer {
    let seen = seen.clone();
    send(layer, "/payments", KEY, move |operation| {
        let seen = seen.clone();
        async move {
            seen.set(operation);
            tracing::error!("the handler begins");
            yield_now().await;
            tracing::error!("the handler ends");
            answer(201, "paid")
        }
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn every_log_line_of_an_execution_names_the_operation() {
    // Also if only errors are logged.
    for level in [LevelFilter::TRACE, LevelFilter::ERROR] {
        let (log, _guard) = Log::start(level);
        let store = Faulty::new(Memory::default());
        let (layer, seen) = (layer(store.clone()), SeenOperation::default());
        store.next(Verb::Complete, Fault::FailBefore);
        store.next(Verb::Complete, Fault::FailAfter);
        assert_eq!(pay(&layer, &seen).await.text, "paid");
        let mut lines = vec!["the handler begins", "the handler ends"];
        if level == LevelFilter::TRACE {
            lines.extend(["the outcome is not recorded yet; trying again"; 2]);
        }
        assert_eq!(log.messages_of(seen.id()), lines);
    }
}

#[tokio::test(start_paused = true)]
async fn log_lines_after_a_disconnect_name_the_operation() {
    let (log, _guard) = Log::start(LevelFilter::TRACE);
    let store = Faulty::new(Memory::default());
    let (layer, seen, gate) = (layer(store), SeenOperation::default(), Gate::closed());
    let paying = {
        let (layer, seen, gate) = (layer.clone(), seen.clone(), gate.clone());
        tokio::spawn(async move {
            send(&layer, "/payments", KEY, move |operation| {
                let (seen, gate) = (seen.clone(), gate.clone());
                async move {
                    seen.set(operation);
                    gate.pass().await;
                    tracing::info!("the client is gone");
                    panic!("a bug");
                }
            })
            .await
        })
    };
    gate.reached().await;
    paying.abort();
    assert!(paying.await.unwrap_err().is_cancelled());
    gate.open();
    layer.drain(Duration::from_mins(1)).await;
    let lines = log.messages_of(seen.id());
    assert_eq!(lines, ["the client is gone", "the handler panicked"]);
}

#[tokio::test(start_paused = true)]
async fn log_lines_of_a_late_reservation_name_the_operation() {
    let (log, _guard) = Log::start(LevelFilter::TRACE);
    let store = Faulty::new(Memory::default());
    let (layer, gate) = (layer(store.clone()), Gate::closed());
    store.next(Verb::Reserve, Fault::HoldAfter(gate.clone()));
    store.next(Verb::Evict, Fault::FailBefore);
    let refused = pay(&layer, &SeenOperation::default()).await;
    refused.refuses(503, "idempotency_store_unavailable");
    log.0.lock().unwrap().clear();
    gate.open();
    layer.drain(Duration::from_mins(1)).await;
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    let line: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["span"]["semel.operation.id"], line["id"], "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_log_line_of_a_misused_key_names_the_operation() {
    let (log, _guard) = Log::start(LevelFilter::TRACE);
    let (layer, seen) = (
        layer(Faulty::new(Memory::default())),
        SeenOperation::default(),
    );
    pay(&layer, &seen).await;
    log.messages_of(seen.id());
    let other = send(&layer, "/payments?another", KEY, |_| async {
        panic!("it must not execute")
    });
    other.await.refuses(422, "idempotency_key_reused");
    let lines = log.messages_of(seen.id());
    assert_eq!(lines, ["a key was used for another request"]);
}

/// Counts the spans that are created.
#[derive(Clone, Default)]
struct SpanCount(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for SpanCount {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn an_execution_creates_one_span_and_a_replay_none_at_info_level() {
    let spans = SpanCount::default();
    let subscriber = registry().with(spans.clone()).with(LevelFilter::INFO);
    let _guard = tracing::subscriber::set_default(subscriber);
    let (layer, seen) = (
        layer(Faulty::new(Memory::default())),
        SeenOperation::default(),
    );
    pay(&layer, &seen).await;
    assert_eq!(spans.0.load(Ordering::Relaxed), 1);
    assert!(pay(&layer, &seen).await.is_replay());
    assert_eq!(spans.0.load(Ordering::Relaxed), 1);
}
