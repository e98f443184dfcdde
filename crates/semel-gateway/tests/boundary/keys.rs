//! The key's header, by dialect.

use semel_core::key::Dialect;

use crate::world::{Door, World, stripe};

crate::through_both_doors!(
    quoting_does_not_matter_when_lenient,
    quoting_matters_when_strict,
    quotes_are_part_of_the_key_for_stripe,
    what_is_no_key_is_refused,
    the_length_of_a_key_is_bounded,
    the_key_is_echoed_as_it_came,
    another_header_may_hold_the_key,
    a_key_in_a_trailer_is_not_read,
    stripe_keys_reach_across_endpoints,
);

async fn quoting_does_not_matter_when_lenient(door: Door) {
    let world = World::new(door).await;
    for key in ["\"abc\"", "abc", "\"abc\";p=1", " abc "] {
        assert_eq!(
            world.post("/do/status-201", key, "{}").await.status,
            201,
            "{key}"
        );
    }
    assert_eq!(world.app.executions(), 1);
}

async fn quoting_matters_when_strict(door: Door) {
    let strict = Dialect::Ietf { lenient: false };
    let world = World::with(door, |layer| layer.dialect(strict)).await;
    assert_eq!(
        world.post("/do/status-201", "\"abc\"", "{}").await.status,
        201
    );
    let refused = world.post("/do/status-201", "abc", "{}").await;
    refused.refuses(400, "idempotency_key_malformed");
}

async fn quotes_are_part_of_the_key_for_stripe(door: Door) {
    let world = World::with(door, stripe).await;
    for key in ["\"abc\"", "abc"] {
        assert_eq!(world.post("/do/status-201", key, "{}").await.status, 201);
    }
    assert_eq!(world.app.executions(), 2);
}

async fn what_is_no_key_is_refused(door: Door) {
    for (dialect, malformed) in [
        (
            Dialect::Ietf { lenient: true },
            &[
                &b"\"\""[..],
                b" ",
                b"\"  \"",
                b"\"a\\x\"",
                b"caf\xc3\xa9",
                b"\"a\"b",
                b":YQ==:",
                b"a\tb",
            ][..],
        ),
        (
            Dialect::Ietf { lenient: false },
            &[b"42", b"?1", b"token", b"\"open"],
        ),
        (Dialect::Stripe, &[b" ", b"caf\xc3\xa9", b"a,b", b"a\tb"]),
    ] {
        let world = World::with(door, |layer| layer.dialect(dialect)).await;
        for key in malformed {
            let answer = world
                .call("/do/status-201", "", "{}")
                .header("idempotency-key", key)
                .send()
                .await;
            match dialect {
                Dialect::Stripe => answer.refuses_like_stripe(
                    400,
                    "invalid_request_error",
                    "idempotency_key_malformed",
                ),
                Dialect::Ietf { .. } => answer.refuses(400, "idempotency_key_malformed"),
            }
        }
        // Two lines, even identical.
        let answer = world
            .call("/do/status-201", "k1", "{}")
            .header("idempotency-key", "k1")
            .send()
            .await;
        assert_eq!(answer.status, 400);
        assert_eq!(world.app.executions(), 0);
        assert!(world.records().await.is_empty());
    }
}

async fn the_length_of_a_key_is_bounded(door: Door) {
    let world = World::with(door, |layer| layer.defaults(|route| route.min_length(16))).await;
    for (length, status) in [(15, 400), (16, 201), (255, 201), (256, 400)] {
        let answer = world
            .post("/do/status-201", &"k".repeat(length), "{}")
            .await;
        assert_eq!(answer.status, status, "{length}");
    }
}

async fn the_key_is_echoed_as_it_came(door: Door) {
    let world = World::new(door).await;
    for (key, path) in [
        ("\"abc\"", "/do/status-201"),
        ("abc", "/do/status-201"),
        ("abc", "/do/status-402"),
    ] {
        let answer = world.post(path, key, "{}").await;
        assert_eq!(answer.header("idempotency-key"), Some(key));
    }
}

async fn another_header_may_hold_the_key(door: Door) {
    let name = http::HeaderName::from_static("paypal-request-id");
    let world = World::with(door, |layer| layer.header(name)).await;
    world
        .post("/do/status-201", "k1", "{}")
        .await
        .refuses(400, "idempotency_key_missing");
    for replay in [false, true] {
        let call = world.call("/do/status-201", "", "{}");
        let answer = call.header("paypal-request-id", "k1").send().await;
        assert_eq!(answer.is_replay(), replay);
        assert_eq!(answer.header("paypal-request-id"), Some("k1"));
    }
}

async fn a_key_in_a_trailer_is_not_read(door: Door) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let world = World::new(door).await;
    let mut stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
    let request = "POST /do/status-201 HTTP/1.1\r\nHost: x\r\nX-Account: acme\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: Idempotency-Key\r\n\r\n2\r\n{}\r\n0\r\nIdempotency-Key: k1\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("idempotency_key_missing"), "{answer}");
}

async fn stripe_keys_reach_across_endpoints(door: Door) {
    for (dialect, status) in [
        (Dialect::Stripe, 400),
        (Dialect::Ietf { lenient: true }, 201),
    ] {
        let world = World::with(door, |layer| layer.dialect(dialect)).await;
        assert_eq!(world.post("/do/status-201", "k1", "{}").await.status, 201);
        let other = world.post("/optional/status-201", "k1", "{}").await;
        assert_eq!(other.status, status, "{dialect:?}");
    }
}
