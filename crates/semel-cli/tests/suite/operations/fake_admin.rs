//! An admin listener that returns scripted answers and records the requests.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use tokio::net::TcpListener;

/// A fixed time, so that ages in the output do not change.
const NOW: &str = "Mon, 16 Nov 2026 07:00:00 GMT";

/// A recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedRequest {
    /// Method, path and query.
    pub(crate) line: String,
    pub(crate) authorization: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) body: String,
}

impl ReceivedRequest {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

#[derive(Clone)]
struct ScriptedReply {
    status: u16,
    kind: &'static str,
    body: String,
}

type Script = Arc<Mutex<(VecDeque<ScriptedReply>, Vec<ReceivedRequest>)>>;

/// Serves on its own thread until the test ends.
pub(crate) struct FakeAdmin {
    pub(crate) address: SocketAddr,
    script: Script,
}

impl FakeAdmin {
    pub(crate) fn start() -> Self {
        let script = Script::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&script));
        let serving = async move { axum::serve(listener, router).await };
        std::thread::spawn(move || runtime.block_on(serving));
        Self { address, script }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds the next answer.
    pub(crate) fn reply(self, status: u16, kind: &'static str, body: impl Into<String>) -> Self {
        let body = body.into();
        let reply = ScriptedReply { status, kind, body };
        self.script.lock().unwrap().0.push_back(reply);
        self
    }

    pub(crate) fn json(self, body: impl Into<String>) -> Self {
        self.reply(200, "application/json", body)
    }

    /// Adds a problem document as the gateway's `problem.rs` writes it.
    pub(crate) fn problem(self, status: u16, code: &str, detail: &str) -> Self {
        let body = serde_json::json!({
            "type": format!("/.semel/errors/{code}"),
            "title": "A title", "status": status, "detail": detail, "code": code,
        });
        self.reply(status, "application/problem+json", body.to_string())
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.script.lock().unwrap().1.clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.requests()
            .into_iter()
            .map(|request| request.line)
            .collect()
    }
}

async fn answer(
    State(script): State<Script>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let header = |name: &str| Some(headers.get(name)?.to_str().unwrap().to_owned());
    let mut script = script.lock().unwrap();
    script.1.push(ReceivedRequest {
        line: format!("{method} {uri}"),
        authorization: header("authorization"),
        content_type: header("content-type"),
        body: String::from_utf8(body.to_vec()).unwrap(),
    });
    let reply = script
        .0
        .pop_front()
        .expect("a request without a scripted answer");
    let status = StatusCode::from_u16(reply.status).unwrap();
    // `location` matters only to redirects.
    let headers = [
        ("content-type", reply.kind),
        ("date", NOW),
        ("location", "/elsewhere"),
    ];
    (status, headers, reply.body).into_response()
}
