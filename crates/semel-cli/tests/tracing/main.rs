//! One request is one trace, from its client through the gateway to the application; and whoever
//! collects traces, or does not, is nothing that a client notices.
#![cfg(feature = "otlp")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "test code says what is wrong by panicking"
)]

mod collector;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use collector::{App, Collector, Span};
use reqwest::{Client, Response};
use rustix::process::Signal;
use serde_json::Value;
use support::{Gateway, Place};
use tokio::net::TcpListener;
use tokio::time::Instant;

const CONFIG: &str = r#"
[tenant]
from = "header:X-Account"

[policy]
drain = "20s"

[[route]]
match = "POST /payments/{account}"
operation = "create_payment"

[[route]]
match = "POST /broken"
operation = "break"

[route.reconcile]
poll = "GET /broken/{operation_id}"
completed = ["201"]
every = "20ms"
max_every = "100ms"
"#;

const TENANT: &str = "a-tenant-that-is-a-secret";
const CLIENT_SPAN: &str = "00f067aa0ba902b7";

/// A trace that begins at the client, by its last digit.
fn trace(digit: u8) -> String {
    format!("4bf92f3577b34da6a3ce929d0e0e473{digit}")
}

fn parent(trace: &str, flags: &str) -> String {
    format!("00-{trace}-{CLIENT_SPAN}-{flags}")
}

struct World {
    place: Place,
    app: App,
    client: Client,
}

impl World {
    async fn new() -> Self {
        Self {
            place: Place::new(CONFIG),
            app: App::open().await,
            client: Client::new(),
        }
    }

    fn start(&self, args: &[&str], variables: &[(&str, &str)]) -> Gateway {
        let mut command = self.place.command(&self.app.url);
        command.args(args).envs(variables.iter().copied());
        Gateway::start(command)
    }

    /// A request with a key, and with these headers.
    async fn post(&self, gateway: &Gateway, path: &str, more: &[(&str, &str)]) -> Response {
        let key = format!("\"a-key-that-is-a-secret-for{}\"", path.replace('/', "-"));
        let request = self
            .client
            .post(format!("http://{}{path}", gateway.address))
            .header("x-account", TENANT)
            .header("idempotency-key", key);
        let request = more.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        request.send().await.unwrap()
    }
}

#[track_caller]
fn one<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    match (found.next(), found.next()) {
        (Some(span), None) => span,
        other => panic!("not one {name}, but {other:?}, in {spans:#?}"),
    }
}

fn names(spans: &[Span]) -> Vec<&str> {
    let mut names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    names.sort_unstable();
    names
}

async fn end(gateway: Gateway) -> String {
    gateway.signal(Signal::TERM);
    let (status, log) = gateway.ended().await;
    assert!(status.success(), "{log}");
    log
}

#[tokio::test]
async fn a_request_is_one_trace_from_its_client_to_the_application() {
    let (world, collector) = (World::new().await, Collector::open().await);
    let gateway = world.start(&["--otlp-endpoint", &collector.url], &[]);
    let (first, again) = (trace(1), trace(2));
    let headers = [
        ("traceparent", &*parent(&first, "01")),
        ("tracestate", "vendor=1"),
    ];
    let paid = world.post(&gateway, "/payments/7", &headers).await;
    assert_eq!(paid.status(), 201);
    let asked = world.app.asked().unwrap();
    let headers = [("traceparent", &*parent(&again, "01"))];
    let replayed = world.post(&gateway, "/payments/7", &headers).await;
    assert_eq!(replayed.headers()["idempotent-replayed"], "true");
    assert!(!replayed.headers().contains_key("traceparent"));
    assert!(!replayed.headers().contains_key("tracestate"));
    assert!(world.app.asked().is_none());
    let log = end(gateway).await;

    let id = world.place.records(None).await[0].fence.id.to_string();
    let spans = collector.of(&first);
    let all = ["POST", "complete", "execute", "guard", "reserve"];
    assert_eq!(names(&spans), all, "{log}");
    let (request, guard) = (one(&spans, "POST"), one(&spans, "guard"));
    assert_eq!(request.parent, CLIENT_SPAN);
    assert_eq!((request.kind, &*request.state), (2, "vendor=1"));
    assert_eq!(request.field("http.request.method"), "POST");
    assert_eq!(request.field("http.response.status_code"), "201");
    assert_eq!(guard.parent, request.id);
    assert_eq!(guard.field("semel.operation"), "create_payment");
    assert_eq!(guard.field("http.route"), "/payments/{account}");
    for step in ["reserve", "execute", "complete"] {
        let step = one(&spans, step);
        assert_eq!(step.parent, guard.id);
        assert_eq!(step.field("semel.operation.id"), id);
        assert_eq!(step.field("semel.attempt"), "1");
        assert!(!step.failed);
    }
    assert_eq!(guard.field("semel.operation.id"), id);
    assert_eq!(guard.field("semel.decision"), "execute");
    assert_eq!(one(&spans, "reserve").field("semel.decision"), "execute");
    let execute = one(&spans, "execute");
    assert_eq!(execute.field("http.response.status_code"), "201");
    assert_eq!(one(&spans, "complete").field("semel.outcome"), "completed");
    let went_on = format!("00-{first}-{}-01", execute.id);
    assert_eq!(asked["traceparent"], *went_on);
    assert_eq!(asked["tracestate"], "vendor=1");

    let spans = collector.of(&again);
    assert_eq!(names(&spans), ["POST", "guard", "reserve"]);
    let reserve = one(&spans, "reserve");
    assert_eq!(reserve.field("semel.decision"), "replay");
    assert_eq!(reserve.field("semel.operation.id"), id);
    assert_eq!(reserve.parent, one(&spans, "guard").id);

    let all = format!("{:?}", collector.all());
    assert!(!all.contains("secret"), "{all}");
    assert_eq!(collector.services(), ["semel"]);
}

