//! Which requests are guarded, and in which order they are looked at.

use axum::http::Method;
use semel_core::Status;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::world::{Door, World};

crate::through_both_doors!(
    post_and_patch_are_guarded,
    put_only_where_a_route_opts_in,
    safe_methods_pass_even_with_a_key,
    a_missing_key_is_refused_where_required,
    without_a_key_optional_passes_unguarded,
    ignored_passes_even_with_a_key,
    an_unnamed_route_is_known_by_its_exact_path,
    a_bad_key_is_refused_before_the_body_is_asked_for,
    an_incomplete_body_reserves_nothing,
    a_body_over_the_limit_is_refused,
    a_body_without_a_length_is_bounded_too,
    without_a_tenant_nothing_happens,
    tenants_do_not_meet,
);

async fn post_and_patch_are_guarded(door: Door) {
    let world = World::new(door).await;
    for method in [Method::POST, Method::PATCH] {
        let call = || {
            world
                .call("/unnamed/status-201", "k1", "{}")
                .method(method.clone())
        };
        let first = call().send().await;
        let second = call().send().await;
        assert_eq!(first.body, second.body);
        assert!(!first.is_replay() && second.is_replay(), "{method}");
    }
    assert_eq!(world.app.executions(), 2);
}

async fn put_only_where_a_route_opts_in(door: Door) {
    let world = World::new(door).await;
    for (path, executions) in [("/unnamed/status-200", 2), ("/do/status-200", 3)] {
        for _ in 0..2 {
            let call = world.call(path, "k1", "{}").method(Method::PUT);
            assert_eq!(call.send().await.status, 200);
        }
        assert_eq!(world.app.executions(), executions);
    }
}

async fn safe_methods_pass_even_with_a_key(door: Door) {
    let world = World::new(door).await;
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE] {
        for _ in 0..2 {
            let call = world
                .call("/do/status-200", "k1", "")
                .method(method.clone());
            let answer = call.send().await;
            assert_eq!(answer.status, 200, "{method}");
            assert!(answer.header("idempotency-key-expires").is_none());
        }
    }
    assert_eq!(world.app.executions(), 8);
    assert!(world.records().await.is_empty());
}

async fn a_missing_key_is_refused_where_required(door: Door) {
    let world = World::new(door).await;
    let answer = world.post("/do/status-201", "", "{}").await;
    answer.refuses(400, "idempotency_key_missing");
    assert_eq!(world.app.executions(), 0);
}

async fn without_a_key_optional_passes_unguarded(door: Door) {
    let world = World::new(door).await;
    for _ in 0..2 {
        assert_eq!(
            world.post("/optional/status-201", "", "{}").await.status,
            201
        );
    }
    assert_eq!(world.app.executions(), 2);
    assert!(world.records().await.is_empty());
    for _ in 0..2 {
        world.post("/optional/status-201", "k1", "{}").await;
    }
    assert_eq!(world.app.executions(), 3);
}

async fn ignored_passes_even_with_a_key(door: Door) {
    let world = World::new(door).await;
    for _ in 0..2 {
        assert_eq!(
            world.post("/ignored/status-201", "k1", "{}").await.status,
            201
        );
    }
    assert_eq!(world.app.executions(), 2);
    assert!(world.records().await.is_empty());
}

async fn an_unnamed_route_is_known_by_its_exact_path(door: Door) {
    let world = World::new(door).await;
    for path in ["/unnamed/status-200", "/unnamed/status-201"] {
        world.post(path, "k1", "{}").await;
    }
    assert_eq!(world.app.executions(), 2);
    let mut operations: Vec<_> = world
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

/// Sends raw bytes, and reads until the connection ends or an answer's head is there.
async fn raw(world: &World, bytes: &str) -> String {
    let mut stream = TcpStream::connect(world.address).await.unwrap();
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

async fn a_bad_key_is_refused_before_the_body_is_asked_for(door: Door) {
    let world = World::new(door).await;
    let head = "POST /do/status-201 HTTP/1.1\r\nHost: x\r\nX-Account: acme\r\nContent-Length: 2\r\nExpect: 100-continue\r\n";
    let answer = raw(&world, &format!("{head}Idempotency-Key: \"\"\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let answer = raw(&world, &format!("{head}Idempotency-Key: good\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 100"), "{answer}");
    assert_eq!(world.app.executions(), 0);
}

async fn an_incomplete_body_reserves_nothing(door: Door) {
    let world = World::new(door).await;
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    let request = "POST /do/status-201 HTTP/1.1\r\nHost: x\r\nX-Account: acme\r\nIdempotency-Key: k1\r\nContent-Length: 10\r\n\r\n{\"a\"";
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    // Whatever is answered, the connection ends.
    let _ = stream.read_to_end(&mut rest).await;
    assert!(world.records().await.is_empty());
    let answer = world.post("/do/status-201", "k1", "{}").await;
    assert_eq!(answer.status, 201);
    assert_eq!(world.app.executions(), 1);
}

async fn a_body_over_the_limit_is_refused(door: Door) {
    let world = World::with(door, |layer| layer.defaults(|route| route.max_request(100))).await;
    let body = format!("\"{}\"", "x".repeat(99));
    let answer = world.post("/do/status-201", "k1", &body).await;
    answer.refuses(413, "request_too_large");
    assert!(world.records().await.is_empty());
    let answer = world.post("/do/status-201", "k1", &body[..100]).await;
    assert_eq!(answer.status, 201);
}

async fn a_body_without_a_length_is_bounded_too(door: Door) {
    let world = World::with(door, |layer| layer.defaults(|route| route.max_request(100))).await;
    let head = "POST /do/status-201 HTTP/1.1\r\nHost: x\r\nX-Account: acme\r\nIdempotency-Key: k1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("3c\r\n{}\r\n", " ".repeat(60));
    let answer = raw(&world, &format!("{head}{chunk}{chunk}0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(world.records().await.is_empty());
    assert_eq!(world.app.executions(), 0);
    let answer = raw(&world, &format!("{head}{chunk}0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
}

async fn without_a_tenant_nothing_happens(door: Door) {
    let world = World::new(door).await;
    let answer = crate::world::Call::to(world.address, Method::POST, "/do/status-201")
        .header("idempotency-key", "k1")
        .send()
        .await;
    answer.refuses(403, "tenant_unresolved");
    assert_eq!(world.app.executions(), 0);
}

async fn tenants_do_not_meet(door: Door) {
    let world = World::new(door).await;
    // The second time it is in the process's own memory, too.
    for is_replay in [false, true] {
        let first = world.post("/do/status-201", "k1", "{}").await;
        assert_eq!(first.status, 201);
        assert_eq!(first.is_replay(), is_replay);
    }
    for body in ["{}", r#"{"other":1}"#] {
        // The first of them is the same request in all but the tenant.
        let answer = crate::world::Call::to(world.address, Method::POST, "/do/status-201")
            .header("x-account", format!("other{}", body.len()))
            .header("idempotency-key", "k1")
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await;
        assert_eq!(answer.status, 201);
        assert!(!answer.is_replay());
    }
    assert_eq!(world.app.executions(), 3);
    let records = world.records().await;
    assert!(
        records
            .iter()
            .all(|record| record.state.status() == Status::Completed)
    );
}
