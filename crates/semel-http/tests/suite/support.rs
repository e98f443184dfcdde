//! Requests through the layer, without a network.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_core::Store;
use semel_http::{Layer, Operation, RequestBody};
use tower::ServiceExt as _;

pub type Body = Full<Bytes>;

/// A response.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

/// Sends a request with a key through the layer to a handler.
pub async fn send<S, H, F>(layer: &Layer<S>, path: &str, key: &str, handler: H) -> Answer
where
    S: Store,
    H: Fn(Option<Operation>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let mut request = Request::post(path).header("x-account", "acme");
    if !key.is_empty() {
        request = request.header("idempotency-key", key);
    }
    let request = request.body(Body::from("{}")).unwrap();
    let inner = tower::service_fn(move |request: Request<RequestBody<Body>>| {
        let answer = handler(request.extensions().get().cloned());
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let service = tower_layer::Layer::layer(layer, inner);
    let (head, body) = service.oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        status: head.status,
        headers: head.headers,
        text: String::from_utf8(body.to_vec()).unwrap(),
    }
}

/// A response of a handler.
pub fn answer(status: u16, body: &str) -> Response<Body> {
    let body = Body::from(body.to_owned());
    let response = Response::builder().status(status);
    response.header("etag", "\"1\"").body(body).unwrap()
}

impl Answer {
    pub fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    #[track_caller]
    pub fn refuses(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{}", self.text);
        assert!(
            self.text.contains(&format!(r#""code":"{code}""#)),
            "{}",
            self.text
        );
    }
}

/// Counts by the name of the metric, over all labels.
#[derive(Default)]
pub struct CounterRecorder(Mutex<HashMap<String, Arc<AtomicU64>>>);

impl CounterRecorder {
    pub fn count(&self, name: &str) -> u64 {
        let counters = self.0.lock().unwrap();
        counters
            .get(name)
            .map_or(0, |counter| counter.load(Ordering::SeqCst))
    }
}

impl Recorder for CounterRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut counters = self.0.lock().unwrap();
        Counter::from_arc(Arc::clone(
            counters.entry(key.name().to_owned()).or_default(),
        ))
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
