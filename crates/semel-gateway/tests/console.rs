//! The console: what its pages show, to whom, and what they refuse.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "any answer but the right one fails the test"
)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use semel_core::figures::{Activity, Caller, Census, Count, Misuse, Told, stretch};
use semel_core::history::{self, What};
use semel_core::outbox::Event;
use semel_core::{
    By, Clock as _, Completion, Decision, Error, Fence, Figures, Fingerprint, Identity, Inbox,
    Inspect, Key, KeyScope, Maintain, Memory, OperationId, Outbox as _, Policy, Record, Reserve,
    Resolve, Response, State, Status, Store, Verdict,
};
use semel_gateway::admin::{Access, Api};
use semel_gateway::observed::Events;
use semel_gateway::{admin, telemetry};
use semel_testkit::ManualClock;
use semel_worker::{Finding, Found, Reconcile, Reconcilers, Schedule};
use tower::ServiceExt as _;

const OPERATOR: &str = "operator-token-of-32-characters-00";
const VIEWER: &str = "viewer-token-of-32-characters-0000";

/// A store that can be made to refuse to tell that something is shown.
#[derive(Clone)]
struct Mute {
    inner: Memory,
    mute: Arc<AtomicBool>,
}

impl Store for Mute {
    semel_core::forward!([inner] reserve clock epoch complete release evict mark_unknown heartbeat advance);
}

impl Maintain for Mute {
    semel_core::forward!([inner] sweep claim_abandoned claim_due resolve dead_letter expire);
    semel_core::forward!([inner] drop_bodies purge erase);

    async fn revealed(&self, id: OperationId, by: By) -> semel_core::store::Result<bool> {
        if self.mute.load(Ordering::SeqCst) {
            return Err(Error::Unavailable {
                reason: "the disk is full".into(),
                source: None,
            });
        }
        self.inner.revealed(id, by).await
    }
}

impl Inspect for Mute {
    semel_core::forward!([inner] find find_identity find_resource history reveal standing list);
}

impl Inbox for Mute {
    semel_core::forward!([inner] receive settle claim_parked forget);
}

impl Figures for Mute {
    semel_core::forward!([inner] count activity misuses survey meet count_alone publish_census census);
    semel_core::forward!([inner] find_key forget_activity forget_misuses);
}

/// What a look finds: nothing.
struct Provider;

impl Reconcile for Provider {
    async fn look(&self, _: &Record) -> Found {
        Finding::unclear("no_answer").seen("GET <b>psp</b> → \u{1b}[31m503")
    }
}

struct World {
    store: Memory,
    mute: Arc<AtomicBool>,
    clock: ManualClock,
    router: axum::Router,
}

/// Who asks.
#[derive(Clone, Copy)]
enum Who {
    Operator,
    Viewer,
}

struct Seen {
    status: StatusCode,
    headers: http::HeaderMap,
    body: String,
}

impl Seen {
    fn has(&self, words: &str) -> &Self {
        assert!(
            self.body.contains(words),
            "{words:?} is not in\n{}",
            self.body
        );
        self
    }

    fn lacks(&self, words: &str) -> &Self {
        assert!(!self.body.contains(words), "{words:?} is in\n{}", self.body);
        self
    }

