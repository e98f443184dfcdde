//! A request is one trace, from its client through the gateway to the application. Clients are not
//! affected by the collector, whether it works or not.

mod collector;
use std::time::Duration;

use collector::{App, Collector, Span};
use reqwest::{Client, Response};
use rustix::process::Signal;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::support::{Gateway, GatewayDirectory};

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

/// The id of a trace that begins at the client, by its last digit.
fn trace(digit: u8) -> String {
    format!("4bf92f3577b34da6a3ce929d0e0e473{digit}")
}

fn parent(trace: &str, flags: &str) -> String {
    format!("00-{trace}-{CLIENT_SPAN}-{flags}")
}

/// A gateway's directory, the application behind it, and a client.
struct TestBed {
    gateway_dir: GatewayDirectory,
    app: App,
    client: Client,
}

impl TestBed {
    async fn new() -> Self {
        Self {
            gateway_dir: GatewayDirectory::new(CONFIG),
            app: App::open().await,
            client: Client::new(),
        }
    }

    fn start(&self, args: &[&str], variables: &[(&str, &str)]) -> Gateway {
        let mut command = self.gateway_dir.command(&self.app.url);
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
fn only_span<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    match (found.next(), found.next()) {
        (Some(span), None) => span,
        other => panic!("expected one span {name}, got {other:?}, in {spans:#?}"),
    }
}

fn names(spans: &[Span]) -> Vec<&str> {
    let mut names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    names.sort_unstable();
    names
}

async fn stop(gateway: Gateway) -> String {
    gateway.signal(Signal::TERM);
    let (status, log) = gateway.wait_for_exit().await;
    assert!(status.success(), "{log}");
    log
}

#[tokio::test]
async fn request_is_one_trace_from_client_to_application() {
    let (bed, collector) = (TestBed::new().await, Collector::open().await);
    let gateway = bed.start(&["--otlp-endpoint", &collector.url], &[]);
    let (first, again) = (trace(1), trace(2));
    let headers = [
        ("traceparent", &*parent(&first, "01")),
        ("tracestate", "vendor=1"),
    ];
    let paid = bed.post(&gateway, "/payments/7", &headers).await;
    assert_eq!(paid.status(), 201);
    let last_request = bed.app.last_request().unwrap();
    let headers = [("traceparent", &*parent(&again, "01"))];
    let replayed = bed.post(&gateway, "/payments/7", &headers).await;
    assert_eq!(replayed.headers()["idempotent-replayed"], "true");
    assert!(!replayed.headers().contains_key("traceparent"));
    assert!(!replayed.headers().contains_key("tracestate"));
    assert!(bed.app.last_request().is_none());
    let log = stop(gateway).await;

    let id = bed.gateway_dir.records(None).await[0].fence.id.to_string();
    let spans = collector.of(&first);
    let all = ["POST", "complete", "execute", "guard", "reserve"];
    assert_eq!(names(&spans), all, "{log}");
    let (request, guard) = (only_span(&spans, "POST"), only_span(&spans, "guard"));
    assert_eq!(request.parent, CLIENT_SPAN);
    assert_eq!((request.kind, &*request.state), (2, "vendor=1"));
    assert_eq!(request.field("http.request.method"), "POST");
    assert_eq!(request.field("http.response.status_code"), "201");
    assert_eq!(guard.parent, request.id);
    assert_eq!(guard.field("semel.operation"), "create_payment");
    assert_eq!(guard.field("http.route"), "/payments/{account}");
    for step in ["reserve", "execute", "complete"] {
        let step = only_span(&spans, step);
        assert_eq!(step.parent, guard.id);
        assert_eq!(step.field("semel.operation.id"), id);
        assert_eq!(step.field("semel.attempt"), "1");
        assert!(!step.failed);
    }
    assert_eq!(guard.field("semel.operation.id"), id);
    assert_eq!(guard.field("semel.decision"), "execute");
    assert_eq!(
        only_span(&spans, "reserve").field("semel.decision"),
        "execute"
    );
    let execute = only_span(&spans, "execute");
    assert_eq!(execute.field("http.response.status_code"), "201");
    assert_eq!(
        only_span(&spans, "complete").field("semel.outcome"),
        "completed"
    );
    let propagated = format!("00-{first}-{}-01", execute.id);
    assert_eq!(last_request["traceparent"], *propagated);
    assert_eq!(last_request["tracestate"], "vendor=1");

    let spans = collector.of(&again);
    assert_eq!(names(&spans), ["POST", "guard", "reserve"]);
    let reserve = only_span(&spans, "reserve");
    assert_eq!(reserve.field("semel.decision"), "replay");
    assert_eq!(reserve.field("semel.operation.id"), id);
    assert_eq!(reserve.parent, only_span(&spans, "guard").id);

    let all = format!("{:?}", collector.all());
    assert!(!all.contains("secret"), "{all}");
    assert_eq!(collector.services(), ["semel"]);
}

#[tokio::test]
async fn gateway_starts_a_trace_without_a_valid_traceparent() {
    let (bed, collector) = (TestBed::new().await, Collector::open().await);
    let endpoint = ("SEMEL_OTLP_ENDPOINT", &*collector.url);
    let gateway = bed.start(&[], &[endpoint, ("OTEL_SERVICE_NAME", "pay-gateway")]);
    let wrong = format!("00-{}-{CLIENT_SPAN}-01", trace(1).to_uppercase());
    let headers = [("traceparent", &*wrong), ("tracestate", "vendor=1")];
    bed.post(&gateway, "/payments/1", &headers).await;
    let keyed = bed.app.last_request().unwrap();
    assert!(
        !keyed.contains_key("tracestate"),
        "the state belongs to another trace"
    );

    // An unguarded request is part of its trace, too.
    let url = format!("http://{}/balance", gateway.address);
    let get = bed.client.get(url);
    let get = get.header("traceparent", parent(&trace(2), "01"));
    get.send().await.unwrap();
    let plain = bed.app.last_request().unwrap();

    // The client decided not to sample the trace, and the gateway passes this on.
    let unsampled = [("traceparent", &*parent(&trace(3), "00"))];
    bed.post(&gateway, "/payments/3", &unsampled).await;
    let quiet = bed.app.last_request().unwrap();
    stop(gateway).await;

    let sent = |headers: &http::HeaderMap| {
        let line = headers["traceparent"].to_str().unwrap().to_owned();
        let parts: Vec<_> = line.split('-').map(str::to_owned).collect();
        (parts[1].clone(), parts[2].clone(), parts[3].clone())
    };
    let (begun, from, flags) = sent(&keyed);
    assert_eq!(flags, "01");
    let spans = collector.of(&begun);
    assert_eq!(only_span(&spans, "execute").id, from);
    assert_eq!(only_span(&spans, "POST").parent, "");
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
async fn lookup_of_an_unknown_record_has_its_own_span() {
    let (bed, collector) = (TestBed::new().await, Collector::open().await);
    let config = format!("{CONFIG}\n[telemetry]\notlp = \"{}\"\n", collector.url);
    bed.gateway_dir.configure(&config);
    let gateway = bed.start(
        &["--log-format=json"],
        &[("RUST_LOG", "semel_worker=debug")],
    );
    let headers = [("traceparent", &*parent(&trace(1), "01"))];
    let broken = bed.post(&gateway, "/broken", &headers).await;
    assert_eq!(broken.status(), 504);
    gateway.wait_for_log("resolved an unknown record").await;
    let log = stop(gateway).await;

    let id = bed.gateway_dir.records(None).await[0].fence.id.to_string();
    let spans = collector.of(&trace(1));
    let execute = only_span(&spans, "execute");
    assert!(execute.failed);
    let status = execute.fields.get("http.response.status_code");
    assert_eq!(status, None, "the application did not answer");
    assert_eq!(
        only_span(&spans, "complete").field("semel.outcome"),
        "unknown"
    );
    assert!(only_span(&spans, "POST").failed);
    let all = collector.all();
    let lookups: Vec<_> = all.iter().filter(|span| span.name == "reconcile").collect();
    let found = lookups.last().unwrap();
    assert_eq!(found.field("semel.operation.id"), id);
    assert_eq!(found.field("semel.operation"), "break");
    assert_eq!(found.field("semel.attempt"), "1");
    assert_eq!(found.field("semel.decision"), "completed");
    let line = log
        .lines()
        .find(|line| line.contains("resolved an unknown record"));
    let line: Value = serde_json::from_str(line.unwrap()).unwrap();
    assert_eq!(line["span"]["semel.operation.id"], id, "{line}");
}

#[tokio::test]
async fn trace_headers_pass_unchanged_without_a_collector() {
    let bed = TestBed::new().await;
    for (number, log) in ["info", "trace"].into_iter().enumerate() {
        let gateway = bed.start(&[], &[("RUST_LOG", log)]);
        for (line, state) in [
            (parent(&trace(1), "01"), "vendor=1,other=2"),
            ("nothing that could be read".into(), "neither"),
        ] {
            let headers = [("traceparent", &*line), ("tracestate", state)];
            let path = format!("/payments/{number}{}", line.len());
            let paid = bed.post(&gateway, &path, &headers).await;
            assert_eq!(paid.status(), 201);
            let last_request = bed.app.last_request().unwrap();
            assert_eq!(last_request["traceparent"], *line);
            assert_eq!(last_request["tracestate"], state);
        }
        bed.post(&gateway, "/payments/none", &[]).await;
        if let Some(last_request) = bed.app.last_request() {
            assert!(!last_request.contains_key("traceparent"));
        }
        stop(gateway).await;
    }
}

#[tokio::test]
async fn retry_in_another_trace_is_replayed() {
    let (bed, collector) = (TestBed::new().await, Collector::open().await);
    let gateway = bed.start(&["--otlp-endpoint", &collector.url], &[]);
    for digit in 1..=3 {
        let state = format!("vendor={digit}");
        let headers = [
            ("traceparent", &*parent(&trace(digit), "01")),
            ("tracestate", &*state),
        ];
        let paid = bed.post(&gateway, "/payments/1", &headers).await;
        assert_eq!(paid.status(), 201);
        assert_eq!(
            paid.headers().contains_key("idempotent-replayed"),
            digit > 1
        );
    }
    bed.app.last_request().unwrap();
    stop(gateway).await;
}

#[tokio::test]
async fn unavailable_collector_does_not_delay_requests_or_shutdown() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    for collector in [silent.local_addr().unwrap(), gone] {
        let bed = TestBed::new().await;
        let endpoint = format!("http://{collector}");
        let gateway = bed.start(&["--otlp-endpoint", &endpoint], &[]);
        for number in 0..40 {
            let path = format!("/payments/{number}");
            let paid = bed.post(&gateway, &path, &[]);
            let paid = tokio::time::timeout(Duration::from_secs(10), paid).await;
            assert_eq!(paid.unwrap().status(), 201);
            bed.app.last_request().unwrap();
        }
        let began = Instant::now();
        let log = stop(gateway).await;
        assert!(began.elapsed() < Duration::from_secs(20), "{log}");
        assert!(log.contains("stopped"), "{log}");
    }
}

#[tokio::test]
async fn every_log_line_of_a_request_names_its_operation_in_both_formats() {
    let bed = TestBed::new().await;
    let levels = "semel_http=trace,semel_gateway=trace,hyper=trace";
    for format in ["json", "pretty"] {
        let path = format!("/broken?{format}");
        let gateway = bed.start(
            &["--log-format", format, "--no-worker"],
            &[("RUST_LOG", levels)],
        );
        let broken = bed.post(&gateway, &path, &[]).await;
        assert_eq!(broken.status(), 504);
        let log = stop(gateway).await;
        let id = bed.gateway_dir.records(None).await[0].fence.id.to_string();
        let ours = |line: &&str| {
            ["semel_http", "semel_gateway::upstream", "hyper::client"]
                .iter()
                .any(|target| line.contains(target))
        };
        let lines: Vec<_> = log.lines().filter(ours).collect();
        let logged = |what: &str| lines.iter().any(|line| line.contains(what));
        assert!(
            logged("no response from the upstream; the outcome is unknown"),
            "{log}"
        );
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
