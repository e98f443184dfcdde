//! An admin listener that says what it is told to say, and remembers what it was asked.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use tokio::net::TcpListener;

/// Its clock stands still, so that ages do.
const NOW: &str = "Mon, 16 Nov 2026 07:00:00 GMT";

/// What it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Method, path and query.
    pub(crate) line: String,
    pub(crate) authorization: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

#[derive(Clone)]
struct Reply {
    status: u16,
    kind: &'static str,
    body: String,
}

type Script = Arc<Mutex<(VecDeque<Reply>, Vec<Asked>)>>;

/// Serves on a thread of its own until the test ends.
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    script: Script,
}

impl Fake {
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

    /// The next answer.
    pub(crate) fn says(self, status: u16, kind: &'static str, body: impl Into<String>) -> Self {
        let body = body.into();
        let reply = Reply { status, kind, body };
        self.script.lock().unwrap().0.push_back(reply);
        self
    }

    pub(crate) fn json(self, body: impl Into<String>) -> Self {
        self.says(200, "application/json", body)
    }

    /// As `problem.rs` of the gateway writes them.
    pub(crate) fn problem(self, status: u16, code: &str, detail: &str) -> Self {
        let body = serde_json::json!({
            "type": format!("https://semel.dev/errors/{code}"),
            "title": "A title", "status": status, "detail": detail, "code": code,
        });
        self.says(status, "application/problem+json", body.to_string())
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.script.lock().unwrap().1.clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.line).collect()
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
    script.1.push(Asked {
        line: format!("{method} {uri}"),
        authorization: header("authorization"),
        content_type: header("content-type"),
        body: String::from_utf8(body.to_vec()).unwrap(),
    });
    let reply = script.0.pop_front().expect("one question too many");
    let status = StatusCode::from_u16(reply.status).unwrap();
    // Only where somebody is sent elsewhere does the last one mean anything.
    let headers = [
        ("content-type", reply.kind),
        ("date", NOW),
        ("location", "/elsewhere"),
    ];
    (status, headers, reply.body).into_response()
}
