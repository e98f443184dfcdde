//! The labels in `docs/metrics.md` are those that the program writes.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
};
use semel_core::outbox::{Event, Publishing, Sink};
use semel_core::{Backend as _, BackgroundJob as _, Memory};
use semel_gateway::telemetry::{self, names};
use semel_http::{Layer, RequestBody};
use semel_worker::meters::names as worker;
use semel_worker::{BacklogGauge, Reconcilers, Relay, Worker};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::deploy::metrics::{Kind, Metrics};
use crate::deploy::rules::promtool;

/// The written metrics and their labels.
type WrittenMetrics = BTreeMap<String, (Kind, BTreeSet<String>)>;

/// A recorder that collects names and labels.
#[derive(Clone, Default)]
struct LabelRecorder(Arc<Mutex<WrittenMetrics>>);

impl LabelRecorder {
    fn record(&self, key: &Key, kind: Kind) {
        let labels = key.labels().map(|label| label.key().to_owned()).collect();
        let mut written = self.0.lock().unwrap();
        written.insert(key.name().to_owned(), (kind, labels));
    }
}

impl Recorder for LabelRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.record(key, Kind::Counter);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.record(key, Kind::Gauge);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.record(key, Kind::Histogram);
        Histogram::noop()
    }
}

/// Accepts every event.
struct AcceptingSink;

impl Sink for AcceptingSink {
    fn publish<'a>(&'a self, _: &'a Event) -> Publishing<'a> {
        Box::pin(async { Ok(()) })
    }
}

/// One request with an unknown outcome, one event, and one round of every job.
async fn run_every_job() {
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

    let reconcilers = Reconcilers::new(store.clone());
    let reconcilers = reconcilers.leave_to_operator("POST /pay").unwrap();
    let worker = Worker::new(store.clone()).reconcilers(reconcilers);
    worker.measure_once().await.unwrap();
    worker.reconcile_once().await.unwrap();
    // Cancelled at the start, it runs one round of each job.
    let stop = CancellationToken::new();
    stop.cancel();
    worker.run(stop).await;
    store.publish(Event::new("k", "a", "{}").unwrap());
    let clock = store.clock();
    let gauge = BacklogGauge::new(store.clone(), clock);
    gauge.round().await.unwrap();
    Relay::new(store, Arc::new(AcceptingSink))
        .round()
        .await
        .unwrap();
}

#[test]
fn written_labels_match_the_metrics_page() {
    let recorder = LabelRecorder::default();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(run_every_job());
    });
    let written = recorder.0.lock().unwrap().clone();
    let page = Metrics::read().written;
    for (name, (kind, labels)) in &written {
        let documented = page.get(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(
            (documented.kind, &documented.labels),
            (*kind, labels),
            "{name}"
        );
    }
    // Guards against an empty run.
    for name in [
        names::CREATED,
        names::EXECUTE_SECONDS,
        names::BECAME_UNKNOWN,
        worker::DEAD_LETTER,
        worker::DEAD_LETTER_WAITING,
        worker::UNRECONCILED,
        worker::UNKNOWN_COUNT,
        worker::TICKS,
        worker::OUTBOX_BACKLOG,
        worker::OUTBOX_PUBLISHED,
    ] {
        assert!(written.contains_key(name), "{name} in {written:?}");
    }
}

/// `promtool check metrics` lints what `GET /metrics` returns.
#[test]
fn promtool_accepts_the_metrics() {
    let Some(promtool) = promtool() else { return };
    let recorder = telemetry::recorder().unwrap();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        telemetry::describe();
        // Every documented metric, written or not.
        for (name, metric) in Metrics::read().written {
            let labels = metric.labels.into_iter();
            let labels: Vec<_> = labels.map(|label| Label::new(label, "x")).collect();
            match metric.kind {
                Kind::Counter => metrics::counter!(name, labels).increment(1),
                Kind::Gauge => metrics::gauge!(name, labels).set(1.0),
                Kind::Histogram => metrics::histogram!(name, labels).record(1.0),
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(run_every_job());
    });
    let mut checking = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = checking.stdin.take().unwrap();
    input.write_all(handle.render().as_bytes()).unwrap();
    drop(input);
    let output = checking.wait_with_output().unwrap();
    let found = [output.stdout, output.stderr].concat();
    let found = String::from_utf8(found).unwrap();
    // The name is a contract with dashboards that exist.
    let faults = found
        .lines()
        .filter(|line| !line.starts_with(worker::UNKNOWN_COUNT));
    assert_eq!(faults.collect::<Vec<_>>(), [] as [&str; 0]);
    assert!(found.starts_with(worker::UNKNOWN_COUNT), "{found}");
}
