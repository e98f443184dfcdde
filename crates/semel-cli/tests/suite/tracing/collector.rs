//! A collector that records spans, and an application that records the headers of requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::routing::{any, post};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prost::Message as _;
use tokio::net::TcpListener;

/// One exported span.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) state: String,
    pub(crate) failed: bool,
    pub(crate) kind: i32,
    pub(crate) fields: BTreeMap<String, String>,
}

impl Span {
    #[track_caller]
    pub(crate) fn field(&self, name: &str) -> &str {
        let found = self.fields.get(name);
        found.unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }
}

#[derive(Clone, Default)]
struct ReceivedSpans {
    spans: Arc<Mutex<Vec<Span>>>,
    services: Arc<Mutex<Vec<String>>>,
}

/// Receives OTLP over HTTP, in protobuf.
pub(crate) struct Collector {
    pub(crate) url: String,
    received: ReceivedSpans,
}

impl Collector {
    pub(crate) async fn open() -> Self {
        let received = ReceivedSpans::default();
        let router = Router::new()
            .route("/v1/traces", post(receive_spans))
            .with_state(received.clone());
        let address = serve(router).await;
        Self {
            url: format!("http://{address}"),
            received,
        }
    }

    pub(crate) fn all(&self) -> Vec<Span> {
        self.received.spans.lock().unwrap().clone()
    }

    /// The spans of one trace.
    pub(crate) fn of(&self, trace: &str) -> Vec<Span> {
        let mut spans = self.all();
        spans.retain(|span| span.trace == trace);
        spans
    }

    pub(crate) fn services(&self) -> Vec<String> {
        let mut services = self.received.services.lock().unwrap().clone();
        services.dedup();
        services
    }
}

async fn receive_spans(
    State(received): State<ReceivedSpans>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    for resource in request.resource_spans {
        let attributes = resource.resource.unwrap().attributes;
        let name = attributes.iter().find(|one| one.key == "service.name");
        let name = to_text(name.unwrap().value.clone().unwrap().value);
        received.services.lock().unwrap().push(name);
        let spans = resource
            .scope_spans
            .into_iter()
            .flat_map(|scope| scope.spans);
        let spans = spans.map(|span| {
            assert!(
                span.events.is_empty(),
                "log lines stay in the log: {span:?}"
            );
            let fields = span.attributes.into_iter();
            Span {
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                state: span.trace_state,
                failed: span.status.is_some_and(|status| status.code == 2),
                kind: span.kind,
                fields: fields
                    .map(|one| (one.key, to_text(one.value.unwrap().value)))
                    .collect(),
            }
        });
        received.spans.lock().unwrap().extend(spans);
    }
    StatusCode::OK
}

fn to_text(value: Option<Value>) -> String {
    match value.unwrap() {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(is) => is.to_string(),
        other => panic!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// An application that answers 201 or closes the connection, and records the request headers.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<HeaderMap>>>,
}

impl App {
    pub(crate) async fn open() -> Self {
        let requests = Arc::default();
        let router = Router::new()
            .fallback(any(answer))
            .with_state(Arc::clone(&requests));
        let address = serve(router).await;
        Self {
            url: format!("http://{address}"),
            requests,
        }
    }

    /// The headers of the only request since the last call, if there was one.
    #[track_caller]
    pub(crate) fn last_request(&self) -> Option<HeaderMap> {
        let mut requests = std::mem::take(&mut *self.requests.lock().unwrap());
        assert!(requests.len() <= 1, "{requests:?}");
        requests.pop()
    }
}

async fn answer(
    State(requests): State<Arc<Mutex<Vec<HeaderMap>>>>,
    uri: Uri,
    headers: HeaderMap,
) -> (StatusCode, HeaderMap) {
    requests.lock().unwrap().push(headers.clone());
    match uri.path() {
        // The connection closes without an answer, so the outcome is unknown.
        "/broken" => panic!("closing the connection on purpose"),
        path if path.starts_with("/broken/") => (StatusCode::CREATED, HeaderMap::new()),
        // Some applications return the trace headers.
        _ => {
            let mut answer = HeaderMap::new();
            for name in ["traceparent", "tracestate"] {
                if let Some(value) = headers.get(name) {
                    answer.insert(name, value.clone());
                }
            }
            (StatusCode::CREATED, answer)
        }
    }
}

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}
