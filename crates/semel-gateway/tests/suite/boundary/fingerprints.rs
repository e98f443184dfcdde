//! Which requests count as equal.

use std::io::Write as _;

use semel_core::fingerprint::{Options, Precision};

use crate::boundary::fixture::{EntryPoint, Fixture, stripe};

crate::boundary::through_both_entry_points!(
    equal_requests_replay_and_different_ones_are_refused,
    a_compressed_retry_is_the_same,
    the_query_counts,
    semantic_headers_count_where_listed,
    listed_fields_enums_and_timestamps_count_by_their_rules,
    the_account_counts_in_the_stripe_dialect,
    credentials_do_not_count,
    the_original_bytes_reach_the_application,
);

async fn equal_requests_replay_and_different_ones_are_refused(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    fixture
        .post("/do/status-201", "k1", r#"{"a":1,"b":100}"#)
        .await;
    for (body, status) in [
        (r#"{ "b": 1e2, "a": 1.0 }"#, 201),
        (r#"{"a":1,"b":101}"#, 422),
        (r#"{"a":1,"b":100,"c":null}"#, 422),
        ("", 422),
        ("null", 422),
    ] {
        let answer = fixture.post("/do/status-201", "k1", body).await;
        assert_eq!(answer.status, status, "{body}");
    }
    // Two amounts that are equal as doubles.
    fixture
        .post("/do/status-201", "k2", "9007199254740993")
        .await;
    let answer = fixture
        .post("/do/status-201", "k2", "9007199254740992")
        .await;
    assert_eq!(answer.status, 422);
    assert_eq!(fixture.app.executions(), 2);
}

async fn a_compressed_retry_is_the_same(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let body = r#"{"amount":100,"currency":"EUR"}"#;
    let gzip = |body: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(body.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    fixture.post("/do/status-201", "k1", body).await;
    for (body, status) in [(body, 201), (r#"{"amount":101,"currency":"EUR"}"#, 422)] {
        let call = fixture.call("/do/status-201", "k1", "");
        let call = call.header("content-encoding", "gzip").body(gzip(body));
        assert_eq!(call.send().await.status, status);
    }
    assert_eq!(fixture.app.executions(), 1);
}

async fn the_query_counts(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for (path, status) in [
        ("/do/status-201?dry=1", 201),
        ("/do/status-201?dry=1", 201),
        ("/do/status-201?dry=0", 422),
        ("/do/status-201", 422),
    ] {
        assert_eq!(
            fixture.post(path, "k1", "{}").await.status,
            status,
            "{path}"
        );
    }
}

async fn semantic_headers_count_where_listed(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| {
            route.fingerprint(Options {
                headers: vec!["API-Version".into()],
                ..Options::default()
            })
        })
    })
    .await;
    for (version, status) in [("1", 201), ("1", 201), ("2", 422)] {
        let call = fixture.call("/do/status-201", "k1", "{}");
        let answer = call.header("api-version", version).send().await;
        assert_eq!(answer.status, status);
    }
}

async fn listed_fields_enums_and_timestamps_count_by_their_rules(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| {
            route.fingerprint(Options {
                fields: ["/amount", "/currency", "/due"].map(Into::into).to_vec(),
                enums: vec!["/currency".into()],
                timestamps: vec![("/due".into(), Precision::Second)],
                ..Options::default()
            })
        })
    })
    .await;
    let first = r#"{"amount":1,"currency":"EUR","due":"2026-01-01T00:00:00Z"}"#;
    fixture.post("/do/status-201", "k1", first).await;
    for (body, status) in [
        (
            r#"{"amount":1,"currency":"eur","due":"2026-01-01T01:00:00.5+01:00","note":"x"}"#,
            201,
        ),
        (
            r#"{"amount":2,"currency":"EUR","due":"2026-01-01T00:00:00Z"}"#,
            422,
        ),
        (
            r#"{"amount":1,"currency":"USD","due":"2026-01-01T00:00:00Z"}"#,
            422,
        ),
        (
            r#"{"amount":1,"currency":"EUR","due":"2026-01-01T00:00:01Z"}"#,
            422,
        ),
    ] {
        let answer = fixture.post("/do/status-201", "k1", body).await;
        assert_eq!(answer.status, status, "{body}");
    }
    assert_eq!(fixture.app.executions(), 1);
}

/// In Stripe's API one credential acts for many accounts.
async fn the_account_counts_in_the_stripe_dialect(entry: EntryPoint) {
    for header in ["stripe-account", "stripe-context"] {
        let fixture = Fixture::with(entry, stripe).await;
        for (account, status) in [("acct_1", 201), ("acct_1", 201), ("acct_2", 400)] {
            let call = fixture.call("/do/status-201", "k1", "{}");
            let answer = call.header(header, account).send().await;
            assert_eq!(answer.status, status, "{header}");
        }
        assert_eq!(fixture.post("/do/status-201", "k1", "{}").await.status, 400);
        assert_eq!(fixture.app.executions(), 1);
    }
    let fixture = Fixture::new(entry).await;
    for account in ["acct_1", "acct_2"] {
        let call = fixture.call("/do/status-201", "k1", "{}");
        let answer = call.header("stripe-account", account).send().await;
        assert_eq!(answer.status, 201, "another dialect has its own headers");
    }
}

async fn credentials_do_not_count(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for token in ["one", "two"] {
        let call = fixture.call("/do/status-201", "k1", "{}");
        let answer = call.header("authorization", token).send().await;
        assert_eq!(answer.status, 201);
    }
    assert_eq!(fixture.app.executions(), 1);
}

async fn the_original_bytes_reach_the_application(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let body = "{ \"z\":1.50,\n\"a\" : \"\\u00e9\" }";
    let answer = fixture.post("/do/echo", "k1", body).await;
    assert_eq!(answer.text(), body);
    let seen = &fixture.app.seen()[0];
    assert_eq!(
        (seen.what.as_str(), &seen.body[..]),
        ("echo", body.as_bytes())
    );
    assert_eq!(seen.headers["idempotency-key"], "k1");
}
