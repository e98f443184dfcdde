//! Every line that is logged for an operation says for which one; and spans that nobody collects
//! are not made.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code says what is wrong by panicking"
)]

mod support;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::{Memory, OperationId};
use semel_http::{Layer, Operation, tenant};
use semel_testkit::Faulty;
use semel_testkit::faulty::{Fault, Gate, Verb};
use serde_json::Value;
use support::{Answer, answer, send};
use tokio::task::yield_now;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry;

const KEY: &str = "\"a-key-that-is-a-secret\"";

/// What is logged on this thread, by the format that the command has.
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

    /// Every line since the last look, as its message; each must be of this operation.
    #[track_caller]
    fn all_of(&self, id: OperationId) -> Vec<String> {
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
        .patience(Duration::from_secs(10), Duration::from_secs(5))
        .tenant(tenant::header("x-account"))
        .route("POST /payments", |route| route.operation("create_payment"))
}

/// The operation that a handler was given.
#[derive(Clone, Default)]
struct Given(Arc<Mutex<Option<OperationId>>>);

impl Given {
    fn take(&self, operation: Option<Operation>) {
        *self.0.lock().unwrap() = Some(operation.unwrap().id());
    }

    fn id(&self) -> OperationId {
        self.0.lock().unwrap().unwrap()
    }
}

/// A payment whose handler logs, waits and logs again.
async fn pay(layer: &Layer<Faulty<Memory>>, given: &Given) -> Answer {
    let given = given.clone();
    send(layer, "/payments", KEY, move |operation| {
        let given = given.clone();
        async move {
            given.take(operation);
            tracing::error!("the handler begins");
            yield_now().await;
            tracing::error!("the handler ends");
            answer(201, "paid")
        }
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn every_line_of_an_execution_says_of_which_operation() {
    // Also where only errors are logged: the span must not be less than they are.
    for level in [LevelFilter::TRACE, LevelFilter::ERROR] {
        let (log, _guard) = Log::start(level);
        let store = Faulty::new(Memory::default());
        let (layer, given) = (layer(store.clone()), Given::default());
        store.next(Verb::Complete, Fault::FailBefore);
        store.next(Verb::Complete, Fault::FailAfter);
        assert_eq!(pay(&layer, &given).await.text, "paid");
        let mut lines = vec!["the handler begins", "the handler ends"];
        if level == LevelFilter::TRACE {
            lines.extend(["the outcome is not recorded yet; trying again"; 2]);
        }
        assert_eq!(log.all_of(given.id()), lines);
    }
}

#[tokio::test(start_paused = true)]
async fn also_when_its_client_is_gone() {
    let (log, _guard) = Log::start(LevelFilter::TRACE);
    let store = Faulty::new(Memory::default());
    let (layer, given, gate) = (layer(store), Given::default(), Gate::closed());
    let paying = {
        let (layer, given, gate) = (layer.clone(), given.clone(), gate.clone());
        tokio::spawn(async move {
            send(&layer, "/payments", KEY, move |operation| {
                let (given, gate) = (given.clone(), gate.clone());
                async move {
                    given.take(operation);
                    gate.pass().await;
                    tracing::info!("nobody waits for this");
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
    let lines = log.all_of(given.id());
    assert_eq!(lines, ["nobody waits for this", "the handler panicked"]);
}

#[tokio::test(start_paused = true)]
async fn also_of_a_reservation_that_comes_too_late_and_is_given_back() {
    let (log, _guard) = Log::start(LevelFilter::TRACE);
    let store = Faulty::new(Memory::default());
    let (layer, gate) = (layer(store.clone()), Gate::closed());
    store.next(Verb::Reserve, Fault::HoldAfter(gate.clone()));
    store.next(Verb::Evict, Fault::FailBefore);
    let refused = pay(&layer, &Given::default()).await;
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
async fn also_of_a_key_that_was_used_for_something_else() {
    let (log, _guard) = Log::start(LevelFilter::TRACE);
    let (layer, given) = (layer(Faulty::new(Memory::default())), Given::default());
    pay(&layer, &given).await;
    log.all_of(given.id());
    let other = send(&layer, "/payments?another", KEY, |_| async {
        panic!("it must not execute")
    });
    other.await.refuses(422, "idempotency_key_reused");
    let lines = log.all_of(given.id());
    assert_eq!(lines, ["a key was used for another request"]);
}

/// Counts the spans that are made.
#[derive(Clone, Default)]
struct Made(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Made {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn an_ordinary_log_costs_one_span_an_execution_and_none_a_replay() {
    let made = Made::default();
    let subscriber = registry().with(made.clone()).with(LevelFilter::INFO);
    let _guard = tracing::subscriber::set_default(subscriber);
    let (layer, given) = (layer(Faulty::new(Memory::default())), Given::default());
    pay(&layer, &given).await;
    assert_eq!(made.0.load(Ordering::Relaxed), 1);
    assert!(pay(&layer, &given).await.is_replay());
    assert_eq!(made.0.load(Ordering::Relaxed), 1);
}
