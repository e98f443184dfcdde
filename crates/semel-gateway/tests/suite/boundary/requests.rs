//! Which requests are guarded, and in which order they are checked.

use std::time::Duration;

use axum::http::Method;
use semel_core::Status;
use semel_http::Builder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::boundary::fixture::{Call, EntryPoint, Fixture, Store};
use crate::support::until;

crate::boundary::through_both_entry_points!(
    post_and_patch_are_guarded,
    put_only_where_a_route_opts_in,
    safe_methods_pass_even_with_a_key,
    idempotent_methods_pass_without_a_key,
    a_missing_key_is_refused_where_required,
    without_a_key_optional_passes_unguarded,
    ignored_passes_even_with_a_key,
    an_unnamed_route_is_known_by_its_path,
    a_bad_key_is_refused_before_the_body_is_asked_for,
    an_incomplete_body_reserves_nothing,
    a_body_over_the_limit_is_refused,
    a_body_without_a_length_is_bounded_too,
    a_request_without_a_tenant_is_refused,
    a_request_without_a_tenant_is_refused_before_its_body_is_read,
    request_bodies_share_one_limit,
    tenants_with_the_same_key_are_isolated,
);

async fn post_and_patch_are_guarded(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for method in [Method::POST, Method::PATCH] {
        let call = || {
            fixture
                .call("/unnamed/status-201", "k1", "{}")
                .method(method.clone())
        };
        let first = call().send().await;
        let second = call().send().await;
        assert_eq!(first.body, second.body);
        assert!(!first.is_replay() && second.is_replay(), "{method}");
    }
    assert_eq!(fixture.app.executions(), 2);
}

async fn put_only_where_a_route_opts_in(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for (path, executions) in [("/unnamed/status-200", 2), ("/do/status-200", 3)] {
        for _ in 0..2 {
            let call = fixture.call(path, "k1", "{}").method(Method::PUT);
            assert_eq!(call.send().await.status, 200);
        }
        assert_eq!(fixture.app.executions(), executions);
    }
}

async fn safe_methods_pass_even_with_a_key(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE] {
        for _ in 0..2 {
            let call = fixture
                .call("/do/status-200", "k1", "")
                .method(method.clone());
            let answer = call.send().await;
            assert_eq!(answer.status, 200, "{method}");
            assert!(answer.header("idempotency-key-expires").is_none());
        }
    }
    assert_eq!(fixture.app.executions(), 8);
    assert!(fixture.records().await.is_empty());
}

/// They are idempotent by their definition, so each request executes, and needs neither a key nor a
/// tenant.
async fn idempotent_methods_pass_without_a_key(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        for _ in 0..2 {
            let call = Call::to(fixture.address, method.clone(), "/unnamed/status-200");
            let answer = call.body("{}").send().await;
            assert_eq!(answer.status, 200, "{method}: {}", answer.text());
            assert!(!answer.is_replay(), "{method}");
        }
    }
    let bodies: Vec<_> = fixture
        .app
        .seen()
        .into_iter()
        .map(|seen| seen.body)
        .collect();
    assert_eq!(bodies, ["{}"; 6]);
    assert!(fixture.records().await.is_empty());
}

async fn a_missing_key_is_refused_where_required(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let answer = fixture.post("/do/status-201", "", "{}").await;
    answer.refuses(400, "idempotency_key_missing");
    assert_eq!(fixture.app.executions(), 0);
}

async fn without_a_key_optional_passes_unguarded(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for _ in 0..2 {
        assert_eq!(
            fixture.post("/optional/status-201", "", "{}").await.status,
            201
        );
    }
    assert_eq!(fixture.app.executions(), 2);
    assert!(fixture.records().await.is_empty());
    for _ in 0..2 {
        fixture.post("/optional/status-201", "k1", "{}").await;
    }
    assert_eq!(fixture.app.executions(), 3);
}

async fn ignored_passes_even_with_a_key(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for _ in 0..2 {
        assert_eq!(
            fixture.post("/ignored/status-201", "k1", "{}").await.status,
            201
        );
    }
    assert_eq!(fixture.app.executions(), 2);
    assert!(fixture.records().await.is_empty());
}

async fn an_unnamed_route_is_known_by_its_path(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for path in ["/unnamed/status-200", "/unnamed/status-201"] {
        fixture.post(path, "k1", "{}").await;
    }
    assert_eq!(fixture.app.executions(), 2);
    let mut operations: Vec<_> = fixture
        .records()
        .await
        .iter()
        .map(|record| record.identity.operation().to_owned())
        .collect();
    operations.sort();
    assert_eq!(
        operations,
        ["POST /unnamed/status-200", "POST /unnamed/status-201"]
    );
}

/// Sends raw bytes, and reads until the connection ends or a response head is complete.
async fn raw(fixture: &Fixture, bytes: &str) -> String {
    let mut stream = TcpStream::connect(fixture.address).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(length) = stream.read(&mut buffer).await {
        seen.extend_from_slice(&buffer[..length]);
        if length == 0 || seen.windows(4).any(|end| end == b"\r\n\r\n") {
            break;
        }
    }
    String::from_utf8_lossy(&seen).into_owned()
}