#[tokio::test]
async fn a_trace_begins_here_where_the_client_has_none_that_can_be_read() {
    let (world, collector) = (World::new().await, Collector::open().await);
    let endpoint = ("SEMEL_OTLP_ENDPOINT", &*collector.url);
    let gateway = world.start(&[], &[endpoint, ("OTEL_SERVICE_NAME", "pay-gateway")]);
    let wrong = format!("00-{}-{CLIENT_SPAN}-01", trace(1).to_uppercase());
    let headers = [("traceparent", &*wrong), ("tracestate", "vendor=1")];
    world.post(&gateway, "/payments/1", &headers).await;
    let keyed = world.app.asked().unwrap();
    assert!(!keyed.contains_key("tracestate"), "it is another trace's");

    // A request that is not guarded is part of its trace, too.
    let url = format!("http://{}/balance", gateway.address);
    let get = world.client.get(url);
    let get = get.header("traceparent", parent(&trace(2), "01"));
    get.send().await.unwrap();
    let plain = world.app.asked().unwrap();

    // Who began the trace decided that it is not kept, and that is passed on.
    let unsampled = [("traceparent", &*parent(&trace(3), "00"))];
    world.post(&gateway, "/payments/3", &unsampled).await;
    let quiet = world.app.asked().unwrap();
    end(gateway).await;

    let sent = |headers: &axum::http::HeaderMap| {
        let line = headers["traceparent"].to_str().unwrap().to_owned();
        let parts: Vec<_> = line.split('-').map(str::to_owned).collect();
        (parts[1].clone(), parts[2].clone(), parts[3].clone())
    };
    let (begun, from, flags) = sent(&keyed);
    assert_eq!(flags, "01");
    let spans = collector.of(&begun);
    assert_eq!(one(&spans, "execute").id, from);
    assert_eq!(one(&spans, "POST").parent, "");
    assert!(collector.of(&trace(1)).is_empty());

    let (known, from, _) = sent(&plain);
    assert_eq!(known, trace(2));
    let spans = collector.of(&known);
    assert_eq!(names(&spans), ["GET"]);
    assert_eq!((&*spans[0].id, &*spans[0].parent), (&*from, CLIENT_SPAN));

    let (known, from, flags) = sent(&quiet);
    assert_eq!((known, &*flags), (trace(3), "00"));
    assert_ne!(from, CLIENT_SPAN);
    assert!(collector.of(&trace(3)).is_empty());
    assert_eq!(collector.services(), ["pay-gateway"]);
}

#[tokio::test]
async fn what_nobody_knows_is_looked_for_in_a_span_of_its_own() {
    let (world, collector) = (World::new().await, Collector::open().await);
    let config = format!("{CONFIG}\n[telemetry]\notlp = \"{}\"\n", collector.url);
    world.place.configure(&config);
    let gateway = world.start(
        &["--log-format=json"],
        &[("RUST_LOG", "semel_worker=debug")],
    );
    let headers = [("traceparent", &*parent(&trace(1), "01"))];
    let broken = world.post(&gateway, "/broken", &headers).await;
    assert_eq!(broken.status(), 504);
    gateway.logged("an unknown outcome was found").await;
    let log = end(gateway).await;

    let id = world.place.records(None).await[0].fence.id.to_string();
    let spans = collector.of(&trace(1));
    let execute = one(&spans, "execute");
    assert!(execute.failed);
    let status = execute.fields.get("http.response.status_code");
    assert_eq!(status, None, "the application said nothing");
    assert_eq!(one(&spans, "complete").field("semel.outcome"), "unknown");
    assert!(one(&spans, "POST").failed);
    let all = collector.all();
    let looks: Vec<_> = all.iter().filter(|span| span.name == "reconcile").collect();
    let found = looks.last().unwrap();
    assert_eq!(found.field("semel.operation.id"), id);
    assert_eq!(found.field("semel.operation"), "break");
    assert_eq!(found.field("semel.attempt"), "1");
    assert_eq!(found.field("semel.decision"), "completed");
    let line = log
        .lines()
        .find(|line| line.contains("an unknown outcome was found"));
    let line: Value = serde_json::from_str(line.unwrap()).unwrap();
    assert_eq!(line["span"]["semel.operation.id"], id, "{line}");
}

