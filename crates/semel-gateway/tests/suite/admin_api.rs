//! The admin API: reads, operator actions, and refusals.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyDataStream, BodyExt as _};
use semel_core::outbox::Event;
use semel_core::{
    Completion, Decision, Fence, Fingerprint, Held, Identity, Key, Memory, OperationId, Policy,
    Record, Reserve, Response, Store as _, Verdict,
};
use semel_gateway::activity::Counts;
use semel_gateway::admin::{Access, Api};
use semel_gateway::observed::{Events, Observed};
use semel_gateway::server::Peer;
use semel_gateway::{StoreWatch, admin, telemetry};
use semel_testkit::faulty::{Fault, Verb};
use semel_testkit::{Faulty, ManualClock};
use semel_worker::{Lookup, LookupResult, Reconcile, Reconcilers, Schedule};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::support::unrouted;

type Store = Observed<Faulty<Memory>>;

/// A provider whose answer depends on the record's key.
struct Provider;

impl Reconcile for Provider {
    async fn look_up(&self, operation: &Record) -> Lookup {
        match operation.identity.key().as_str() {
            "paid" => LookupResult::Completed(paid()).seen("200 paid"),
            "absent" => LookupResult::Absent("not_there".into()).seen("404"),
            _ => LookupResult::unclear("no_answer").seen("timed out"),
        }
    }
}

struct Fixture {
    store: Store,
    faulty: Faulty<Memory>,
    router: axum::Router,
}

impl Fixture {
    fn new(token: Option<&str>) -> Self {
        let events = Events::default();
        let faulty = Faulty::new(Memory::new(Arc::new(ManualClock::default())));
        let store = Observed::new(
            faulty.clone(),
            events.clone(),
            Counts::default(),
            StoreWatch::default(),
        );
        let reconcilers = Reconcilers::new(store.clone())
            .poll_with("pay", Schedule::default(), Provider)
            .unwrap();
        let api = Api {
            store: store.clone(),
            reconcilers,
            events,
            key_hasher: None,
            counts: Counts::default(),
            layer: unrouted(store.clone()),
        };
        let recorder = telemetry::recorder().unwrap();
        let router = admin::router(
            token.map_or(Access::Loopback, |token| {
                Access::token(token.parse().unwrap())
            }),
            || async { Ok(Vec::new()) },
            recorder.handle(),
            api,
            faulty.inner().clone(),
        );
        Self {
            store,
            faulty,
            router,
        }
    }

    async fn grant(&self, operation: &str, key: &str) -> Fence {
        let request = Reserve {
            id: OperationId::generate(),
            identity: Identity::new("acme", operation, Key::new(key).unwrap()).unwrap(),
            fingerprints: Fingerprint::of(&1).unwrap().into(),
            owner: "host/1".into(),
            policy: Policy::default(),
        };
        match self.store.reserve(request).await.unwrap() {
            Decision::Execute(grant) => grant.fence,
            other => panic!("{other:?}"),
        }
    }

    async fn unknown(&self, operation: &str, key: &str) -> Fence {
        let fence = self.grant(operation, key).await;
        let held = self.store.mark_unknown(fence, "timeout".into(), None).await;
        assert_eq!(held.unwrap(), Held::Applied);
        fence
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, Value) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body =
            serde_json::from_slice(&body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&body)));
        (status, body)
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.send(request(Method::GET, path).body(Body::empty()).unwrap())
            .await
    }

    async fn post(&self, fence: Fence, verb: &str, body: &Value) -> (StatusCode, Value) {
        let path = format!("/api/v1/operations/{}/{verb}", fence.id);
        let request = request(Method::POST, &path).header("content-type", "application/json");
        self.send(request.body(Body::from(body.to_string())).unwrap())
            .await
    }

    async fn show(&self, fence: Fence) -> Value {
        let (status, shown) = self.get(&format!("/api/v1/operations/{}", fence.id)).await;
        assert_eq!(status, StatusCode::OK, "{shown}");
        shown
    }
}

fn request(method: Method, path: &str) -> http::request::Builder {
    let peer: SocketAddr = "127.0.0.1:5000".parse().unwrap();
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "127.0.0.1:8081")
        .extension(Peer::new(peer, false))
}

