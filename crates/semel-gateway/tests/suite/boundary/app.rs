//! The application: its path says how it responds, and it records every execution.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response, Uri};
use axum::routing::any;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use semel_testkit::faulty::Gate;

/// Runs before the application responds, for example to complete its own record.
pub type Hook = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

#[derive(Default)]
pub struct App {
    /// Called for `hooked-REST`, which then behaves like `REST`.
    pub hook: OnceLock<Hook>,
    seen: Mutex<Vec<Execution>>,
    gates: Mutex<HashMap<String, Gate>>,
}

/// One execution.
#[derive(Clone, Debug)]
pub struct Execution {
    /// As it was sent.
    pub path: String,
    pub what: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl App {
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/do/{what}", any(run))
            .route("/optional/{what}", any(run))
            .route("/ignored/{what}", any(run))
            .route("/unnamed/{what}", any(run))
            .with_state(Arc::clone(self))
    }

    /// All executions, in order.
    pub fn seen(&self) -> Vec<Execution> {
        self.seen.lock().unwrap().clone()
    }

    pub fn executions(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// Executions of `held-NAME` wait at this gate.
    pub fn gate(&self, name: &str) -> Gate {
        let mut gates = self.gates.lock().unwrap();
        let gate = gates.entry(name.to_owned()).or_insert_with(Gate::closed);
        gate.clone()
    }
}

async fn run(
    State(app): State<Arc<App>>,
    Path(what): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let number = {
        let mut seen = app.seen.lock().unwrap();
        seen.push(Execution {
            path: uri.path().to_owned(),
            what: what.clone(),
            headers,
            body: body.clone(),
        });
        seen.len()
    };
    let answer = Response::builder()
        .header("content-type", "application/json")
        .header("x-execution", number);
    let text = format!(r#"{{"execution":{number}}}"#);
    let mut does = what.as_str();
    if let Some(rest) = what.strip_prefix("hooked-") {
        (app.hook.get().unwrap())().await;
        does = rest;
    }
    let (verb, rest) = does.split_once('-').unwrap_or((does, ""));
    match verb {
        // status-503
        "status" => answer
            .status(rest.parse::<u16>().unwrap())
            .body(text.into()),
        // say-unknown-200: this outcome header, with a status that would mean something else
        "say" => {
            let (word, status) = rest.rsplit_once('-').unwrap();
            answer
                .header("semel-outcome", word)
                .status(status.parse::<u16>().unwrap())
                .body(text.into())
        }
        "held" => {
            app.gate(&what).pass().await;
            answer.status(201).body(text.into())
        }
        "panic" => panic!("on purpose"),
        "broken" => {
            let parts = [Ok(Bytes::from("first")), Err("reset")];
            // With a pause, so that the first part is sent before the error; otherwise the gateway
            // would see no response at all.
            let stream = futures_util::stream::iter(parts).then(|part| async move {
                tokio::task::yield_now().await;
                part
            });
            answer.status(200).body(Body::from_stream(stream))
        }
        // sized-1048577
        "sized" => answer
            .status(201)
            .header("location", "/things/1")
            .body(vec![b'x'; rest.parse().unwrap()].into()),
        // chunked-1048577
        "chunked" => {
            let left: usize = rest.parse().unwrap();
            let parts = vec![b'y'; left];
            let parts: Vec<_> = parts
                .chunks(7000)
                .map(|part| Ok::<_, std::io::Error>(Bytes::copy_from_slice(part)))
                .collect();
            let stream = futures_util::stream::iter(parts);
            answer.status(201).body(Body::from_stream(stream))
        }
        "headers" => answer
            .status(201)
            .header("location", "/things/1")
            .header("etag", "\"1\"")
            .header("link", "<a>; rel=next")
            .header("link", "<b>; rel=prev")
            .header("content-language", "la")
            .header("set-cookie", "session=1")
            .header("server", "app")
            .header("access-control-allow-origin", "*")
            .header("ratelimit-remaining", "7")
            .header("x-request-cost", "7")
            .header("x-unlisted", "8")
            .header("etag-like", b"\xff\xfe".as_slice())
            .body(text.into()),
        // schema-4
        "schema" => answer
            .header("semel-schema-version", rest)
            .header("semel-resource", "thing/1")
            .header("location", "/things/1")
            .status(201)
            .body(text.into()),
        "empty" => Response::builder().status(204).body(Body::empty()),
        "echo" => answer.status(201).body(body.into()),
        other => panic!("unknown path {other}"),
    }
    .unwrap()
}
