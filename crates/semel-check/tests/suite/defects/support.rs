//! An API in memory: correct, but for one defect. No socket and no real time: an operation of ten
//! seconds takes none, and a race comes out the same every time.

mod api;
mod defect;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use semel_check::{Address, BoxFuture, Case, Counter, Environment, Header, Stream, Target};
use tokio::task::AbortHandle;
use tokio::time::sleep;

pub(crate) use api::Api;
pub(crate) use defect::{ApiStyle, Defect};

/// More than any answer here.
const PIPE: usize = 4 << 20;

/// Connections to the API, and commands that break it.
pub(crate) struct TestEnvironment {
    pub(crate) api: Arc<Api>,
    connections: Mutex<Vec<AbortHandle>>,
    /// How far its counter is behind.
    pub(crate) lag: Duration,
    /// So many connections may be open at once.
    pub(crate) most: usize,
}

impl TestEnvironment {
    pub(crate) fn new(defect: Defect, style: ApiStyle) -> Self {
        Self {
            api: Arc::new(Api::new(defect, style)),
            connections: Mutex::default(),
            lag: Duration::ZERO,
            most: usize::MAX,
        }
    }

    fn open(&self) -> io::Result<Box<dyn Stream>> {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connections.retain(|one| !one.is_finished());
        if connections.len() >= self.most {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (client, server) = tokio::io::duplex(PIPE);
        let api = self.api.clone();
        let service = service_fn(move |request| api.clone().answer(request));
        let serving = http1::Builder::new().serve_connection(TokioIo::new(server), service);
        let task = tokio::spawn(async move {
            // A client that goes away is what is tested.
            let _ = serving.await;
        });
        connections.push(task.abort_handle());
        Ok(Box::new(client))
    }

    fn crash(&self) {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for connection in connections.drain(..) {
            connection.abort();
        }
        self.api.crash();
    }
}

impl Environment for TestEnvironment {
    fn connect<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            if self.most != usize::MAX {
                // sleeps because one that was closed is to be gone; the clock is paused.
                sleep(Duration::from_millis(1)).await;
            }
            self.open()
        })
    }

    fn output<'a>(&'a self, command: &'a str) -> BoxFuture<'a, io::Result<String>> {
        Box::pin(async move {
            let (kind, name) = command.split_once(' ').unwrap_or((command, ""));
            match kind {
                "count" | "count-key" | "count-all" => {
                    Ok(format!("{}\n", self.api.effects(kind, name, self.lag)))
                }
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }

    fn run<'a>(&'a self, command: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            match command {
                "crash" => {
                    // sleeps because a process takes time to die; the clock is paused.
                    sleep(Duration::from_millis(20)).await;
                    self.crash();
                }
                "break" => self.api.break_store(true),
                "heal" => self.api.break_store(false),
                _ => return Err(io::ErrorKind::NotFound.into()),
            }
            Ok(())
        })
    }
}

/// A case that makes the API behave in some way.
pub(crate) fn case(value: &str) -> Case {
    Case::Header(Header {
        name: "X-Case".to_owned(),
        value: value.to_owned(),
    })
}

/// The same by a body.
pub(crate) fn body(value: &str) -> Case {
    Case::Body(format!(
        r#"{{"amount":1000,"case":"{value}","merchant_reference":"{{reference}}"}}"#
    ))
}

pub(crate) fn counter(command: &str) -> Counter {
    Counter::Command(command.to_owned())
}

/// Everything that a probe could need.
pub(crate) fn target() -> Target {
    let header = |value: &str| Header {
        name: "Authorization".to_owned(),
        value: value.to_owned(),
    };
    let mut target = Target::new("http://shop/payments".parse().unwrap());
    target.headers = vec![header("Bearer first-customer")];
    target.other_headers = vec![header("Bearer other-customer")];
    target.counter = Some(counter("count {reference}"));
    target.cases.slow = Some(case("slow"));
    target.cases.linger = Some(case("linger"));
    target.cases.timeout = Some(case("timeout"));
    target.cases.declined = Some(case("declined"));
    target.cases.large = Some(case("large"));
    target.commands.crash = Some("crash".to_owned());
    target.commands.break_store = Some("break".to_owned());
    target.commands.heal_store = Some("heal".to_owned());
    target.operation_timeout = Duration::from_secs(30);
    target.disruptive = true;
    target
}