    fn is(&self, status: StatusCode) -> &Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }

    fn leads_to(&self) -> &str {
        self.is(StatusCode::SEE_OTHER);
        self.headers[LOCATION].to_str().unwrap()
    }
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::default();
        let store = Memory::new(Arc::new(clock.clone()));
        let mute = Arc::new(AtomicBool::new(false));
        let muted = Mute {
            inner: store.clone(),
            mute: Arc::clone(&mute),
        };
        let reconcilers = Reconcilers::new(muted.clone())
            .by_looking("pay", Schedule::default(), Provider)
            .unwrap();
        let api = Api {
            store: muted,
            reconcilers,
            events: Events::default(),
        };
        let recorder = telemetry::recorder().unwrap();
        let router = admin::router(
            Access::Tokens {
                operator: OPERATOR.parse().unwrap(),
                viewer: Some(VIEWER.parse().unwrap()),
                secure_cookie: false,
            },
            || async { Ok(()) },
            recorder.handle(),
            api,
            store.clone(),
        );
        Self {
            store,
            mute,
            clock,
            router,
        }
    }

    async fn send(&self, who: Who, method: Method, path: &str, form: Option<String>) -> Seen {
        let peer: SocketAddr = "127.0.0.1:5000".parse().unwrap();
        let token = match who {
            Who::Operator => OPERATOR,
            Who::Viewer => VIEWER,
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "127.0.0.1:8081")
            .header("accept", "text/html")
            .header("authorization", format!("Bearer {token}"))
            .extension(ConnectInfo(peer));
        if form.is_some() {
            request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        let request = request
            .body(form.map_or_else(Body::empty, Body::from))
            .unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Seen {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    async fn get(&self, path: &str) -> Seen {
        self.send(Who::Operator, Method::GET, path, None).await
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Seen {
        let form = Some(form(fields));
        self.send(Who::Operator, Method::POST, path, form).await
    }

    async fn grant(&self, tenant: &str, operation: &str, key: &str) -> Fence {
        let request = Reserve {
            id: OperationId::generate(),
            identity: Identity::new(tenant, operation, Key::new(key).unwrap()).unwrap(),
            fingerprints: Fingerprint::of(&1).unwrap().into(),
            owner: "host/1".into(),
            policy: Policy::default(),
        };
        match self.store.reserve(request).await.unwrap() {
            Decision::Execute(grant) => grant.fence,
            other => panic!("{other:?}"),
        }
    }

    async fn completed(&self, tenant: &str, key: &str, body: &str) -> Fence {
        let fence = self.grant(tenant, "pay", key).await;
        self.store.complete(fence, paid(body)).await.unwrap();
        fence
    }

    /// One that waits for a person, after the provider was asked.
    async fn dead_letter(&self, key: &str) -> Fence {
        let fence = self.grant("acme", "pay", key).await;
        let code = "execution_timed_out".into();
        self.store.mark_unknown(fence, code, None).await.unwrap();
        let resolve = Resolve {
            fence,
            verdict: Verdict::StillUnknown("poll_status_404".into(), self.clock.now()),
            by: By::from("reconciler"),
            evidence: Some(Bytes::from_static(b"404 <i>not</i> there")),
        };
        self.store.resolve(resolve).await.unwrap();
        let code = "reconcile_attempts_exhausted".into();
        self.store.dead_letter(fence, code).await.unwrap();
        fence
    }

    async fn whats(&self, id: OperationId) -> Vec<What> {
        let entries = self.store.history(id).await.unwrap();
        entries.iter().map(|entry| entry.note.what).collect()
    }

    async fn status(&self, fence: Fence) -> Status {
        self.store
            .find(fence.id)
            .await
            .unwrap()
            .unwrap()
            .state
            .status()
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    let mut form = "csrf=x".to_owned();
    for (name, value) in fields {
        write!(form, "&{name}=").unwrap();
        for byte in value.bytes() {
            write!(form, "%{byte:02X}").unwrap();
        }
    }
    form
}

fn paid(body: &str) -> Completion {
    Completion {
        response: Response {
            status: 201,
            headers: vec![("x-note".into(), Bytes::from_static(b"<b>\x1b[1m"))],
            body: Some(Bytes::from(body.to_owned())),
            schema_version: 0,
        },
        resource: None,
    }
}

fn end(fence: Fence) -> String {
    let id = fence.id.to_string();
    id[id.len() - 6..].to_owned()
}

#[tokio::test]
async fn every_page_is_there_when_there_is_nothing() {
    let world = World::new();
    for (path, words) in [
        ("/", "No census has ended yet"),
        ("/operations", "Nothing is remembered yet"),
        ("/dead-letters", "Nothing waits for a person"),
        ("/misuse", "No key was used for something else"),
        ("/outbox", "No event was refused for good"),
    ] {
        let page = world.get(path).await;
        page.is(StatusCode::OK)
            .has(words)
            .has("aria-current=\"page\"")
            .has("Skip to the content");
        assert_eq!(page.headers[CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!(page.headers[CACHE_CONTROL], "no-store", "{path}");
    }
    let nothing = world.get("/nothing").await;
    nothing
        .is(StatusCode::NOT_FOUND)
        .has("There is nothing here");
    let id = OperationId::generate();
    for path in [format!("/operations/{id}"), "/operations/1".to_owned()] {
        let missing = world.get(&path).await;
        missing
            .is(StatusCode::NOT_FOUND)
            .has("There is no such operation")
            .has("<nav");
    }
}

#[tokio::test]
async fn the_overview_shows_figures_and_its_live_part_alone() {
    let world = World::new();
    world.grant("acme", "pay", "runs").await;
    world.dead_letter("lost").await;
    let now = world.clock.now();
    let line = |operation: &str, created| Activity {
        at: stretch(now),
        operation: operation.into(),
        told: Told {
            created,
            ..Told::default()
        },
    };
    world
        .store
        .count(vec![line("pay", 1200), line("refund", 34)], vec![])
        .await
        .unwrap();
    let census = Census {
        began_at: now,
        ended_at: now,
        counts: vec![Count {
            operation: "pay".into(),
            status: Status::Completed,
            count: 5_000_000,
        }],
        all_callers: true,
    };
    world.store.publish_census(census).await.unwrap();
    world.clock.advance(Duration::from_secs(40));
    let page = world.get("/").await;
    page.is(StatusCode::OK)
        .has("counted 40 s ago")
        .has("5,000,000")
        .has("1,234</strong><span>in 15 min")
        .has("role=\"img\"")
        .has("wait for a person; oldest 40 s")
        .has("data-live=\"/fragments/overview\"");
    let only = world.get("/?operation=refund").await;
    only.is(StatusCode::OK)
        .has("<strong>34</strong><span>in 15 min")
        .lacks("1,234");
    let fragment = world.get("/fragments/overview?operation=pay").await;
    fragment
        .is(StatusCode::OK)
        .has("1,200")
        .lacks("<html")
        .lacks("<nav");
}

#[tokio::test]
async fn pages_cover_all_operations_exactly_once() {
    let world = World::new();
    let mut all = BTreeSet::new();
    for number in 0..133 {
        let fence = world.grant("acme", "pay", &format!("key-{number}")).await;
        all.insert(fence.id.to_string());
    }
    let (mut path, mut seen) = ("/operations".to_owned(), Vec::new());
    loop {
        let page = world.get(&path).await;
        page.is(StatusCode::OK);
        let links = page.body.split("href=\"/operations/").skip(1);
        seen.extend(links.map(|link| link[..36].to_owned()));
        let Some(older) = page.body.split("rel=\"next\" href=\"").nth(1) else {
            break;
        };
        path = older.split('"').next().unwrap().replace("&#38;", "&");
    }
    assert_eq!(seen.len(), all.len());
    let mut newest_first: Vec<_> = all.into_iter().collect();
    newest_first.reverse();
    assert_eq!(seen, newest_first);
}

#[tokio::test]
async fn a_key_is_found_by_its_callers_and_an_id_opens_its_operation() {
    let world = World::new();
    let mut wanted = Vec::new();
    for tenant in ["acme", "globex"] {
        wanted.push(world.completed(tenant, "order-1", "x").await);
        world.completed(tenant, "order-2", "x").await;
    }
    let caller = |tenant: &str| Caller {
        scope: KeyScope::Operation,
        tenant: tenant.into(),
        operation: "pay".into(),
    };
    world.store.meet(vec![caller("acme")]).await.unwrap();
    let found = world.get("/operations?key=order-1").await;
    found.is(StatusCode::OK);
    for fence in &wanted {
        let times = found
            .body
            .matches(&format!("href=\"/operations/{}\"", fence.id))
            .count();
        assert_eq!(times, 1, "once, whichever way it was found");
    }
    found.lacks("order-2");
    let other = world.get("/operations?key=order-1&tenant=globex").await;
    other
        .lacks(&wanted[0].id.to_string())
        .has(&wanted[1].id.to_string());
    let none = world.get("/operations?key=order-1&status=unknown").await;
    none.has("No operation is like that");

    let id = wanted[0].id;
    let opened = world.get(&format!("/operations?id=%20{id}")).await;
    assert_eq!(opened.leads_to(), format!("/operations/{id}"));
    let missing = world
        .get(&format!("/operations?id={}", OperationId::generate()))
        .await;
    missing
        .is(StatusCode::NOT_FOUND)
        .has("No operation has that id");
    let no_id = world.get("/operations?id=order-1").await;
    no_id
        .is(StatusCode::BAD_REQUEST)
        .has("That is no operation id");
    for wrong in [
        "status=lost",
        "cursor=1",
        "dead_lettered=perhaps",
        "key=%00",
    ] {
        let refused = world.get(&format!("/operations?{wrong}")).await;
        refused.is(StatusCode::BAD_REQUEST).has("role=\"alert\"");
    }
}

/// What others wrote is text, whatever it looks like, and all of it can be seen.
#[tokio::test]
async fn hostile_data_is_harmless_on_every_page() {
    let world = World::new();
    let evil = "<script>alert(1)</script>\u{1b}[31m\u{202e}\"'";
    let key = "<script>alert('k')</script>";
    let fence = world.grant(evil, evil, key).await;
    world.store.complete(fence, paid(evil)).await.unwrap();
    let letter = world
        .grant(evil, evil, "<img src=x onerror=alert(1)>")
        .await;
    world
        .store
        .mark_unknown(letter, "<b>code".into(), None)
        .await
        .unwrap();
    let resolve = Resolve {
        fence: letter,
        verdict: Verdict::StillUnknown("<b>code".into(), world.clock.now()),
        by: By::person(evil, evil),
        evidence: Some(Bytes::from(evil)),
    };
    world.store.resolve(resolve).await.unwrap();
    world
        .store
        .dead_letter(letter, "<b>code".into())
        .await
        .unwrap();
    let now = world.clock.now();
    let misuse = Misuse {
        tenant: evil.into(),
        operation: evil.into(),
        count: 3,
        first_at: now,
        last_at: now,
        last_id: fence.id,
    };
    let line = Activity {
        at: stretch(now),
        operation: evil.into(),
        told: Told {
            misuse: 3,
            ..Told::default()
        },
    };
    world.store.count(vec![line], vec![misuse]).await.unwrap();
    let event = Event::new("<b>kind</b>", "<script>/1", &b"{}"[..]).unwrap();
    world.store.publish(event);
    let waiting = world
        .store
        .claim_events("relay".into(), Duration::from_secs(9), 9);
    for waiting in waiting.await.unwrap() {
        world.store.set_aside(waiting.event.id, evil).await.unwrap();
    }
    let query = form(&[("operation", evil), ("tenant", evil), ("key", key)]);
    let mut pages = Vec::new();
    for path in [
        "/".to_owned(),
        format!("/?{query}"),
        "/operations".to_owned(),
        format!("/operations?{query}"),
        format!("/operations/{}", fence.id),
        format!("/operations/{}", letter.id),
        format!("/operations/{}/decide", letter.id),
        "/dead-letters".to_owned(),
        "/misuse".to_owned(),
        "/outbox".to_owned(),
    ] {
        pages.push((path.clone(), world.get(&path).await));
    }
    let path = format!("/operations/{}/reveal", fence.id);
    pages.push((path.clone(), world.post(&path, &[]).await));
    let wrong = [
        ("verdict", "completed"),
        ("attempt", "1"),
        ("status", evil),
        ("body", evil),
        ("reason", evil),
    ];
    let path = format!("/operations/{}/decide", letter.id);
    let refused = world.post(&path, &wrong).await;
    refused.is(StatusCode::UNPROCESSABLE_ENTITY);
    for (path, page) in &pages {
        page.is(StatusCode::OK);
        let shown = page.body.contains("&#60;script&#62;") && page.body.contains("␛[31m⟦U+202E⟧");
        assert!(shown, "{path} does not show it:\n{}", page.body);
    }
    pages.push((path, refused));
    for (path, page) in &pages {
        for acts in ["<script>", "<img src=x", "<b>"] {
            assert!(!page.body.contains(acts), "{acts:?} is on {path}");
        }
        let read = without_fields(&page.body);
        for acts in ["\u{1b}", "\u{202e}"] {
            assert!(!read.contains(acts), "{acts:?} is on {path}");
        }
    }
}

/// A page without what is in its fields: that is given back as it was typed or stored.
fn without_fields(page: &str) -> String {
    let mut rest = page.to_owned();
    for (start, end) in [(" value=\"", "\""), ("<textarea", "</textarea>")] {
        let mut parts = rest.split(start);
        let first = parts.next().unwrap().to_owned();
        rest = parts.fold(first, |page, part| page + part.split_once(end).unwrap().1);
    }
    rest
}

#[tokio::test]
async fn a_viewer_sees_no_decision_and_cannot_take_one() {
    let world = World::new();
    let done = world.completed("acme", "done", "secret-body").await;
    let letter = world.dead_letter("lost").await;
    for path in [
        "/".to_owned(),
        "/dead-letters".to_owned(),
        "/outbox".to_owned(),
        format!("/operations/{}", done.id),
        format!("/operations/{}", letter.id),
    ] {
        let page = world.send(Who::Viewer, Method::GET, &path, None).await;
        page.is(StatusCode::OK)
            .has("viewer")
            .lacks("/decide")
            .lacks("secret-body");
        for form in page.body.split("<form").skip(1) {
            let other = form.contains("action=\"/logout\"") || form.contains("method=\"get\"");
            assert!(other, "{path}: {form}");
        }
    }
    for (path, fields) in [
        (format!("/operations/{}/reveal", done.id), vec![]),
        (
            format!("/operations/{}/erase", done.id),
            vec![("reason", "r"), ("confirm", "x")],
        ),
        (format!("/operations/{}/reconcile", letter.id), vec![]),
        (
            format!("/operations/{}/decide", letter.id),
            vec![("verdict", "not_executed")],
        ),
        (format!("/outbox/{}/retry", OperationId::generate()), vec![]),
    ] {
        let refused = world
            .send(Who::Viewer, Method::POST, &path, Some(form(&fields)))
            .await;
        refused
            .is(StatusCode::FORBIDDEN)
            .lacks("secret-body")
            .has("<nav");
    }
    let page = format!("/operations/{}/decide", letter.id);
    world
        .send(Who::Viewer, Method::GET, &page, None)
        .await
        .is(StatusCode::FORBIDDEN);
    assert_eq!(world.whats(done.id).await, []);
    assert_eq!(world.status(letter).await, Status::Unknown);
}

#[tokio::test]
async fn a_body_is_shown_only_after_the_history_says_so() {
    let world = World::new();
    let done = world.completed("acme", "done", "secret-body").await;
    let page = world.get(&format!("/operations/{}", done.id)).await;
    page.has("body of 11 bytes")
        .has("Reveal 11 bytes")
        .lacks("secret-body");

    let path = format!("/operations/{}/reveal", done.id);
    world.mute.store(true, Ordering::SeqCst);
    let refused = world.post(&path, &[]).await;
    refused
        .is(StatusCode::SERVICE_UNAVAILABLE)
        .has("the disk is full")
        .lacks("secret-body");
    assert_eq!(world.whats(done.id).await, []);

    world.mute.store(false, Ordering::SeqCst);
    let shown = world.post(&path, &[]).await;
    shown
        .is(StatusCode::OK)
        .has("secret-body")
        .has("Response shown to a person")
        .has("History intact");
    assert_eq!(world.whats(done.id).await, [What::Revealed]);
    let entries = world.store.history(done.id).await.unwrap();
    assert_eq!(&*entries[0].note.actor, "operator");
    let record = world.store.find(done.id).await.unwrap().unwrap();
    assert_eq!(history::verify(&record, &entries), Ok(()));
    // And only by that form.
    world
        .get(&format!("/operations/{}", done.id))
        .await
        .lacks("secret-body");
    world.get(&path).await.is(StatusCode::METHOD_NOT_ALLOWED);

    // By the API neither.
    let path = format!("/api/v1/operations/{}?reveal=true", done.id);
    world.mute.store(true, Ordering::SeqCst);
    let refused = world.get(&path).await;
    refused
        .is(StatusCode::SERVICE_UNAVAILABLE)
        .lacks("secret-body");
    world.mute.store(false, Ordering::SeqCst);
    let viewer = world.send(Who::Viewer, Method::GET, &path, None).await;
    viewer.is(StatusCode::FORBIDDEN).lacks("secret-body");
    assert_eq!(world.whats(done.id).await, [What::Revealed]);
    world
        .get(&path)
        .await
        .is(StatusCode::OK)
        .has("secret-body")
        .has("\"history_intact\":true");
    assert_eq!(world.whats(done.id).await, [What::Revealed, What::Revealed]);

    let letter = world.dead_letter("lost").await;
    let none = world
        .post(&format!("/operations/{}/reveal", letter.id), &[])
        .await;
    none.is(StatusCode::CONFLICT)
        .has("only a completed operation");
}

#[tokio::test]
async fn a_long_body_is_cut_and_what_is_no_text_is_said() {
    let world = World::new();
    let long = "é".repeat(40_000);
    let done = world.completed("acme", "long", &long).await;
    let shown = world
        .post(&format!("/operations/{}/reveal", done.id), &[])
        .await;
    shown
        .has("80,000 bytes")
        .has("Only the first 64 KiB")
        .lacks("not all text");
    assert!(shown.body.matches('é').count() < 33_000);
}

#[tokio::test]
async fn an_outcome_is_recorded_as_it_was_typed() {
    let world = World::new();
    let letter = world.dead_letter("lost").await;
    let page = world.get("/dead-letters").await;
    page.has("as often as configured")
        .has("took longer than upstream_timeout")
        .has("404 &#60;i&#62;not&#60;/i&#62; there")
        .has(&format!("/operations/{}/decide", letter.id));
    let path = format!("/operations/{}/decide", letter.id);
    world
        .get(&path)
        .await
        .is(StatusCode::OK)
        .has("If the charge did happen, the next retry charges the customer again.")
        .has("name=\"attempt\" value=\"1\"");

    let confirm = end(letter);
    let whole = [
        ("verdict", "completed"),
        ("attempt", "1"),
        ("status", "201"),
        ("content_type", "application/json"),
        ("body", "{\r\n\"id\": 9007199254740993}"),
        ("reason", "the provider has ch_1"),
        ("confirm", &confirm),
    ];
    for (field, wrong, words) in [
        ("verdict", "perhaps", "one of the two"),
        ("attempt", "", "which attempt"),
        ("status", "99", "from 200 to 599"),
        ("status", "x", "from 200 to 599"),
        ("body", "{", "not JSON"),
        ("content_type", "text\r\nx: y", "cannot be sent"),
        ("reason", "  ", "Give a reason"),
        ("confirm", "000000x", "last 6 characters"),
    ] {
        let fields = whole.map(|(name, value)| (name, if name == field { wrong } else { value }));
        let refused = world.post(&path, &fields).await;
        refused
            .is(StatusCode::UNPROCESSABLE_ENTITY)
            .has(words)
            .has("role=\"alert\"");
        assert_eq!(
            world.status(letter).await,
            Status::Unknown,
            "{field}={wrong}"
        );
    }
    let decided = world.post(&path, &whole).await;
    let place = decided.leads_to().to_owned();
    world
        .get(&place)
        .await
        .is(StatusCode::OK)
        .has("Recorded.")
        .has("the provider has ch_1");
    let record = world.store.find(letter.id).await.unwrap().unwrap();
    let State::Completed(completed) = record.state else {
        panic!("{:?}", record.state);
    };
    let response = completed.response;
    assert_eq!(response.status, 201);
    assert_eq!(
        response.body.as_deref(),
        Some(&b"{\n\"id\": 9007199254740993}"[..])
    );
    assert_eq!(&*response.headers[0].1, b"application/json");
    // It is decided once.
    let again = world.post(&path, &whole).await;
    again.is(StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_release_wants_the_words_and_a_stale_page_decides_nothing() {
    let world = World::new();
    let letter = world.dead_letter("lost").await;
    let path = format!("/operations/{}/decide", letter.id);
    let confirm = end(letter);
    let whole = [
        ("verdict", "not_executed"),
        ("attempt", "1"),
        ("reason", "ticket 4711"),
        ("confirm", &confirm),
        ("phrase", "it did not happen"),
    ];
    for (field, wrong, words) in [
        ("phrase", "it happened", "it did not happen"),
        ("phrase", "", "it did not happen"),
        ("confirm", "", "last 6 characters"),
        ("reason", "", "Give a reason"),
    ] {
        let fields = whole.map(|(name, value)| (name, if name == field { wrong } else { value }));
        world
            .post(&path, &fields)
            .await
            .is(StatusCode::UNPROCESSABLE_ENTITY)
            .has(words);
        assert_eq!(
            world.status(letter).await,
            Status::Unknown,
            "{field}={wrong}"
        );
    }
    let released = world.post(&path, &whole).await;
    assert!(released.leads_to().ends_with("?done=released"));
    assert_eq!(world.status(letter).await, Status::FailedRetryable);

    // The client retries, and the second attempt is lost, too: the page that is still open somewhere is
    // about the first.
    let again = world.grant("acme", "pay", "lost").await;
    assert_eq!((again.id, again.attempt), (letter.id, 2));
    world
        .store
        .mark_unknown(again, "execution_timed_out".into(), None)
        .await
        .unwrap();
    let stale = world.post(&path, &whole).await;
    stale
        .is(StatusCode::CONFLICT)
        .has("another attempt than the present one (2)")
        .has("Nothing was changed");
    assert_eq!(world.status(letter).await, Status::Unknown);
}

#[tokio::test]
async fn the_provider_is_asked_and_a_response_erased() {
    let world = World::new();
    let letter = world.dead_letter("lost").await;
    let asked = world
        .post(&format!("/operations/{}/reconcile", letter.id), &[])
        .await;
    let place = asked.leads_to().to_owned();
    let page = world.get(&place).await;
    page.has("could not settle it")
        .has("GET &#60;b&#62;psp&#60;/b&#62; → ␛[31m503")
        .has("operator");

    let done = world.completed("acme", "done", "secret-body").await;
    let path = format!("/operations/{}/erase", done.id);
    let confirm = end(done);
    for fields in [
        [("reason", ""), ("confirm", &*confirm)],
        [("reason", "gdpr"), ("confirm", "no")],
    ] {
        world
            .post(&path, &fields)
            .await
            .is(StatusCode::UNPROCESSABLE_ENTITY);
    }
    let erased = world
        .post(&path, &[("reason", "gdpr"), ("confirm", &confirm)])
        .await;
    let place = erased.leads_to().to_owned();
    world
        .get(&place)
        .await
        .has("Erased.")
        .has("no body is stored")
        .has("gdpr")
        .lacks("Reveal");
    assert_eq!(world.whats(done.id).await, [What::Erased]);
    let conflict = world
        .post(
            &format!("/operations/{}/erase", letter.id),
            &[("reason", "r"), ("confirm", &end(letter))],
        )
        .await;
    conflict.is(StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_dead_event_is_published_again() {
    let world = World::new();
    let event = Event::new("payment.created", "payment/1", &b"{}"[..]).unwrap();
    let id = event.id;
    world.store.publish(event);
    world
        .store
        .claim_events("relay".into(), Duration::from_secs(9), 9)
        .await
        .unwrap();
    world.store.set_aside(id, "no stream").await.unwrap();
    world
        .get("/outbox")
        .await
        .has("no stream")
        .has("Publish again")
        .lacks("{}");
    let revived = world.post(&format!("/outbox/{id}/retry"), &[]).await;
    assert_eq!(revived.leads_to(), "/outbox");
    assert_eq!(world.store.backlog().await.unwrap().dead, 0);
    let again = world.post(&format!("/outbox/{id}/retry"), &[]).await;
    again
        .is(StatusCode::NOT_FOUND)
        .has("There is no such event");
}

#[tokio::test]
async fn misuse_names_tenants_and_their_share() {
    let world = World::new();
    let whose = world.completed("acme", "done", "x").await;
    let now = world.clock.now();
    let misuse = |tenant: &str, count| Misuse {
        tenant: tenant.into(),
        operation: "pay".into(),
        count,
        first_at: now,
        last_at: now,
        last_id: whose.id,
    };
    let misuses = vec![misuse("globex", 1500), misuse("acme", 500)];
    world.store.count(vec![], misuses).await.unwrap();
    let page = world.get("/misuse").await;
    page.has("2,000 refused, 2 tenants")
        .has("1,500")
        .has("75 %")
        .has("25 %")
        .has(&format!("/operations/{}", whose.id));
    let api = world.get("/api/v1/misuse?limit=1").await;
    api.is(StatusCode::OK).has("\"count\":500").lacks("globex");
    world
        .get("/api/v1/misuse?limit=0")
        .await
        .is(StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn figures_are_in_the_api() {
    let world = World::new();
    let now = world.clock.now();
    let told = Told {
        created: 120,
        failed: 6,
        ..Told::default()
    };
    let line = Activity {
        at: stretch(now),
        operation: "pay".into(),
        told,
    };
    world.store.count(vec![line], vec![]).await.unwrap();
    let stats = world.get("/api/v1/stats").await;
    stats
        .is(StatusCode::OK)
        .has("\"counts\":[]")
        .has("\"counted_at\":null")
        .has("\"created\":2.0")
        .has("\"store_errors\":0.1");
    let activity = world.get("/api/v1/activity").await;
    activity
        .has("\"stretch_seconds\":10")
        .has("\"created\":120");
    for wrong in ["0", "61", "x", "-1"] {
        let refused = world
            .get(&format!("/api/v1/activity?minutes={wrong}"))
            .await;
        refused.is(StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn assets_are_named_by_what_they_hold() {
    let world = World::new();
    let page = world.get("/").await;
    for (start, kind) in [
        ("href=\"/assets/console-", "text/css"),
        ("src=\"/assets/console-", "text/javascript"),
    ] {
        let rest = page.body.split(start).nth(1).unwrap();
        let name = rest.split('"').next().unwrap();
        let path = format!("/assets/console-{name}");
        let asset = world.get(&path).await;
        asset.is(StatusCode::OK);
        assert!(
            asset.headers[CONTENT_TYPE]
                .to_str()
                .unwrap()
                .starts_with(kind)
        );
        assert!(
            asset.headers[CACHE_CONTROL]
                .to_str()
                .unwrap()
                .contains("immutable")
        );
        let request = Request::builder()
            .uri(&path)
            .header(IF_NONE_MATCH, &asset.headers[ETAG]);
        let peer: SocketAddr = "127.0.0.1:5000".parse().unwrap();
        let request = request
            .extension(ConnectInfo(peer))
            .body(Body::empty())
            .unwrap();
        let same = world.router.clone().oneshot(request).await.unwrap();
        assert_eq!(same.status(), StatusCode::NOT_MODIFIED);
    }
    world
        .get("/assets/console-0000000000000000.css")
        .await
        .is(StatusCode::NOT_FOUND);
}

/// The policy forbids inline styles and scripts, and nothing is trusted to be HTML.
#[test]
fn templates_keep_the_house_rules() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates");
    let mut checked = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let template = std::fs::read_to_string(&path).unwrap();
        for forbidden in [
            "|safe",
            "| safe",
            "style=",
            "<style",
            "<script>",
            "javascript:",
            "http://",
            "https://",
        ] {
            assert!(
                !template.contains(forbidden),
                "{forbidden} in {}",
                path.display()
            );
        }
        for tag in template.split('<').skip(1) {
            let handler = tag.split_whitespace().any(|part| {
                part.starts_with("on")
                    && part
                        .split('=')
                        .next()
                        .is_some_and(|name| name.len() < part.len())
            });
            assert!(!handler, "a handler in {}: <{tag}", path.display());
        }
        // A form that changes something says that it comes from a page of ours.
        for form in template.split("method=\"post\"").skip(1) {
            let form = form.split("</form>").next().unwrap();
            let guarded = form.contains("m::csrf(") || form.starts_with(" action=\"/login\"");
            assert!(guarded, "a form without its token in {}", path.display());
        }
        checked += 1;
    }
    assert!(checked >= 10, "{checked} templates");
}
