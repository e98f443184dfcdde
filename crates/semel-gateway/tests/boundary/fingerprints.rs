//! What makes two requests the same, as seen from outside.

use std::io::Write as _;

use semel_core::fingerprint::Options;

use crate::world::{Door, World, stripe};

crate::through_both_doors!(
    what_is_equal_is_replayed_and_what_differs_is_not,
    a_compressed_retry_is_the_same,
    the_query_counts,
    semantic_headers_count_where_listed,
    the_account_counts_in_the_stripe_dialect,
    credentials_do_not_count,
    the_original_bytes_reach_the_application,
);

async fn what_is_equal_is_replayed_and_what_differs_is_not(door: Door) {
    let world = World::new(door).await;
    world
        .post("/do/status-201", "k1", r#"{"a":1,"b":100}"#)
        .await;
    for (body, status) in [
        (r#"{ "b": 1e2, "a": 1.0 }"#, 201),
        (r#"{"a":1,"b":101}"#, 422),
        (r#"{"a":1,"b":100,"c":null}"#, 422),
        ("", 422),
        ("null", 422),
    ] {
        let answer = world.post("/do/status-201", "k1", body).await;
        assert_eq!(answer.status, status, "{body}");
    }
    // Two amounts that a double cannot tell apart.
    world.post("/do/status-201", "k2", "9007199254740993").await;
    let answer = world.post("/do/status-201", "k2", "9007199254740992").await;
    assert_eq!(answer.status, 422);
    assert_eq!(world.app.executions(), 2);
}

async fn a_compressed_retry_is_the_same(door: Door) {
    let world = World::new(door).await;
    let body = r#"{"amount":100,"currency":"EUR"}"#;
    let gzip = |body: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(body.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    world.post("/do/status-201", "k1", body).await;
    for (body, status) in [(body, 201), (r#"{"amount":101,"currency":"EUR"}"#, 422)] {
        let call = world.call("/do/status-201", "k1", "");
        let call = call.header("content-encoding", "gzip").body(gzip(body));
        assert_eq!(call.send().await.status, status);
    }
    assert_eq!(world.app.executions(), 1);
}

async fn the_query_counts(door: Door) {
    let world = World::new(door).await;
    for (path, status) in [
        ("/do/status-201?dry=1", 201),
        ("/do/status-201?dry=1", 201),
        ("/do/status-201?dry=0", 422),
        ("/do/status-201", 422),
    ] {
        assert_eq!(world.post(path, "k1", "{}").await.status, status, "{path}");
    }
}

async fn semantic_headers_count_where_listed(door: Door) {
    let world = World::with(door, |layer| {
        layer.defaults(|route| {
            route.fingerprint(Options {
                headers: vec!["API-Version".into()],
                ..Options::default()
            })
        })
    })
    .await;
    for (version, status) in [("1", 201), ("1", 201), ("2", 422)] {
        let call = world.call("/do/status-201", "k1", "{}");
        let answer = call.header("api-version", version).send().await;
        assert_eq!(answer.status, status);
    }
}

/// One credential acts for many accounts there.
async fn the_account_counts_in_the_stripe_dialect(door: Door) {
    for header in ["stripe-account", "stripe-context"] {
        let world = World::with(door, stripe).await;
        for (account, status) in [("acct_1", 201), ("acct_1", 201), ("acct_2", 400)] {
            let call = world.call("/do/status-201", "k1", "{}");
            let answer = call.header(header, account).send().await;
            assert_eq!(answer.status, status, "{header}");
        }
        assert_eq!(world.post("/do/status-201", "k1", "{}").await.status, 400);
        assert_eq!(world.app.executions(), 1);
    }
    let world = World::new(door).await;
    for account in ["acct_1", "acct_2"] {
        let call = world.call("/do/status-201", "k1", "{}");
        let answer = call.header("stripe-account", account).send().await;
        assert_eq!(answer.status, 201, "another dialect has its own headers");
    }
}

async fn credentials_do_not_count(door: Door) {
    let world = World::new(door).await;
    for token in ["one", "two"] {
        let call = world.call("/do/status-201", "k1", "{}");
        let answer = call.header("authorization", token).send().await;
        assert_eq!(answer.status, 201);
    }
    assert_eq!(world.app.executions(), 1);
}

async fn the_original_bytes_reach_the_application(door: Door) {
    let world = World::new(door).await;
    let body = "{ \"z\":1.50,\n\"a\" : \"\\u00e9\" }";
    let answer = world.post("/do/echo", "k1", body).await;
    assert_eq!(answer.text(), body);
    let seen = &world.app.seen()[0];
    assert_eq!(
        (seen.what.as_str(), &seen.body[..]),
        ("echo", body.as_bytes())
    );
    assert_eq!(seen.headers["idempotency-key"], "k1");
}
