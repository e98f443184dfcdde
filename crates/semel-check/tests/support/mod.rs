//! An API in memory: correct, but for one hole. No socket and no real time: an operation of ten
//! seconds takes none, and a race comes out the same every time.

mod api;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use semel_check::{Address, Case, Counter, Header, Pending, Stream, Target, World};
use tokio::task::AbortHandle;

pub(crate) use api::{Api, Hole, Manner};

/// More than any answer here.
const PIPE: usize = 4 << 20;

/// Connections to the API, and commands that break it.
pub(crate) struct Memory {
    pub(crate) api: Arc<Api>,
    connections: Mutex<Vec<AbortHandle>>,
}

impl Memory {
    pub(crate) fn new(hole: Hole, manner: Manner) -> Self {
        Self {
            api: Arc::new(Api::new(hole, manner)),
            connections: Mutex::default(),
        }
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

impl World for Memory {
    fn connect<'a>(&'a self, _: &'a Address) -> Pending<'a, io::Result<Box<dyn Stream>>> {
        let (client, server) = tokio::io::duplex(PIPE);
        let api = self.api.clone();
        let service = service_fn(move |request| api.clone().answer(request));
        let serving = http1::Builder::new().serve_connection(TokioIo::new(server), service);
        let task = tokio::spawn(async move {
            // A client that goes away is what is tested.
            let _ = serving.await;
        });
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connections.push(task.abort_handle());
        Box::pin(async move { Ok(Box::new(client) as Box<dyn Stream>) })
    }

    fn ask<'a>(&'a self, command: &'a str) -> Pending<'a, io::Result<String>> {
        Box::pin(async move {
            let reference = command
                .strip_prefix("count ")
                .ok_or(io::ErrorKind::NotFound)?;
            Ok(format!("{}\n", self.api.effects(reference)))
        })
    }

    fn run<'a>(&'a self, command: &'a str) -> Pending<'a, io::Result<()>> {
        Box::pin(async move {
            match command {
                "crash" => self.crash(),
                "break" => self.api.break_store(true),
                "heal" => self.api.break_store(false),
                _ => return Err(io::ErrorKind::NotFound.into()),
            }
            Ok(())
        })
    }
}

/// Everything that a probe could need.
pub(crate) fn target() -> Target {
    let case = |value: &str| {
        Some(Case::Header(Header {
            name: "X-Case".to_owned(),
            value: value.to_owned(),
        }))
    };
    let header = |value: &str| Header {
        name: "Authorization".to_owned(),
        value: value.to_owned(),
    };
    let mut target = Target::new("http://shop/payments".parse().unwrap());
    target.headers = vec![header("Bearer first-customer")];
    target.other_headers = vec![header("Bearer other-customer")];
    target.counter = Some(Counter::Command("count {reference}".to_owned()));
    target.cases.slow = case("slow");
    target.cases.linger = case("linger");
    target.cases.timeout = case("timeout");
    target.cases.declined = case("declined");
    target.cases.large = case("large");
    target.commands.crash = Some("crash".to_owned());
    target.commands.break_store = Some("break".to_owned());
    target.commands.heal_store = Some("heal".to_owned());
    target.operation_timeout = Duration::from_secs(30);
    target.disruptive = true;
    target
}
