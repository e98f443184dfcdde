//! Which parts of a response are stored.

use crate::boundary::fixture::{EntryPoint, Fixture};

crate::boundary::through_both_entry_points!(
    representation_headers_are_replayed,
    listed_headers_are_replayed,
    non_text_header_values_are_replayed,
    an_empty_body_is_replayed_empty,
    a_body_at_the_cap_is_stored,
    a_streamed_body_over_the_cap_is_not_stored,
);

async fn representation_headers_are_replayed(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let first = fixture.post("/do/headers", "k1", "{}").await;
    assert_eq!(first.header("set-cookie"), Some("session=1"));
    assert_eq!(first.header("x-unlisted"), Some("8"));
    for _ in 0..2 {
        let again = fixture.post("/do/headers", "k1", "{}").await;
        assert!(again.is_replay());
        for name in [
            "content-type",
            "location",
            "etag",
            "link",
            "content-language",
        ] {
            let lines = |answer: &crate::boundary::fixture::Answer| -> Vec<_> {
                answer.headers.get_all(name).iter().cloned().collect()
            };
            assert_eq!(lines(&again), lines(&first), "{name}");
        }
        assert_eq!(again.headers.get_all("link").iter().count(), 2);
        let length = again.body.len().to_string();
        assert_eq!(again.header("content-length"), Some(length.as_str()));
        for name in [
            "set-cookie",
            "server",
            "access-control-allow-origin",
            "ratelimit-remaining",
            "x-request-cost",
            "x-unlisted",
        ] {
            assert_eq!(again.header(name), None, "{name}");
        }
    }
}

async fn listed_headers_are_replayed(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| Ok(route.store_header("X-Request-Cost")?.store_set_cookie()))
    })
    .await;
    fixture.post("/do/headers", "k1", "{}").await;
    let again = fixture.post("/do/headers", "k1", "{}").await;
    assert_eq!(again.header("x-request-cost"), Some("7"));
    assert_eq!(again.header("set-cookie"), Some("session=1"));
    assert_eq!(again.header("x-unlisted"), None);
}

async fn non_text_header_values_are_replayed(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| route.store_header("etag-like"))
    })
    .await;
    fixture.post("/do/headers", "k1", "{}").await;
    for _ in 0..2 {
        let again = fixture.post("/do/headers", "k1", "{}").await;
        assert_eq!(again.headers["etag-like"].as_bytes(), b"\xff\xfe");
    }
}

async fn an_empty_body_is_replayed_empty(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for _ in 0..2 {
        let answer = fixture.post("/do/empty", "k1", "{}").await;
        assert_eq!((answer.status.as_u16(), answer.body.len()), (204, 0));
        assert_eq!(answer.header("content-length"), None);
    }
}

async fn a_body_at_the_cap_is_stored(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for what in ["sized-1048576", "chunked-1048576"] {
        let path = format!("/do/{what}");
        let first = fixture.post(&path, what, "{}").await;
        let again = fixture.post(&path, what, "{}").await;
        assert_eq!((first.body.len(), again.is_replay()), (1_048_576, true));
        assert_eq!(first.body, again.body);
    }
}

async fn a_streamed_body_over_the_cap_is_not_stored(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let first = fixture.post("/do/chunked-3000000", "k1", "{}").await;
    assert_eq!((first.status.as_u16(), first.body.len()), (201, 3_000_000));
    let again = fixture.post("/do/chunked-3000000", "k1", "{}").await;
    again.refuses(410, "idempotency_response_not_stored");
    assert_eq!(fixture.app.executions(), 1);
}