#[tokio::test]
async fn without_a_collector_the_clients_words_go_on_as_they_are() {
    let world = World::new().await;
    for (number, log) in ["info", "trace"].into_iter().enumerate() {
        let gateway = world.start(&[], &[("RUST_LOG", log)]);
        for (line, state) in [
            (parent(&trace(1), "01"), "vendor=1,other=2"),
            ("nothing that could be read".into(), "neither"),
        ] {
            let headers = [("traceparent", &*line), ("tracestate", state)];
            let path = format!("/payments/{number}{}", line.len());
            let paid = world.post(&gateway, &path, &headers).await;
            assert_eq!(paid.status(), 201);
            let asked = world.app.asked().unwrap();
            assert_eq!(asked["traceparent"], *line);
            assert_eq!(asked["tracestate"], state);
        }
        world.post(&gateway, "/payments/none", &[]).await;
        if let Some(asked) = world.app.asked() {
            assert!(!asked.contains_key("traceparent"));
        }
        end(gateway).await;
    }
}

#[tokio::test]
async fn another_trace_is_no_other_request() {
    let (world, collector) = (World::new().await, Collector::open().await);
    let gateway = world.start(&["--otlp-endpoint", &collector.url], &[]);
    for digit in 1..=3 {
        let state = format!("vendor={digit}");
        let headers = [
            ("traceparent", &*parent(&trace(digit), "01")),
            ("tracestate", &*state),
        ];
        let paid = world.post(&gateway, "/payments/1", &headers).await;
        assert_eq!(paid.status(), 201);
        assert_eq!(
            paid.headers().contains_key("idempotent-replayed"),
            digit > 1
        );
    }
    world.app.asked().unwrap();
    end(gateway).await;
}

#[tokio::test]
async fn a_collector_that_is_not_there_or_never_answers_is_nobodys_trouble() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    for collector in [silent.local_addr().unwrap(), gone] {
        let world = World::new().await;
        let endpoint = format!("http://{collector}");
        let gateway = world.start(&["--otlp-endpoint", &endpoint], &[]);
        for number in 0..40 {
            let path = format!("/payments/{number}");
            let paid = world.post(&gateway, &path, &[]);
            let paid = tokio::time::timeout(Duration::from_secs(10), paid).await;
            assert_eq!(paid.unwrap().status(), 201);
            world.app.asked().unwrap();
        }
        let began = Instant::now();
        let log = end(gateway).await;
        assert!(began.elapsed() < Duration::from_secs(20), "{log}");
        assert!(log.contains("stopped"), "{log}");
    }
}

#[tokio::test]
async fn every_line_of_a_request_has_its_operation_in_both_formats() {
    let world = World::new().await;
    let levels = "semel_http=trace,semel_gateway=trace,hyper=trace";
    for format in ["json", "pretty"] {
        let path = format!("/broken?{format}");
        let gateway = world.start(
            &["--log-format", format, "--no-worker"],
            &[("RUST_LOG", levels)],
        );
        let broken = world.post(&gateway, &path, &[]).await;
        assert_eq!(broken.status(), 504);
        let log = end(gateway).await;
        let id = world.place.records(None).await[0].fence.id.to_string();
        let ours = |line: &&str| {
            ["semel_http", "semel_gateway::upstream", "hyper::client"]
                .iter()
                .any(|target| line.contains(target))
        };
        let lines: Vec<_> = log.lines().filter(ours).collect();
        let said = |what: &str| lines.iter().any(|line| line.contains(what));
        assert!(said("the upstream gave no answer"), "{log}");
        for line in lines {
            if format == "json" {
                let line: Value = serde_json::from_str(line).unwrap();
                let spans = line["spans"].as_array().unwrap();
                assert!(
                    spans.iter().any(|span| span["semel.operation.id"] == id),
                    "{line}"
                );
            } else {
                assert!(line.contains(&format!("semel.operation.id={id}")), "{line}");
            }
        }
    }
}
