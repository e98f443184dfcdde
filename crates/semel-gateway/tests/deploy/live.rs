//! The labels of the page are those that the program really writes.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_core::outbox::{Event, Publishing, Sink};
use semel_core::{Chore as _, Memory, Store as _};
use semel_gateway::telemetry::names;
use semel_http::{Layer, RequestBody};
use semel_worker::meters::names as worker;
use semel_worker::{BacklogGauge, Relay, Worker};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::metrics::{Kind, Metrics};

/// What was written, and with which labels.
type Written = BTreeMap<String, (Kind, BTreeSet<String>)>;

/// Writes down the labels that it is asked for.
#[derive(Clone, Default)]
struct Labels(Arc<Mutex<Written>>);

impl Labels {
    fn note(&self, key: &Key, kind: Kind) {
        let labels = key.labels().map(|label| label.key().to_owned()).collect();
        let mut written = self.0.lock().unwrap();
        written.insert(key.name().to_owned(), (kind, labels));
    }
}

impl Recorder for Labels {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.note(key, Kind::Counter);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.note(key, Kind::Gauge);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.note(key, Kind::Histogram);
        Histogram::noop()
    }
}

/// Takes everything.
struct Taker;

impl Sink for Taker {
    fn publish<'a>(&'a self, _: &'a Event) -> Publishing<'a> {
        Box::pin(async { Ok(()) })
    }
}

/// One request whose outcome nobody knows, one event, and a round of everything.
async fn an_hour_of_work() {
    let store = Memory::default();
    let layer = Layer::new(store.clone()).tenant(|_| Some("acme"));
    let broken = tower::service_fn(async |_: Request<RequestBody<Full<Bytes>>>| {
        let response = Response::builder().status(StatusCode::GATEWAY_TIMEOUT);
        Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).unwrap())
    });
    let request = Request::post("/pay").header("idempotency-key", "order-1003");
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let service = tower_layer::Layer::layer(&layer, broken);
    service.oneshot(request).await.unwrap();

    let worker = Worker::new(store.clone());
    worker.measure_once().await.unwrap();
    worker.reconcile_once().await.unwrap();
    // Told to stop at once, it does one round of each job.
    let stop = CancellationToken::new();
    stop.cancel();
    worker.run(stop).await;
    store.publish(Event::new("k", "a", "{}").unwrap());
    let clock = store.clock();
    let gauge = BacklogGauge::new(store.clone(), clock);
    gauge.round().await.unwrap();
    Relay::new(store, Arc::new(Taker)).round().await.unwrap();
}

#[test]
fn the_labels_are_those_of_the_page() {
    let recorder = Labels::default();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(an_hour_of_work());
    });
    let written = recorder.0.lock().unwrap().clone();
    let page = Metrics::read().written;
    for (name, (kind, labels)) in &written {
        let explained = page.get(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(
            (explained.kind, &explained.labels),
            (*kind, labels),
            "{name}"
        );
    }
    // Else nothing was seen.
    for name in [
        names::CREATED,
        names::EXECUTE_SECONDS,
        worker::DEAD_LETTER,
        worker::UNKNOWN_COUNT,
        worker::TICKS,
        worker::OUTBOX_BACKLOG,
        worker::OUTBOX_PUBLISHED,
    ] {
        assert!(written.contains_key(name), "{name} in {written:?}");
    }
}
