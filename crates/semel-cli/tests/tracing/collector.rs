//! A collector that keeps what it is sent, and an application that keeps what it is asked.

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

/// What is exported of one span.
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
struct Kept {
    spans: Arc<Mutex<Vec<Span>>>,
    services: Arc<Mutex<Vec<String>>>,
}

/// Takes OTLP over HTTP, in protobuf.
pub(crate) struct Collector {
    pub(crate) url: String,
    kept: Kept,
}

impl Collector {
    pub(crate) async fn open() -> Self {
        let kept = Kept::default();
        let router = Router::new()
            .route("/v1/traces", post(take))
            .with_state(kept.clone());
        let address = serve(router).await;
        Self {
            url: format!("http://{address}"),
            kept,
        }
    }

    pub(crate) fn all(&self) -> Vec<Span> {
        self.kept.spans.lock().unwrap().clone()
    }

    /// The spans of one trace.
    pub(crate) fn of(&self, trace: &str) -> Vec<Span> {
        let mut spans = self.all();
        spans.retain(|span| span.trace == trace);
        spans
    }

    pub(crate) fn services(&self) -> Vec<String> {
        let mut services = self.kept.services.lock().unwrap().clone();
        services.dedup();
        services
    }
}

async fn take(State(kept): State<Kept>, headers: HeaderMap, body: Bytes) -> StatusCode {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    for resource in request.resource_spans {
        let attributes = resource.resource.unwrap().attributes;
        let name = attributes.iter().find(|one| one.key == "service.name");
        let name = shown(name.unwrap().value.clone().unwrap().value);
        kept.services.lock().unwrap().push(name);
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
                    .map(|one| (one.key, shown(one.value.unwrap().value)))
                    .collect(),
            }
        });
        kept.spans.lock().unwrap().extend(spans);
    }
    StatusCode::OK
}

fn shown(value: Option<Value>) -> String {
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

/// An application that answers 201, or breaks off, and keeps the headers it was sent.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<HeaderMap>>>,
}

impl App {
    pub(crate) async fn open() -> Self {
        let asked = Arc::default();
        let router = Router::new()
            .fallback(any(answer))
            .with_state(Arc::clone(&asked));
        let address = serve(router).await;
        Self {
            url: format!("http://{address}"),
            asked,
        }
    }

    /// The headers of the last request; no more than one was made since the last look.
    #[track_caller]
    pub(crate) fn asked(&self) -> Option<HeaderMap> {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
        assert!(asked.len() <= 1, "{asked:?}");
        asked.pop()
    }
}

async fn answer(
    State(asked): State<Arc<Mutex<Vec<HeaderMap>>>>,
    uri: Uri,
    headers: HeaderMap,
) -> (StatusCode, HeaderMap) {
    asked.lock().unwrap().push(headers.clone());
    match uri.path() {
        // Nobody can say what became of it: the connection ends without an answer.
        "/broken" => panic!("breaking off, as it is told"),
        path if path.starts_with("/broken/") => (StatusCode::CREATED, HeaderMap::new()),
        // An application that gives its trace back, as some do.
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