fn paid() -> Completion {
    Completion {
        response: Response {
            status: 201,
            headers: vec![("content-type".into(), Bytes::from_static(b"text/plain"))],
            body: Some(Bytes::from_static(b"paid")),
            schema_version: 3,
        },
        resource: None,
    }
}

#[tokio::test]
async fn records_are_listed_newest_first_in_pages_and_by_filter() {
    let fixture = Fixture::new(None);
    let mut fences = Vec::new();
    for number in 0..5 {
        fences.push(fixture.grant("pay", &format!("key-{number}")).await);
    }
    fixture.store.complete(fences[0], paid()).await.unwrap();
    let letter = fixture.unknown("refund", "lost").await;
    fixture
        .store
        .dead_letter(letter, "no_way".into())
        .await
        .unwrap();

    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/api/v1/operations?limit=4&cursor={cursor}");
        let (status, page) = fixture.get(&path).await;
        assert_eq!(status, StatusCode::OK);
        let ids = page["operations"].as_array().unwrap().iter();
        seen.extend(ids.map(|shown| shown["id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => break,
        }
    }
    let mut expected: Vec<_> = fences.iter().map(|fence| fence.id.to_string()).collect();
    expected.push(letter.id.to_string());
    expected.reverse();
    assert_eq!(seen, expected);

    for (filter, count) in [
        ("status=completed", 1),
        ("status=unknown", 1),
        ("dead_lettered=true", 1),
        ("dead_lettered=false", 5),
        ("operation=refund", 1),
        ("tenant=acme&key=key-3", 1),
        ("tenant=other", 0),
    ] {
        let (_, page) = fixture.get(&format!("/api/v1/operations?{filter}")).await;
        assert_eq!(
            page["operations"].as_array().unwrap().len(),
            count,
            "{filter}"
        );
    }
    for wrong in [
        "status=done",
        "limit=0",
        "limit=1001",
        "cursor=x",
        "dead_lettered=1",
        "colour=red",
    ] {
        let (status, problem) = fixture.get(&format!("/api/v1/operations?{wrong}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}");
        assert_eq!(problem["code"], "admin_query_invalid", "{wrong}");
    }
}

#[tokio::test]
async fn a_record_is_shown_with_its_history_and_its_body_only_with_reveal() {
    let fixture = Fixture::new(None);
    let fence = fixture.unknown("pay", "key").await;
    let verdict = semel_core::Resolve {
        fence,
        verdict: Verdict::Completed(paid()),
        by: "webhook:psp".into(),
        evidence: Some(Bytes::from_static(b"evt_1 \x1b[2J\xff")),
    };
    fixture.store.resolve(verdict).await.unwrap();
    let shown = fixture.show(fence).await;
    assert_eq!(shown["status"], "completed");
    assert_eq!(shown["response"]["status"], 201);
    assert_eq!(shown["response"]["schema_version"], 3);
    assert_eq!(shown["response"]["body_bytes"], 4);
    assert_eq!(shown["response"].get("body"), None);
    assert_eq!(shown["history_intact"], true);
    let history = shown["history"].as_array().unwrap();
    assert_eq!(history[0]["what"], "unknown");
    assert_eq!(history[0]["actor"], "executor");
    assert_eq!(history[0]["code"], "timeout");
    assert_eq!(history[1]["what"], "resolved_completed");
    assert_eq!(history[1]["actor"], "webhook:psp");
    assert_eq!(history[1]["evidence"], "evt_1 \u{1b}[2J\u{fffd}");
    let path = format!("/api/v1/operations/{}?reveal=true", fence.id);
    assert_eq!(fixture.get(&path).await.1["response"]["body"], "paid");
    for path in [
        "/api/v1/operations/nonsense".to_owned(),
        format!("/api/v1/operations/{}", OperationId::generate()),
    ] {
        let (status, problem) = fixture.get(&path).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert_eq!(problem["code"], "admin_operation_not_found");
    }
}

#[tokio::test]
async fn resolve_requires_a_reason_and_succeeds_once() {
    let fixture = Fixture::new(None);
    let fence = fixture.unknown("pay", "key").await;
    let completed = json!({
        "verdict": "completed",
        "response": { "status": 201, "json": { "id": 7 }, "headers": [["Location", "/payments/7"]] },
        "reason": "seen in the provider's dashboard",
        "by": "alice",
    });
    for (edit, part) in [
        (json!({ "reason": "" }), "reason"),
        (json!({ "reason": "x".repeat(1025) }), "1024"),
        (json!({ "response": null }), "response"),
        (json!({ "response": { "status": 99 } }), "200 to 599"),
        (
            json!({ "response": { "status": 201, "headers": [["Set-Cookie", "a"]] } }),
            "set-cookie",
        ),
        (
            json!({ "response": { "status": 201, "headers": [["x y", "a"]] } }),
            "header name",
        ),
        (
            json!({ "response": { "status": 201, "body": "a", "json": 1 } }),
            "not both",
        ),
        (json!({ "verdict": "perhaps" }), "perhaps"),
        (json!({ "verdict": "not_executed" }), "not allowed"),
        (json!({ "by": "a\nb" }), "`by`"),
        (json!({ "surprise": 1 }), "surprise"),
    ] {
        let mut wrong = completed.clone();
        for (name, value) in edit.as_object().unwrap() {
            wrong[name] = value.clone();
        }
        let (status, problem) = fixture.post(fence, "resolve", &wrong).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{wrong}");
        assert!(
            problem["detail"].as_str().unwrap().contains(part),
            "{problem}"
        );
    }
    let mut stale = completed.clone();
    stale["attempt"] = json!(2);
    let (status, problem) = fixture.post(fence, "resolve", &stale).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    assert_eq!(problem["operation_status"], "unknown");

    let (status, decided) = fixture.post(fence, "resolve", &completed).await;
    assert_eq!(
        (status, &decided["status"]),
        (StatusCode::OK, &json!("completed"))
    );
    let (status, problem) = fixture.post(fence, "resolve", &completed).await;
    assert_eq!(
        (status, &problem["operation_status"]),
        (StatusCode::CONFLICT, &json!("completed"))
    );
    let record = fixture.store.find(fence.id).await.unwrap().unwrap();
    let semel_core::State::Completed(stored) = record.state else {
        panic!("{record:?}");
    };
    assert_eq!(stored.response.body.as_deref(), Some(&br#"{"id":7}"#[..]));
    let headers: Vec<_> = stored
        .response
        .headers
        .iter()
        .map(|(name, _)| &**name)
        .collect();
    assert_eq!(headers, ["location", "content-type"]);
    let shown = fixture.show(fence).await;
    let last = shown["history"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["actor"], "operator:alice");
    assert_eq!(last["reason"], "seen in the provider's dashboard");

    let other = fixture.unknown("pay", "other").await;
    let released = json!({ "verdict": "not_executed", "reason": "the provider never got it" });
    let (status, decided) = fixture.post(other, "resolve", &released).await;
    assert_eq!(
        (status, &decided["status"]),
        (StatusCode::OK, &json!("failed_retryable"))
    );
    let running = fixture.grant("pay", "running").await;
    let (status, problem) = fixture.post(running, "resolve", &released).await;
    assert_eq!(
        (status, &problem["operation_status"]),
        (StatusCode::CONFLICT, &json!("in_progress"))
    );
}

#[tokio::test]
async fn reconcile_asks_the_provider() {
    let fixture = Fixture::new(None);
    for (operation, key, status, expected) in [
        ("pay", "paid", StatusCode::OK, json!("completed")),
        ("pay", "absent", StatusCode::OK, json!("still_unknown")),
        ("pay", "silent", StatusCode::OK, json!("still_unknown")),
        ("refund", "no way", StatusCode::CONFLICT, Value::Null),
    ] {
        let fence = fixture.unknown(operation, key).await;
        fixture
            .store
            .dead_letter(fence, "tries".into())
            .await
            .unwrap();
        let (seen, answer) = fixture
            .post(fence, "reconcile", &json!({ "by": "bob" }))
            .await;
        assert_eq!(
            (seen, &answer["outcome"]),
            (status, &expected),
            "{key}: {answer}"
        );
    }
    let running = fixture.grant("pay", "running").await;
    let (status, _) = fixture.post(running, "reconcile", &json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn erase_removes_the_response_and_keeps_the_record() {
    let fixture = Fixture::new(None);
    let fence = fixture.grant("pay", "key").await;
    let asked = json!({ "reason": "ticket 7", "by": "carol" });
    assert_eq!(
        fixture.post(fence, "erase", &asked).await.0,
        StatusCode::CONFLICT
    );
    fixture.store.complete(fence, paid()).await.unwrap();
    assert_eq!(
        fixture.post(fence, "erase", &json!({})).await.0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    assert_eq!(fixture.post(fence, "erase", &asked).await.0, StatusCode::OK);
    let shown = fixture.show(fence).await;
    assert_eq!(shown["response"]["body_bytes"], Value::Null);
    assert_eq!(shown["response"]["headers"], json!([]));
    assert_eq!(shown["history"][0]["what"], "erased");
    assert_eq!(shown["history"][0]["reason"], "ticket 7");
}

#[tokio::test]
async fn stats_count_unfinished_records() {
    let fixture = Fixture::new(None);
    fixture.grant("pay", "one").await;
    let fence = fixture.unknown("pay", "two").await;
    fixture
        .store
        .dead_letter(fence, "tries".into())
        .await
        .unwrap();
    fixture.unknown("refund", "three").await;
    let (_, stats) = fixture.get("/api/v1/stats").await;
    let count = |of: &str| stats[of]["count"].as_u64().unwrap();
    assert_eq!(
        (
            count("in_progress"),
            count("unknown"),
            count("dead_lettered")
        ),
        (1, 2, 1)
    );
    assert_eq!(stats["operations"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn transitions_are_streamed() {
    let fixture = Fixture::new(None);
    let request = request(Method::GET, "/api/v1/events")
        .body(Body::empty())
        .unwrap();
    let answer = fixture.router.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let fence = fixture.grant("pay", "key").await;
    fixture.store.complete(fence, paid()).await.unwrap();
    let mut stream = BodyDataStream::new(answer.into_body());
    let mut seen = String::new();
    while !seen.contains("\"complete\"") {
        let next = tokio::time::timeout(Duration::from_secs(30), stream.next()).await;
        seen.push_str(&String::from_utf8_lossy(&next.unwrap().unwrap().unwrap()));
    }
    assert!(seen.contains("event: transition"), "{seen}");
    assert!(seen.contains("\"verb\":\"reserve\""), "{seen}");
    assert!(seen.contains(&fence.id.to_string()), "{seen}");
    assert!(!seen.contains("key\""), "{seen}");
}

#[tokio::test]
async fn unauthenticated_and_cross_site_requests_are_refused() {
    let fixture = Fixture::new(Some("secret-token"));
    let fence = fixture.unknown("pay", "key").await;
    let id = fence.id;
    for (method, path) in [
        (Method::GET, "/api/v1/operations".to_owned()),
        (Method::GET, format!("/api/v1/operations/{id}")),
        (Method::POST, format!("/api/v1/operations/{id}/resolve")),
        (Method::POST, format!("/api/v1/operations/{id}/reconcile")),
        (Method::POST, format!("/api/v1/operations/{id}/erase")),
        (Method::GET, "/api/v1/stats".to_owned()),
        (Method::GET, "/api/v1/events".to_owned()),
    ] {
        let request = request(method, &path).body(Body::empty()).unwrap();
        assert_eq!(
            fixture.send(request).await.0,
            StatusCode::UNAUTHORIZED,
            "{path}"
        );
    }

    let fixture = Fixture::new(None);
    let fence = fixture.unknown("pay", "key").await;
    let path = format!("/api/v1/operations/{}/resolve", fence.id);
    let body = r#"{"verdict":"not_executed","reason":"a form on another site"}"#;
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let request = request(Method::POST, &path).header("content-type", kind);
        let (status, _) = fixture.send(request.body(Body::from(body)).unwrap()).await;
        assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{kind}");
    }
    for host in [
        "evil.example",
        "evil.example:8081",
        "127.0.0.1.evil.example",
    ] {
        let peer: SocketAddr = "127.0.0.1:5000".parse().unwrap();
        let request = Request::builder()
            .uri("/api/v1/operations")
            .header("host", host)
            .extension(Peer::new(peer, false));
        let (status, _) = fixture.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{host}");
    }
}

#[tokio::test]
async fn a_failing_store_returns_503() {
    let fixture = Fixture::new(None);
    let fence = fixture.unknown("pay", "key").await;
    fixture.faulty.next(Verb::Find, Fault::FailBefore);
    let (status, problem) = fixture
        .get(&format!("/api/v1/operations/{}", fence.id))
        .await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(problem["code"], "admin_store_unavailable");
}

#[tokio::test]
async fn the_outbox_is_shown_without_payloads_and_a_dead_lettered_event_is_queued_again() {
    let fixture = Fixture::new(None);
    let (status, empty) = fixture.get("/api/v1/outbox").await;
    assert_eq!(status, StatusCode::OK);
    let nothing = json!({ "waiting": 0, "oldest_age_seconds": null, "dead": 0, "dead_events": [] });
    assert_eq!(empty, nothing);

    let outbox = fixture.faulty.inner();
    let event = |kind: &str| Event::new(kind, "payment/1", "\"secret\"").unwrap();
    let (poison, fine) = (event("payment.created"), event("payment.settled"));
    outbox.publish(poison.clone());
    outbox.publish(fine.clone());
    outbox
        .dead_letter_event(poison.id, "400: no")
        .await
        .unwrap();
    let (status, shown) = fixture.get("/api/v1/outbox?limit=1").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!((&shown["waiting"], &shown["dead"]), (&json!(1), &json!(1)));
    assert_eq!(shown["oldest_age_seconds"], json!(0.0));
    let dead = &shown["dead_events"][0];
    assert_eq!(dead["id"], poison.id.to_string());
    assert_eq!(dead["kind"], "payment.created");
    assert_eq!(dead["aggregate"], "payment/1");
    assert_eq!(dead["payload_bytes"], 8);
    assert_eq!(dead["reason"], "400: no");
    assert!(!shown.to_string().contains("secret"), "{shown}");

    let retry = async |id: &str, kind: &str, body: &str| {
        let path = format!("/api/v1/outbox/{id}/retry");
        let request = request(Method::POST, &path).header("content-type", kind);
        fixture
            .send(request.body(Body::from(body.to_owned())).unwrap())
            .await
    };
    let (id, json_type) = (poison.id.to_string(), "application/json");
    for (id, kind, body, refused, code) in [
        (
            &*fine.id.to_string(),
            json_type,
            "",
            404,
            "admin_event_not_found",
        ),
        ("nothing", json_type, "", 404, "admin_event_not_found"),
        (&*id, "text/plain", "", 415, "admin_decision_not_json"),
        (&*id, json_type, "{", 422, "admin_decision_invalid"),
        (
            &*id,
            json_type,
            "{\"who\": 1}",
            422,
            "admin_decision_invalid",
        ),
        (
            &*id,
            json_type,
            "{\"by\": \"a\\nb\"}",
            422,
            "admin_decision_invalid",
        ),
    ] {
        let (status, problem) = retry(id, kind, body).await;
        assert_eq!(status.as_u16(), refused, "{problem}");
        assert_eq!(problem["code"], code, "{problem}");
    }
    assert_eq!(outbox.outbox_backlog().await.unwrap().dead, 1);
    let body = json!({ "reason": "stream created", "by": "kim" }).to_string();
    let (status, answer) = retry(&id, json_type, &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer, json!({ "id": id, "status": "waiting" }));
    assert_eq!(outbox.outbox_backlog().await.unwrap().waiting, 2);
    let (status, _) = retry(&id, json_type, &body).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    for wrong in ["limit=0", "limit=x", "cursor=1"] {
        let (status, _) = fixture.get(&format!("/api/v1/outbox?{wrong}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}");
    }
}