async fn a_bad_key_is_refused_before_the_body_is_asked_for(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let head = "POST /do/status-201 HTTP/1.1\r\nHost: x\r\nX-Account: acme\r\nContent-Length: 2\r\nExpect: 100-continue\r\n";
    let answer = raw(&fixture, &format!("{head}Idempotency-Key: \"\"\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let answer = raw(&fixture, &format!("{head}Idempotency-Key: good\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 100"), "{answer}");
    assert_eq!(fixture.app.executions(), 0);
}

async fn an_incomplete_body_reserves_nothing(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let mut stream = TcpStream::connect(fixture.address).await.unwrap();
    let request = "POST /do/status-201 HTTP/1.1\r\nHost: x\r\nX-Account: acme\r\nIdempotency-Key: k1\r\nContent-Length: 10\r\n\r\n{\"a\"";
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    // The response does not matter, only that the connection ends.
    let _ = stream.read_to_end(&mut rest).await;
    assert!(fixture.records().await.is_empty());
    let answer = fixture.post("/do/status-201", "k1", "{}").await;
    assert_eq!(answer.status, 201);
    assert_eq!(fixture.app.executions(), 1);
}

async fn a_body_over_the_limit_is_refused(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| route.max_request(100))
    })
    .await;
    let body = format!("\"{}\"", "x".repeat(99));
    let answer = fixture.post("/do/status-201", "k1", &body).await;
    answer.refuses(413, "request_too_large");
    assert!(fixture.records().await.is_empty());
    let answer = fixture.post("/do/status-201", "k1", &body[..100]).await;
    assert_eq!(answer.status, 201);
}

async fn a_body_without_a_length_is_bounded_too(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| route.max_request(100))
    })
    .await;
    let head = "POST /do/status-201 HTTP/1.1\r\nHost: x\r\nX-Account: acme\r\nIdempotency-Key: k1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("3c\r\n{}\r\n", " ".repeat(60));
    let answer = raw(&fixture, &format!("{head}{chunk}{chunk}0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(fixture.records().await.is_empty());
    assert_eq!(fixture.app.executions(), 0);
    let answer = raw(&fixture, &format!("{head}{chunk}0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
}

async fn a_request_without_a_tenant_is_refused(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let answer = Call::to(fixture.address, Method::POST, "/do/status-201")
        .header("idempotency-key", "k1")
        .send()
        .await;
    answer.refuses(403, "tenant_unresolved");
    assert_eq!(fixture.app.executions(), 0);
}

async fn tenants_with_the_same_key_are_isolated(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    // The second time the response is in the replay cache as well.
    for is_replay in [false, true] {
        let first = fixture.post("/do/status-201", "k1", "{}").await;
        assert_eq!(first.status, 201);
        assert_eq!(first.is_replay(), is_replay);
    }
    for body in ["{}", r#"{"other":1}"#] {
        // The first one differs from the original only in its tenant.
        let answer = Call::to(fixture.address, Method::POST, "/do/status-201")
            .header("x-account", format!("other{}", body.len()))
            .header("idempotency-key", "k1")
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await;
        assert_eq!(answer.status, 201);
        assert!(!answer.is_replay());
    }
    assert_eq!(fixture.app.executions(), 3);
    let records = fixture.records().await;
    assert!(
        records
            .iter()
            .all(|record| record.state.status() == Status::Completed)
    );
}

async fn a_request_without_a_tenant_is_refused_before_its_body_is_read(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let mut client = TcpStream::connect(fixture.address).await.unwrap();
    let head = "POST /do/status-201 HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\n\
                Content-Length: 1000\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let answered = until(&mut client, "tenant_unresolved");
    let answered = tokio::time::timeout(Duration::from_secs(5), answered).await;
    let answer = answered.expect("the body was waited for");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

async fn request_bodies_share_one_limit(entry: EntryPoint) {
    let build = |builder: Builder<Store>| builder.max_buffered(100);
    let fixture = Fixture::build(entry, build, |layer| layer).await;
    let mut slow = TcpStream::connect(fixture.address).await.unwrap();
    let head = "POST /do/status-201 HTTP/1.1\r\nHost: a\r\nX-Account: acme\r\n\
                Idempotency-Key: slow\r\nContent-Length: 90\r\n\r\n";
    let (first, last) = ([b'x'; 80], [b'x'; 10]);
    slow.write_all(head.as_bytes()).await.unwrap();
    slow.write_all(&first).await.unwrap();
    // Requests pass until the eighty bytes have arrived.
    let body = "y".repeat(30);
    let mut number = 0;
    let refused = loop {
        number += 1;
        let answer = fixture
            .post("/do/status-201", &format!("k{number}"), &body)
            .await;
        if answer.status != 201 {
            break answer;
        }
        assert!(number < 1000, "the limit does not apply");
    };
    refused.refuses(503, "server_overloaded");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.json()["retryable"], true);
    assert_eq!(
        fixture.records().await.len(),
        number - 1,
        "nothing reserved"
    );
    slow.write_all(&last).await.unwrap();
    until(&mut slow, "execution").await;
    let answer = fixture.post("/do/status-201", "after", &body).await;
    assert_eq!(answer.status, 201);
}
