//! Spellings of a path, and hosts.

use axum::http::{Method, Request};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use semel_core::fingerprint::Hosts;
use tokio::net::TcpStream;

use crate::boundary::fixture::{EntryPoint, Fixture};

crate::boundary::through_both_entry_points!(
    every_spelling_of_a_path_needs_the_key_and_finds_the_record,
    an_undecidable_path_is_refused,
    the_path_reaches_the_application_as_it_was_sent,
    a_standard_method_in_lower_case_is_refused,
    another_host_is_misuse_unless_it_is_equivalent,
    http2_has_its_authority_for_a_host,
);

const LOOSER: [&str; 6] = [
    "/do/status-201/",
    "/DO/status-201",
    "//do/status-201",
    "/do//status-201",
    "/do/status-201;v=1",
    "/do/STATUS-201",
];

async fn every_spelling_of_a_path_needs_the_key_and_finds_the_record(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    assert_eq!(fixture.post("/do/status-201", "k1", "{}").await.status, 201);
    for spelling in LOOSER {
        let missing = fixture.post(spelling, "", "{}").await;
        missing.refuses(400, "idempotency_key_missing");
        let misused = fixture.post(spelling, "k1", "{}").await;
        misused.refuses(422, "idempotency_key_reused");
    }
    for spelling in [
        "/do/st%61tus-201",
        "/x/../do/status-201",
        "/./do/status-201",
    ] {
        let replayed = fixture.post(spelling, "k1", "{}").await;
        assert!(replayed.is_replay(), "{spelling}");
    }
    assert_eq!(
        (fixture.app.executions(), fixture.records().await.len()),
        (1, 1)
    );
}

async fn an_undecidable_path_is_refused(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for spelling in [
        "/do%2Fstatus-201",
        "/do/status-201%2f",
        "/x/%2e%2e/do/status-201",
        "/do/status-201%00",
        "/do/status-201%zz",
        "/do/%252e",
        "/do\\status-201",
        "/do/status-201é",
    ] {
        for key in ["", "k1"] {
            let refused = fixture.post(spelling, key, "{}").await;
            refused.refuses(400, "path_ambiguous");
        }
    }
    assert_eq!(fixture.app.executions(), 0);
    // No route could match it: without a key it passes.
    let passed = fixture.post("/nothing%2Fhere", "", "{}").await;
    assert_eq!(passed.status, 404, "the application's own answer");
}

async fn the_path_reaches_the_application_as_it_was_sent(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let spelling = "/do/st%61tus-2%30%31";
    assert_eq!(fixture.post(spelling, "k1", "{}").await.status, 201);
    assert_eq!(fixture.app.seen()[0].path, spelling);
}

async fn a_standard_method_in_lower_case_is_refused(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for method in ["post", "Patch"] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let call = fixture.call("/do/status-201", "k1", "{}").method(method);
        call.send().await.refuses(400, "request_malformed");
    }
    assert_eq!(fixture.app.executions(), 0);
}

async fn another_host_is_misuse_unless_it_is_equivalent(entry: EntryPoint) {
    let pair = Hosts::equivalent([["a.example", "b.example"]]).unwrap();
    for (hosts, statuses) in [
        (Hosts::default(), [201, 201, 422, 422]),
        (pair, [201, 201, 201, 422]),
        (Hosts::any(), [201, 201, 201, 201]),
    ] {
        let fixture = Fixture::with(entry, |layer| layer.hosts(&hosts)).await;
        let names = ["a.example", "A.example.", "b.example", "c.example"];
        for (host, status) in names.into_iter().zip(statuses) {
            let call = fixture.call("/do/status-201", "k1", "{}");
            let answer = call.host(host).send().await;
            assert_eq!(answer.status, status, "{hosts:?} {host}");
        }
        assert_eq!(fixture.app.executions(), 1);
    }
}

async fn http2_has_its_authority_for_a_host(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let call = fixture.call("/do/status-201", "k1", "{}").host("a.example");
    assert_eq!(call.send().await.status, 201);
    for (host, status) in [
        ("a.example", 201),
        ("a.example:80", 201),
        ("b.example", 422),
    ] {
        let stream = TcpStream::connect(fixture.address).await.unwrap();
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let request = Request::post(format!("http://{host}/do/status-201"))
            .header("x-account", "acme")
            .header("content-type", "application/json")
            .header("idempotency-key", "k1")
            .body(Full::new(Bytes::from_static(b"{}")))
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), status, "{host}");
    }
    assert_eq!(fixture.app.executions(), 1);
}
