//! The rules of a route for keys, and keys that are stored as hashes.

use http::Method;
use semel_core::key::{Format, KeyHasher};
use semel_http::WeakKeys;

use crate::boundary::fixture::{Call, EntryPoint, Fixture, stripe};

crate::boundary::through_both_entry_points!(
    a_key_of_another_format_is_refused,
    weak_keys_are_served_unless_the_route_refuses_them,
    a_hashed_key_never_reaches_the_store,
);

const UUID: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";

async fn a_key_of_another_format_is_refused(entry: EntryPoint) {
    for (format, accepted, refused) in [
        (Format::Uuid, UUID, "abcdefghijklmnop"),
        (Format::Token, "abcdefghijklmnop", "1234567890123456"),
    ] {
        let change = |route: semel_http::Route| route.key_format(format);
        let fixture = Fixture::with(entry, |layer| layer.defaults(change)).await;
        let answer = fixture.post("/do/status-201", refused, "{}").await;
        answer.refuses(400, "idempotency_key_malformed");
        let detail = answer.json()["detail"].to_string();
        assert!(
            detail.contains("UUID") && !detail.contains(refused),
            "{detail}"
        );
        assert!(fixture.records().await.is_empty());
        assert_eq!(
            fixture.post("/do/status-201", accepted, "{}").await.status,
            201
        );
        let fixture = Fixture::with(entry, |layer| stripe(layer).defaults(change)).await;
        let answer = fixture.post("/do/status-201", refused, "{}").await;
        answer.refuses_like_stripe(400, "invalid_request_error", "idempotency_key_malformed");
        assert_eq!(
            fixture.post("/do/status-201", accepted, "{}").await.status,
            201
        );
        assert_eq!(fixture.app.executions(), 1);
    }
}

async fn weak_keys_are_served_unless_the_route_refuses_them(entry: EntryPoint) {
    let weak = [
        "\"alice@example.com\"",
        "4111111111111111",
        "1763430000",
        "7",
    ];
    let fixture = Fixture::new(entry).await;
    for key in weak {
        assert_eq!(fixture.post("/do/status-201", key, "{}").await.status, 201);
    }
    assert_eq!(fixture.app.executions(), weak.len());
    let refuse = |route: semel_http::Route| route.weak_keys(WeakKeys::Refuse);
    let fixture = Fixture::with(entry, |layer| layer.defaults(refuse)).await;
    for key in weak {
        let answer = fixture.post("/do/status-201", key, "{}").await;
        answer.refuses(400, "idempotency_key_malformed");
        let detail = answer.json()["detail"].to_string();
        assert!(
            detail.contains("looks like") && !detail.contains(key),
            "{detail}"
        );
    }
    assert_eq!(fixture.post("/do/status-201", UUID, "{}").await.status, 201);
    assert_eq!(fixture.app.executions(), 1);
}

async fn a_hashed_key_never_reaches_the_store(entry: EntryPoint) {
    let hasher = KeyHasher::new(b"0123456789abcdef0123456789abcdef").unwrap();
    let hash = |key: &str| hasher.hash(&semel_core::Key::new(key).unwrap());
    let fixture = Fixture::with(entry, |layer| layer.hash_keys(hasher.clone())).await;
    let first = fixture.post("/do/status-201", UUID, "{}").await;
    assert_eq!(first.status, 201);
    // As received, to the client and to the application.
    assert_eq!(first.header("idempotency-key"), Some(UUID));
    assert_eq!(fixture.app.seen()[0].headers["idempotency-key"], UUID);

    let records = fixture.records().await;
    assert_eq!(*records[0].identity.key(), hash(UUID));
    assert!(!format!("{records:?}").contains(UUID));
    for _ in 0..2 {
        let again = fixture.post("/do/status-201", UUID, "{}").await;
        assert!(again.is_replay() && again.body == first.body);
        assert_eq!(again.header("idempotency-key"), Some(UUID));
    }
    let misuse = fixture.post("/do/status-201", UUID, "[]").await;
    misuse.refuses(422, "idempotency_key_reused");
    // The hash of a key is another key.
    let by_hash = fixture
        .post("/do/status-201", hash(UUID).as_str(), "{}")
        .await;
    assert!(!by_hash.is_replay());
    assert_eq!(fixture.app.executions(), 2);
    if entry == EntryPoint::Gateway {
        let path = format!("/.semel/operations/{}", records[0].id);
        let status = Call::to(fixture.address, Method::GET, &path).header("x-account", "acme");
        assert_eq!(status.send().await.json()["status"], "completed");
    }
}
