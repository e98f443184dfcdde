//! What is remembered of a response.

use crate::world::{Door, World};

crate::through_both_doors!(
    headers_that_describe_the_answer_come_back,
    headers_that_a_route_lists_come_back,
    values_that_are_not_text_come_back,
    no_body_stays_no_body,
    the_largest_body_that_is_stored,
    a_streamed_answer_over_the_cap_flows_through,
);

async fn headers_that_describe_the_answer_come_back(door: Door) {
    let world = World::new(door).await;
    let first = world.post("/do/headers", "k1", "{}").await;
    assert_eq!(first.header("set-cookie"), Some("session=1"));
    assert_eq!(first.header("x-unlisted"), Some("8"));
    for _ in 0..2 {
        let again = world.post("/do/headers", "k1", "{}").await;
        assert!(again.is_replay());
        for name in [
            "content-type",
            "location",
            "etag",
            "link",
            "content-language",
        ] {
            let lines = |answer: &crate::world::Answer| -> Vec<_> {
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

async fn headers_that_a_route_lists_come_back(door: Door) {
    let world = World::with(door, |layer| {
        layer.defaults(|route| Ok(route.store_header("X-Request-Cost")?.store_set_cookie()))
    })
    .await;
    world.post("/do/headers", "k1", "{}").await;
    let again = world.post("/do/headers", "k1", "{}").await;
    assert_eq!(again.header("x-request-cost"), Some("7"));
    assert_eq!(again.header("set-cookie"), Some("session=1"));
    assert_eq!(again.header("x-unlisted"), None);
}

async fn values_that_are_not_text_come_back(door: Door) {
    let world = World::with(door, |layer| {
        layer.defaults(|route| route.store_header("etag-like"))
    })
    .await;
    world.post("/do/headers", "k1", "{}").await;
    for _ in 0..2 {
        let again = world.post("/do/headers", "k1", "{}").await;
        assert_eq!(again.headers["etag-like"].as_bytes(), b"\xff\xfe");
    }
}

async fn no_body_stays_no_body(door: Door) {
    let world = World::new(door).await;
    for _ in 0..2 {
        let answer = world.post("/do/empty", "k1", "{}").await;
        assert_eq!((answer.status.as_u16(), answer.body.len()), (204, 0));
        assert_eq!(answer.header("content-length"), None);
    }
}

async fn the_largest_body_that_is_stored(door: Door) {
    let world = World::new(door).await;
    for what in ["sized-1048576", "chunked-1048576"] {
        let path = format!("/do/{what}");
        let first = world.post(&path, what, "{}").await;
        let again = world.post(&path, what, "{}").await;
        assert_eq!((first.body.len(), again.is_replay()), (1_048_576, true));
        assert_eq!(first.body, again.body);
    }
}

async fn a_streamed_answer_over_the_cap_flows_through(door: Door) {
    let world = World::new(door).await;
    let first = world.post("/do/chunked-3000000", "k1", "{}").await;
    assert_eq!((first.status.as_u16(), first.body.len()), (201, 3_000_000));
    let again = world.post("/do/chunked-3000000", "k1", "{}").await;
    again.refuses(410, "idempotency_response_not_stored");
    assert_eq!(world.app.executions(), 1);
}
