//! The key's header, by dialect.

use semel_core::key::Dialect;

use crate::boundary::fixture::{EntryPoint, Fixture, stripe};

crate::boundary::through_both_entry_points!(
    quoting_does_not_matter_when_lenient,
    quoting_matters_when_strict,
    quotes_are_part_of_the_key_for_stripe,
    malformed_keys_are_refused,
    the_length_of_a_key_is_bounded,
    the_key_is_echoed_unchanged,
    another_header_may_hold_the_key,
    a_key_in_a_trailer_is_not_read,
    stripe_keys_are_scoped_to_the_tenant,
);

async fn quoting_does_not_matter_when_lenient(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for key in ["\"abc\"", "abc", "\"abc\";p=1", " abc "] {
        assert_eq!(
            fixture.post("/do/status-201", key, "{}").await.status,
            201,
            "{key}"
        );
    }
    assert_eq!(fixture.app.executions(), 1);
}

async fn quoting_matters_when_strict(entry: EntryPoint) {
    let strict = Dialect::Ietf { lenient: false };
    let fixture = Fixture::with(entry, |layer| layer.dialect(strict)).await;
    assert_eq!(
        fixture.post("/do/status-201", "\"abc\"", "{}").await.status,
        201
    );
    let refused = fixture.post("/do/status-201", "abc", "{}").await;
    refused.refuses(400, "idempotency_key_malformed");
}

async fn quotes_are_part_of_the_key_for_stripe(entry: EntryPoint) {
    let fixture = Fixture::with(entry, stripe).await;
    for key in ["\"abc\"", "abc"] {
        assert_eq!(fixture.post("/do/status-201", key, "{}").await.status, 201);
    }
    assert_eq!(fixture.app.executions(), 2);
}

async fn malformed_keys_are_refused(entry: EntryPoint) {
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
        let fixture = Fixture::with(entry, |layer| layer.dialect(dialect)).await;
        for key in malformed {
            let answer = fixture
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
        let answer = fixture
            .call("/do/status-201", "k1", "{}")
            .header("idempotency-key", "k1")
            .send()
            .await;
        assert_eq!(answer.status, 400);
        assert_eq!(fixture.app.executions(), 0);
        assert!(fixture.records().await.is_empty());
    }
}

async fn the_length_of_a_key_is_bounded(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| layer.defaults(|route| route.min_length(16))).await;
    for (length, status) in [(15, 400), (16, 201), (255, 201), (256, 400)] {
        let answer = fixture
            .post("/do/status-201", &"k".repeat(length), "{}")
            .await;
        assert_eq!(answer.status, status, "{length}");
    }
}

async fn the_key_is_echoed_unchanged(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for (key, path) in [
        ("\"abc\"", "/do/status-201"),
        ("abc", "/do/status-201"),
        ("abc", "/do/status-402"),
    ] {
        let answer = fixture.post(path, key, "{}").await;
        assert_eq!(answer.header("idempotency-key"), Some(key));
    }
}

async fn another_header_may_hold_the_key(entry: EntryPoint) {
    let name = http::HeaderName::from_static("paypal-request-id");
    let fixture = Fixture::with(entry, |layer| layer.header(name)).await;
    fixture
        .post("/do/status-201", "k1", "{}")
        .await
        .refuses(400, "idempotency_key_missing");
    for replay in [false, true] {
        let call = fixture.call("/do/status-201", "", "{}");
        let answer = call.header("paypal-request-id", "k1").send().await;
        assert_eq!(answer.is_replay(), replay);
        assert_eq!(answer.header("paypal-request-id"), Some("k1"));
    }
}

async fn a_key_in_a_trailer_is_not_read(entry: EntryPoint) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let fixture = Fixture::new(entry).await;
    let mut stream = tokio::net::TcpStream::connect(fixture.address)
        .await
        .unwrap();
    let request = "POST /do/status-201 HTTP/1.1\r\nHost: x\r\nX-Account: acme\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: Idempotency-Key\r\n\r\n2\r\n{}\r\n0\r\nIdempotency-Key: k1\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("idempotency_key_missing"), "{answer}");
}

async fn stripe_keys_are_scoped_to_the_tenant(entry: EntryPoint) {
    for (dialect, status) in [
        (Dialect::Stripe, 400),
        (Dialect::Ietf { lenient: true }, 201),
    ] {
        let fixture = Fixture::with(entry, |layer| layer.dialect(dialect)).await;
        assert_eq!(fixture.post("/do/status-201", "k1", "{}").await.status, 201);
        let other = fixture.post("/optional/status-201", "k1", "{}").await;
        assert_eq!(other.status, status, "{dialect:?}");
    }
}
