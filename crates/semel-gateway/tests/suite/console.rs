//! The pages of the console: content, escaping, roles, and operator actions.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use semel_core::history::{self, EntryKind};
use semel_core::outbox::Event;
use semel_core::statistics::{
    Activity, Caller, DecisionCounts, Misuse, RecordCount, RecordCounts, interval_start,
};
use semel_core::store::{Backend, ErasureEpoch, OperationFilter, Reply, Request as StoreRequest};
use semel_core::{
    Actor, Clock, Completion, Decision, Error, Fence, Fingerprint, Identity, Key, KeyScope, Memory,
    OperationId, Policy, Record, RecoveryPoint, Reserve, Resolve, Response, State, Status,
    Store as _, Verdict,
};
use semel_gateway::activity::Counts;
use semel_gateway::admin::{Access, Api};
use semel_gateway::observed::Events;
use semel_gateway::server::Peer;
use semel_gateway::{CurrentLayer, admin, telemetry};
use semel_http::Layer;
use semel_testkit::ManualClock;
use semel_worker::{Lookup, LookupResult, Reconcile, Reconcilers, Schedule};
use tower::ServiceExt as _;

use crate::support::unrouted;

const OPERATOR: &str = "operator-token-of-32-characters-00";
const VIEWER: &str = "viewer-token-of-32-characters-0000";

/// A store whose `audit_reveal` can be made to fail.
#[derive(Clone)]
struct FailingReveal {
    inner: Memory,
    fail: Arc<AtomicBool>,
}

impl Backend for FailingReveal {
    async fn call(&self, request: StoreRequest) -> semel_core::store::Result<Reply> {
        match request {
            StoreRequest::AuditReveal { .. } if self.fail.load(Ordering::SeqCst) => {
                Err(Error::Unavailable {
                    reason: "the disk is full".into(),
                    source: None,
                })
            }
            request => self.inner.call(request).await,
        }
    }

    /// Every request passes through `call`.
    fn try_decide(&self, _: &Reserve) -> Option<Decision> {
        None
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        self.inner.erasure_epoch()
    }

    fn prepare(
        &self,
        id: OperationId,
        completion: Completion,
    ) -> semel_core::store::Result<Completion> {
        self.inner.prepare(id, completion)
    }

    fn prepare_point(
        &self,
        id: OperationId,
        point: RecoveryPoint,
    ) -> semel_core::store::Result<RecoveryPoint> {
        self.inner.prepare_point(id, point)
    }

    fn decrypt_evidence(
        &self,
        id: OperationId,
        evidence: Bytes,
    ) -> semel_core::store::Result<Bytes> {
        self.inner.decrypt_evidence(id, evidence)
    }
}

/// A provider whose answers settle nothing.
struct Provider;

impl Reconcile for Provider {
    async fn look_up(&self, _: &Record) -> Lookup {
        LookupResult::unclear("no_answer").seen("GET <b>psp</b> → \u{1b}[31m503")
    }
}

type Routes = Layer<FailingReveal>;

struct TestConsole {
    store: Memory,
    layer: CurrentLayer<FailingReveal>,
    counts: Counts,
    fail_reveal: Arc<AtomicBool>,
    clock: ManualClock,
    router: axum::Router,
}

#[derive(Clone, Copy)]
enum Role {
    Operator,
    Viewer,
}

struct TestResponse {
    status: StatusCode,
    headers: http::HeaderMap,
    body: String,
}

impl TestResponse {
    fn has(&self, text: &str) -> &Self {
        assert!(
            self.body.contains(text),
            "{text:?} is not in\n{}",
            self.body
        );
        self
    }

    fn lacks(&self, text: &str) -> &Self {
        assert!(!self.body.contains(text), "{text:?} is in\n{}", self.body);
        self
    }

    fn is(&self, status: StatusCode) -> &Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }

    fn redirect(&self) -> &str {
        self.is(StatusCode::SEE_OTHER);
        self.headers[LOCATION].to_str().unwrap()
    }
}

impl TestConsole {
    fn new() -> Self {
        let clock = ManualClock::default();
        let store = Memory::new(Arc::new(clock.clone()));
        let counts = Counts::default();
        let fail_reveal = Arc::new(AtomicBool::new(false));
        let failing = FailingReveal {
            inner: store.clone(),
            fail: Arc::clone(&fail_reveal),
        };
        let reconcilers = Reconcilers::new(failing.clone())
            .poll_with("pay", Schedule::default(), Provider)
            .unwrap();
        let layer = unrouted(failing.clone());
        let api = Api {
            layer: Arc::clone(&layer),
            store: failing,
            reconcilers,
            events: Events::default(),
            key_hasher: None,
            counts: counts.clone(),
        };
        let recorder = telemetry::recorder().unwrap();
        let router = admin::router(
            Access::Tokens {
                operator: OPERATOR.parse().unwrap(),
                viewer: Some(VIEWER.parse().unwrap()),
                secure_cookie: false,
            },
            || async { Ok(Vec::new()) },
            recorder.handle(),
            api,
            store.clone(),
        );
        Self {
            store,
            layer,
            counts,
            fail_reveal,
            clock,
            router,
        }
    }

    /// Reloads the configuration with these routes.
    fn reload(&self, add_routes: impl FnOnce(Routes) -> Routes) {
        let layer = self.layer.load().with_new_rules(|_| None::<&str>);
        self.layer.store(Arc::new(add_routes(layer)));
    }

    fn rename(&self, operation: &str, was: &str) {
        self.reload(|layer| {
            layer.route("POST /payments", |route| {
                route.operation(operation).was(was)
            })
        });
    }

    async fn send(
        &self,
        role: Role,
        method: Method,
        path: &str,
        form: Option<String>,
    ) -> TestResponse {
        let peer: SocketAddr = "127.0.0.1:5000".parse().unwrap();
        let token = match role {
            Role::Operator => OPERATOR,
            Role::Viewer => VIEWER,
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "127.0.0.1:8081")
            .header("accept", "text/html")
            .header("authorization", format!("Bearer {token}"))
            .extension(Peer::new(peer, false));
        if form.is_some() {
            request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        let request = request
            .body(form.map_or_else(Body::empty, Body::from))
            .unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        TestResponse {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    async fn get(&self, path: &str) -> TestResponse {
        self.send(Role::Operator, Method::GET, path, None).await
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> TestResponse {
        let form = Some(form(fields));
        self.send(Role::Operator, Method::POST, path, form).await
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

    /// A dead-lettered record with one provider answer.
    async fn dead_letter(&self, key: &str) -> Fence {
        let fence = self.grant("acme", "pay", key).await;
        let code = "execution_timed_out".into();
        self.store.mark_unknown(fence, code, None).await.unwrap();
        let resolve = Resolve {
            fence,
            verdict: Verdict::StillUnknown("poll_status_404".into(), self.clock.now()),
            by: Actor::from("reconciler"),
            evidence: Some(Bytes::from_static(b"404 <i>not</i> there")),
        };
        self.store.resolve(resolve).await.unwrap();
        let code = "reconcile_attempts_exhausted".into();
        self.store.dead_letter(fence, code).await.unwrap();
        fence
    }

    async fn transitions(&self, id: OperationId) -> Vec<EntryKind> {
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
            schema_version: 3,
        },
        resource: None,
    }
}

fn id_tail(fence: Fence) -> String {
    let id = fence.id.to_string();
    id[id.len() - 6..].to_owned()
}

#[tokio::test]
async fn every_page_renders_for_an_empty_store() {
    let console = TestConsole::new();
    for (path, message) in [
        ("/", "Not counted yet"),
        ("/operations", "No records yet"),
        ("/dead-letters", "No dead letters."),
        ("/misuse", "No key misuse."),
        ("/outbox", "No dead-lettered events."),
    ] {
        let page = console.get(path).await;
        page.is(StatusCode::OK)
            .has(message)
            .has("aria-current=\"page\"")
            .has("Skip to content");
        assert_eq!(page.headers[CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!(page.headers[CACHE_CONTROL], "no-store", "{path}");
    }
    let nothing = console.get("/nothing").await;
    nothing.is(StatusCode::NOT_FOUND).has("Page not found");
    let id = OperationId::generate();
    for path in [format!("/operations/{id}"), "/operations/1".to_owned()] {
        let missing = console.get(&path).await;
        missing
            .is(StatusCode::NOT_FOUND)
            .has("Record not found")
            .has("<nav");
    }
}

#[tokio::test]
async fn the_overview_shows_statistics_and_serves_its_live_fragment() {
    let console = TestConsole::new();
    console.grant("acme", "pay", "runs").await;
    console.dead_letter("lost").await;
    let now = console.clock.now();
    let line = |operation: &str, created| Activity {
        at: interval_start(now),
        operation: operation.into(),
        decisions: DecisionCounts {
            created,
            ..DecisionCounts::default()
        },
    };
    console
        .store
        .add_counts(vec![line("pay", 1200), line("refund", 34)], vec![])
        .await
        .unwrap();
    let record_counts = RecordCounts {
        began_at: now,
        ended_at: now,
        counts: vec![RecordCount {
            operation: "pay".into(),
            status: Status::Completed,
            count: 5_000_000,
        }],
        all_callers: true,
    };
    console
        .store
        .publish_record_counts(record_counts)
        .await
        .unwrap();
    console.clock.advance(Duration::from_secs(40));
    let page = console.get("/").await;
    page.is(StatusCode::OK)
        .has("counted 40 s ago")
        .has("5,000,000")
        .has("1,234</strong><span>in 15 min")
        .has("role=\"img\"")
        .has("need an operator; oldest 40 s")
        .has("data-live=\"/fragments/overview\"");
    let only = console.get("/?operation=refund").await;
    only.is(StatusCode::OK)
        .has("<strong>34</strong><span>in 15 min")
        .lacks("1,234");
    let fragment = console.get("/fragments/overview?operation=pay").await;
    fragment
        .is(StatusCode::OK)
        .has("1,200")
        .lacks("<html")
        .lacks("<nav");
}

#[tokio::test]
async fn pages_cover_all_records_exactly_once() {
    let console = TestConsole::new();
    let mut all = BTreeSet::new();
    for number in 0..133 {
        let fence = console.grant("acme", "pay", &format!("key-{number}")).await;
        all.insert(fence.id.to_string());
    }
    let (mut path, mut seen) = ("/operations".to_owned(), Vec::new());
    loop {
        let page = console.get(&path).await;
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
async fn a_key_is_found_across_tenants_and_an_id_opens_its_record() {
    let console = TestConsole::new();
    let mut wanted = Vec::new();
    for tenant in ["acme", "globex"] {
        wanted.push(console.completed(tenant, "order-1", "x").await);
        console.completed(tenant, "order-2", "x").await;
    }
    let caller = |tenant: &str| Caller {
        scope: KeyScope::Operation,
        tenant: tenant.into(),
        operation: "pay".into(),
    };
    console
        .store
        .record_callers(vec![caller("acme")])
        .await
        .unwrap();
    let found = console.get("/operations?key=order-1").await;
    found.is(StatusCode::OK);
    for fence in &wanted {
        let times = found
            .body
            .matches(&format!("href=\"/operations/{}\"", fence.id))
            .count();
        assert_eq!(times, 1, "once, by index or by scan");
    }
    found.lacks("order-2");
    let other = console.get("/operations?key=order-1&tenant=globex").await;
    other
        .lacks(&wanted[0].id.to_string())
        .has(&wanted[1].id.to_string());
    let none = console.get("/operations?key=order-1&status=unknown").await;
    none.has("No match. Keys must match exactly.");

    let id = wanted[0].id;
    let opened = console.get(&format!("/operations?id=%20{id}")).await;
    assert_eq!(opened.redirect(), format!("/operations/{id}"));
    let missing = console
        .get(&format!("/operations?id={}", OperationId::generate()))
        .await;
    missing
        .is(StatusCode::NOT_FOUND)
        .has("No record has that id");
    let no_id = console.get("/operations?id=order-1").await;
    no_id.is(StatusCode::BAD_REQUEST).has("Invalid record ID");
    for wrong in [
        "status=lost",
        "cursor=1",
        "dead_lettered=perhaps",
        "key=%00",
    ] {
        let refused = console.get(&format!("/operations?{wrong}")).await;
        refused.is(StatusCode::BAD_REQUEST).has("role=\"alert\"");
    }
}

/// Untrusted text is escaped, and its control characters are visible.
#[tokio::test]
async fn hostile_data_is_escaped_on_every_page() {
    let console = TestConsole::new();
    let evil = "<script>alert(1)</script>\u{1b}[31m\u{202e}\"'";
    let key = "<script>alert('k')</script>";
    let fence = console.grant(evil, evil, key).await;
    console.store.complete(fence, paid(evil)).await.unwrap();
    let letter = console
        .grant(evil, evil, "<img src=x onerror=alert(1)>")
        .await;
    console
        .store
        .mark_unknown(letter, "<b>code".into(), None)
        .await
        .unwrap();
    let resolve = Resolve {
        fence: letter,
        verdict: Verdict::StillUnknown("<b>code".into(), console.clock.now()),
        by: Actor::person(evil, evil),
        evidence: Some(Bytes::from(evil)),
    };
    console.store.resolve(resolve).await.unwrap();
    console
        .store
        .dead_letter(letter, "<b>code".into())
        .await
        .unwrap();
    let now = console.clock.now();
    let misuse = Misuse {
        tenant: evil.into(),
        operation: evil.into(),
        count: 3,
        first_at: now,
        last_at: now,
        last_id: fence.id,
    };
    let line = Activity {
        at: interval_start(now),
        operation: evil.into(),
        decisions: DecisionCounts {
            misuse: 3,
            ..DecisionCounts::default()
        },
    };
    let counted = console.store.add_counts(vec![line], vec![misuse]);
    counted.await.unwrap();
    let event = Event::new("<b>kind</b>", "<script>/1", &b"{}"[..]).unwrap();
    console.store.publish(event);
    let waiting = console
        .store
        .claim_events("relay".into(), Duration::from_secs(9), 9);
    for waiting in waiting.await.unwrap() {
        console
            .store
            .dead_letter_event(waiting.event.id, evil)
            .await
            .unwrap();
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
        pages.push((path.clone(), console.get(&path).await));
    }
    let path = format!("/operations/{}/reveal", fence.id);
    pages.push((path.clone(), console.post(&path, &[]).await));
    let wrong = [
        ("verdict", "completed"),
        ("attempt", "1"),
        ("status", evil),
        ("body", evil),
        ("reason", evil),
    ];
    let path = format!("/operations/{}/decide", letter.id);
    let refused = console.post(&path, &wrong).await;
    refused.is(StatusCode::UNPROCESSABLE_ENTITY);
    for (path, page) in &pages {
        page.is(StatusCode::OK);
        let shown = page.body.contains("&#60;script&#62;") && page.body.contains("␛[31m⟦U+202E⟧");
        assert!(shown, "{path} does not show it:\n{}", page.body);
    }
    pages.push((path, refused));
    for (path, page) in &pages {
        for active in ["<script>", "<img src=x", "<b>"] {
            assert!(!page.body.contains(active), "{active:?} is on {path}");
        }
        let text = without_fields(&page.body);
        for active in ["\u{1b}", "\u{202e}"] {
            assert!(!text.contains(active), "{active:?} is on {path}");
        }
    }
}

/// A page without the values of its fields, which return what was typed.
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
async fn a_viewer_sees_no_actions_and_gets_403_for_each() {
    let console = TestConsole::new();
    let done = console.completed("acme", "done", "secret-body").await;
    let letter = console.dead_letter("lost").await;
    for path in [
        "/".to_owned(),
        "/dead-letters".to_owned(),
        "/outbox".to_owned(),
        format!("/operations/{}", done.id),
        format!("/operations/{}", letter.id),
    ] {
        let page = console.send(Role::Viewer, Method::GET, &path, None).await;
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
        let refused = console
            .send(Role::Viewer, Method::POST, &path, Some(form(&fields)))
            .await;
        refused
            .is(StatusCode::FORBIDDEN)
            .lacks("secret-body")
            .has("<nav");
    }
    let page = format!("/operations/{}/decide", letter.id);
    console
        .send(Role::Viewer, Method::GET, &page, None)
        .await
        .is(StatusCode::FORBIDDEN);
    assert_eq!(console.transitions(done.id).await, []);
    assert_eq!(console.status(letter).await, Status::Unknown);
}

#[tokio::test]
async fn a_body_is_revealed_only_after_the_history_lists_it() {
    let console = TestConsole::new();
    let done = console.completed("acme", "done", "secret-body").await;
    let page = console.get(&format!("/operations/{}", done.id)).await;
    page.has("Schema version");
    page.has("body of 11 bytes")
        .has("Reveal 11 bytes")
        .lacks("secret-body");

    let path = format!("/operations/{}/reveal", done.id);
    console.fail_reveal.store(true, Ordering::SeqCst);
    let refused = console.post(&path, &[]).await;
    refused
        .is(StatusCode::SERVICE_UNAVAILABLE)
        .has("the disk is full")
        .lacks("secret-body");
    assert_eq!(console.transitions(done.id).await, []);

    console.fail_reveal.store(false, Ordering::SeqCst);
    let shown = console.post(&path, &[]).await;
    shown
        .is(StatusCode::OK)
        .has("secret-body")
        .has("Response revealed")
        .has("History intact");
    assert_eq!(console.transitions(done.id).await, [EntryKind::Revealed]);
    let entries = console.store.history(done.id).await.unwrap();
    assert_eq!(&*entries[0].note.actor, "operator");
    let record = console.store.find(done.id).await.unwrap().unwrap();
    assert_eq!(history::verify(&record, &entries), Ok(()));
    // Only the form reveals it.
    console
        .get(&format!("/operations/{}", done.id))
        .await
        .lacks("secret-body");
    console.get(&path).await.is(StatusCode::METHOD_NOT_ALLOWED);

    // The API follows the same rule.
    let path = format!("/api/v1/operations/{}?reveal=true", done.id);
    console.fail_reveal.store(true, Ordering::SeqCst);
    let refused = console.get(&path).await;
    refused
        .is(StatusCode::SERVICE_UNAVAILABLE)
        .lacks("secret-body");
    console.fail_reveal.store(false, Ordering::SeqCst);
    let viewer = console.send(Role::Viewer, Method::GET, &path, None).await;
    viewer.is(StatusCode::FORBIDDEN).lacks("secret-body");
    assert_eq!(console.transitions(done.id).await, [EntryKind::Revealed]);
    console
        .get(&path)
        .await
        .is(StatusCode::OK)
        .has("secret-body")
        .has("\"history_intact\":true");
    assert_eq!(
        console.transitions(done.id).await,
        [EntryKind::Revealed, EntryKind::Revealed]
    );

    let letter = console.dead_letter("lost").await;
    let none = console
        .post(&format!("/operations/{}/reveal", letter.id), &[])
        .await;
    none.is(StatusCode::CONFLICT).has("only a completed record");
}

#[tokio::test]
async fn a_long_body_is_truncated() {
    let console = TestConsole::new();
    let long = "é".repeat(40_000);
    let done = console.completed("acme", "long", &long).await;
    let shown = console
        .post(&format!("/operations/{}/reveal", done.id), &[])
        .await;
    shown
        .has("80,000 bytes")
        .has("Only the first 64 KiB")
        .lacks("Not valid UTF-8");
    assert!(shown.body.matches('é').count() < 33_000);
}

#[tokio::test]
async fn an_operators_response_has_the_schema_of_the_route() {
    for (operation, schema) in [("pay", 3), ("POST /payments", 4), ("POST /else", 0)] {
        let console = TestConsole::new();
        console.reload(|layer| {
            layer
                .route("POST /pay", |route| {
                    route.operation("charge").was("pay").schema(3)
                })
                .route("POST /{any}", |route| route.schema(4))
                .route("POST /else", |route| route)
        });
        let fence = console.grant("acme", operation, "k").await;
        let lost = console.store.mark_unknown(fence, "timeout".into(), None);
        lost.await.unwrap();
        let confirm = id_tail(fence);
        let fields = [
            ("verdict", "completed"),
            ("attempt", "1"),
            ("status", "201"),
            ("content_type", "text/plain"),
            ("body", "paid"),
            ("reason", "the provider has ch_1"),
            ("confirm", &confirm),
        ];
        let path = format!("/operations/{}/decide", fence.id);
        console.post(&path, &fields).await.is(StatusCode::SEE_OTHER);
        let shown = console
            .get(&format!("/api/v1/operations/{}", fence.id))
            .await;
        shown.has(&format!("\"schema_version\":{schema},"));
    }
}

#[tokio::test]
async fn a_typed_outcome_is_stored_verbatim() {
    let console = TestConsole::new();
    let letter = console.dead_letter("lost").await;
    let page = console.get("/dead-letters").await;
    page.has("All configured reconcile attempts are used up")
        .has("took longer than upstream_timeout")
        .has("404 &#60;i&#62;not&#60;/i&#62; there")
        .has(&format!("/operations/{}/decide", letter.id));
    let path = format!("/operations/{}/decide", letter.id);
    console
        .get(&path)
        .await
        .is(StatusCode::OK)
        .has("If the effect did happen, the next retry causes it again.")
        .has("name=\"attempt\" value=\"1\"");

    let confirm = id_tail(letter);
    let valid = [
        ("verdict", "completed"),
        ("attempt", "1"),
        ("status", "201"),
        ("content_type", "application/json"),
        ("body", "{\r\n\"id\": 9007199254740993}"),
        ("reason", "the provider has ch_1"),
        ("confirm", &confirm),
    ];
    for (field, wrong, message) in [
        ("verdict", "perhaps", "one of the two"),
        ("attempt", "", "does not name an attempt"),
        ("status", "99", "from 200 to 599"),
        ("status", "x", "from 200 to 599"),
        ("body", "{", "not valid JSON"),
        ("content_type", "text\r\nx: y", "invalid value of header"),
        ("reason", "  ", "Enter a reason"),
        ("confirm", "000000x", "last 6 characters"),
    ] {
        let fields = valid.map(|(name, value)| (name, if name == field { wrong } else { value }));
        let refused = console.post(&path, &fields).await;
        refused
            .is(StatusCode::UNPROCESSABLE_ENTITY)
            .has(message)
            .has("role=\"alert\"");
        assert_eq!(
            console.status(letter).await,
            Status::Unknown,
            "{field}={wrong}"
        );
    }
    let decided = console.post(&path, &valid).await;
    let location = decided.redirect().to_owned();
    console
        .get(&location)
        .await
        .is(StatusCode::OK)
        .has("Recorded.")
        .has("the provider has ch_1");
    let record = console.store.find(letter.id).await.unwrap().unwrap();
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
    // A second decision conflicts.
    let again = console.post(&path, &valid).await;
    again.is(StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_release_requires_the_phrase_and_a_stale_page_gets_409() {
    let console = TestConsole::new();
    let letter = console.dead_letter("lost").await;
    let path = format!("/operations/{}/decide", letter.id);
    let confirm = id_tail(letter);
    let valid = [
        ("verdict", "not_executed"),
        ("attempt", "1"),
        ("reason", "ticket 4711"),
        ("confirm", &confirm),
        ("phrase", "it did not happen"),
    ];
    for (field, wrong, message) in [
        ("phrase", "it happened", "it did not happen"),
        ("phrase", "", "it did not happen"),
        ("confirm", "", "last 6 characters"),
        ("reason", "", "Enter a reason"),
    ] {
        let fields = valid.map(|(name, value)| (name, if name == field { wrong } else { value }));
        console
            .post(&path, &fields)
            .await
            .is(StatusCode::UNPROCESSABLE_ENTITY)
            .has(message);
        assert_eq!(
            console.status(letter).await,
            Status::Unknown,
            "{field}={wrong}"
        );
    }
    let released = console.post(&path, &valid).await;
    assert!(released.redirect().ends_with("?done=released"));
    assert_eq!(console.status(letter).await, Status::FailedRetryable);

    // The client retries and the second attempt becomes unknown; the open page shows the first.
    let again = console.grant("acme", "pay", "lost").await;
    assert_eq!((again.id, again.attempt), (letter.id, 2));
    console
        .store
        .mark_unknown(again, "execution_timed_out".into(), None)
        .await
        .unwrap();
    let stale = console.post(&path, &valid).await;
    stale
        .is(StatusCode::CONFLICT)
        .has("another attempt than the current one (2)")
        .has("Nothing was changed");
    assert_eq!(console.status(letter).await, Status::Unknown);
}

#[tokio::test]
async fn reconcile_and_erase_work_by_form() {
    let console = TestConsole::new();
    let letter = console.dead_letter("lost").await;
    let asked = console
        .post(&format!("/operations/{}/reconcile", letter.id), &[])
        .await;
    let location = asked.redirect().to_owned();
    let page = console.get(&location).await;
    page.has("Still unknown")
        .has("GET &#60;b&#62;psp&#60;/b&#62; → ␛[31m503")
        .has("operator");

    let done = console.completed("acme", "done", "secret-body").await;
    let path = format!("/operations/{}/erase", done.id);
    let confirm = id_tail(done);
    for fields in [
        [("reason", ""), ("confirm", &*confirm)],
        [("reason", "gdpr"), ("confirm", "no")],
    ] {
        console
            .post(&path, &fields)
            .await
            .is(StatusCode::UNPROCESSABLE_ENTITY);
    }
    let erased = console
        .post(&path, &[("reason", "gdpr"), ("confirm", &confirm)])
        .await;
    let location = erased.redirect().to_owned();
    console
        .get(&location)
        .await
        .has("Erased.")
        .has("no body stored")
        .has("gdpr")
        .lacks("Reveal");
    assert_eq!(console.transitions(done.id).await, [EntryKind::Erased]);
    let conflict = console
        .post(
            &format!("/operations/{}/erase", letter.id),
            &[("reason", "r"), ("confirm", &id_tail(letter))],
        )
        .await;
    conflict.is(StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_dead_lettered_event_is_queued_again() {
    let console = TestConsole::new();
    let event = Event::new("payment.created", "payment/1", &b"{}"[..]).unwrap();
    let id = event.id;
    console.store.publish(event);
    console
        .store
        .claim_events("relay".into(), Duration::from_secs(9), 9)
        .await
        .unwrap();
    console
        .store
        .dead_letter_event(id, "no stream")
        .await
        .unwrap();
    console
        .get("/outbox")
        .await
        .has("no stream")
        .has("Publish again")
        .lacks("{}");
    let revived = console.post(&format!("/outbox/{id}/retry"), &[]).await;
    assert_eq!(revived.redirect(), "/outbox");
    assert_eq!(console.store.outbox_backlog().await.unwrap().dead, 0);
    let again = console.post(&format!("/outbox/{id}/retry"), &[]).await;
    again.is(StatusCode::NOT_FOUND).has("Event not found");
}

#[tokio::test]
async fn the_misuse_page_lists_weak_keys() {
    let console = TestConsole::new();
    assert!(!console.get("/misuse").await.body.contains("Weak keys"));
    for (operation, reason, count) in [("pay", "card_number", 1200), ("<b>", "email", 1)] {
        let counted = console.counts.weak_key_count(operation, reason);
        counted.fetch_add(count, Ordering::Relaxed);
    }
    let page = console.get("/misuse").await;
    for part in [
        "Weak keys",
        "card number",
        "1,200",
        "e-mail address",
        "&#60;b&#62;",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
}

#[tokio::test]
async fn misuse_lists_tenants_with_their_share() {
    let console = TestConsole::new();
    let record = console.completed("acme", "done", "x").await;
    let now = console.clock.now();
    let misuse = |tenant: &str, count| Misuse {
        tenant: tenant.into(),
        operation: "pay".into(),
        count,
        first_at: now,
        last_at: now,
        last_id: record.id,
    };
    let misuses = vec![misuse("globex", 1500), misuse("acme", 500)];
    console.store.add_counts(vec![], misuses).await.unwrap();
    let page = console.get("/misuse").await;
    page.has("2,000 refused, 2 tenants")
        .has("1,500")
        .has("75 %")
        .has("25 %")
        .has(&format!("/operations/{}", record.id));
    let api = console.get("/api/v1/misuse?limit=1").await;
    api.is(StatusCode::OK).has("\"count\":500").lacks("globex");
    console
        .get("/api/v1/misuse?limit=0")
        .await
        .is(StatusCode::BAD_REQUEST);
}

/// Every page and every answer of the API has the new name, and both names are filters.
#[tokio::test]
async fn renamed_operation_is_shown_and_found_by_its_new_name() {
    let console = TestConsole::new();
    let record = console.completed("acme", "done", "x").await;
    let letter = console.dead_letter("lost").await;
    let now = console.clock.now();
    let line = |operation: &str| Activity {
        at: interval_start(now),
        operation: operation.into(),
        decisions: DecisionCounts {
            created: 600,
            ..DecisionCounts::default()
        },
    };
    let misuse = Misuse {
        tenant: "acme".into(),
        operation: "pay".into(),
        count: 1,
        first_at: now,
        last_at: now,
        last_id: record.id,
    };
    // An old and a new gateway count it under both names.
    let activity = vec![line("pay"), line("charge")];
    let counted = console.store.add_counts(activity, vec![misuse]).await;
    counted.unwrap();
    let counts = RecordCounts {
        began_at: now,
        ended_at: now,
        counts: vec![RecordCount {
            operation: "pay".into(),
            status: Status::Completed,
            count: 7,
        }],
        all_callers: true,
    };
    console.store.publish_record_counts(counts).await.unwrap();
    for operation in ["pay", "charge"] {
        let counted = console.counts.weak_key_count(operation, "email");
        counted.fetch_add(1, Ordering::Relaxed);
    }
    let old_link = format!("/operations/{}", record.id);
    console.get(&old_link).await.has(">pay<");

    console.rename("charge", "pay");
    for path in [
        "/",
        "/fragments/overview?operation=pay",
        "/?operation=charge",
        "/operations",
        "/operations?operation=charge",
        "/dead-letters",
        "/misuse",
        &old_link,
        &format!("/operations/{}", letter.id),
        &format!("/operations/{}/decide", letter.id),
        "/api/v1/operations",
        &format!("/api/v1/operations/{}", record.id),
        "/api/v1/stats",
        "/api/v1/activity",
        "/api/v1/misuse",
    ] {
        let page = console.get(path).await;
        page.is(StatusCode::OK).has("charge");
        let shows_old = [">pay<", "\"pay\"", "operation=pay"].map(|old| page.body.contains(old));
        assert_eq!(shows_old, [false; 3], "{path}: {}", page.body);
    }
    for name in ["charge", "pay"] {
        for filter in ["", "&key=done&tenant=acme"] {
            let path = format!("/api/v1/operations?operation={name}{filter}");
            let found = console.get(&path).await;
            found.has(&record.id.to_string()).has("\"charge\"");
        }
        let path = format!("/operations?operation={name}");
        console.get(&path).await.has(&record.id.to_string());
        let overview = console.get(&format!("/?operation={name}")).await;
        overview.has("<strong>1,200</strong><span>in 15 min");
    }
    console
        .get("/api/v1/activity")
        .await
        .has("\"created\":1200")
        .lacks("\"created\":600");
    console.get("/misuse").await.has("<td class=\"num\">2</td>");
    // Reconcilers know it by its stored name.
    let page = console.get(&format!("/operations/{}", letter.id)).await;
    page.has(&format!("action=\"/operations/{}/reconcile\"", letter.id));

    // The next configuration takes it back.
    console.rename("pay", "pay");
    console.get(&old_link).await.has(">pay<").lacks("charge");
}

#[tokio::test]
async fn statistics_are_in_the_api() {
    let console = TestConsole::new();
    let now = console.clock.now();
    let decisions = DecisionCounts {
        created: 120,
        failed: 6,
        ..DecisionCounts::default()
    };
    let line = Activity {
        at: interval_start(now),
        operation: "pay".into(),
        decisions,
    };
    console.store.add_counts(vec![line], vec![]).await.unwrap();
    let stats = console.get("/api/v1/stats").await;
    stats
        .is(StatusCode::OK)
        .has("\"counts\":[]")
        .has("\"counted_at\":null")
        .has("\"created\":2.0")
        .has("\"store_errors\":0.1");
    let activity = console.get("/api/v1/activity").await;
    activity
        .has("\"stretch_seconds\":10")
        .has("\"created\":120");
    for wrong in ["0", "61", "x", "-1"] {
        let refused = console
            .get(&format!("/api/v1/activity?minutes={wrong}"))
            .await;
        refused.is(StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn assets_are_named_by_their_hash_and_immutable() {
    let console = TestConsole::new();
    let page = console.get("/").await;
    for (start, kind) in [
        ("href=\"/assets/console-", "text/css"),
        ("src=\"/assets/console-", "text/javascript"),
    ] {
        let rest = page.body.split(start).nth(1).unwrap();
        let name = rest.split('"').next().unwrap();
        let path = format!("/assets/console-{name}");
        let asset = console.get(&path).await;
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
            .extension(Peer::new(peer, false))
            .body(Body::empty())
            .unwrap();
        let same = console.router.clone().oneshot(request).await.unwrap();
        assert_eq!(same.status(), StatusCode::NOT_MODIFIED);
    }
    console
        .get("/assets/console-0000000000000000.css")
        .await
        .is(StatusCode::NOT_FOUND);
}

/// The content security policy forbids inline styles and scripts; `safe` would disable escaping.
#[test]
fn templates_have_no_inline_code_and_every_form_a_csrf_token() {
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
        // Every POST form carries the CSRF token, except the login.
        for form in template.split("method=\"post\"").skip(1) {
            let form = form.split("</form>").next().unwrap();
            let guarded = form.contains("m::csrf(") || form.starts_with(" action=\"/login\"");
            assert!(guarded, "a form without its token in {}", path.display());
        }
        checked += 1;
    }
    assert!(checked >= 10, "{checked} templates");
}

#[tokio::test]
async fn dead_letters_are_listed_oldest_first_with_their_total() {
    let console = TestConsole::new();
    let mut expected = Vec::new();
    for number in 0..60 {
        expected.push(console.dead_letter(&format!("lost-{number}")).await.id);
        console.clock.advance(Duration::from_secs(1));
    }
    let mut seen = Vec::new();
    let mut path = "/dead-letters".to_owned();
    for page in 0..3 {
        let shown = console.get(&path).await;
        shown
            .is(StatusCode::OK)
            .has("60 in total, oldest record first");
        let links = shown.body.split("<h2><a href=\"/operations/").skip(1);
        seen.extend(links.map(|link| link[..36].parse::<OperationId>().unwrap()));
        assert_eq!(shown.body.contains(">Oldest</a>"), page > 0);
        let next = shown.body.split("rel=\"next\" href=\"").nth(1);
        assert_eq!(next.is_some(), page < 2);
        if let Some(next) = next {
            path = next.split('"').next().unwrap().to_owned();
        }
    }
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn the_usual_status_of_the_operation_is_prefilled() {
    let console = TestConsole::new();
    let letter = console.dead_letter("lost").await;
    let path = format!("/operations/{}/decide", letter.id);
    let prefilled = |status| format!("required value=\"{status}\" class=\"code short\"");
    console.get(&path).await.has(&prefilled(200));
    for key in ["a", "b"] {
        console.completed("acme", key, "paid").await;
    }
    // One decline does not make it usual, and other operations do not count.
    for (operation, key) in [
        ("pay", "c"),
        ("refund", "d"),
        ("refund", "e"),
        ("refund", "f"),
    ] {
        let fence = console.grant("acme", operation, key).await;
        let mut completion = paid("declined");
        completion.response.status = 402;
        console.store.complete(fence, completion).await.unwrap();
    }
    console.get(&path).await.has(&prefilled(201));
    // What the operator typed stays.
    let confirm = id_tail(letter);
    let fields = [
        ("verdict", "completed"),
        ("attempt", "1"),
        ("status", "202"),
        ("body", "{"),
        ("content_type", "application/json"),
        ("reason", "r"),
        ("confirm", &confirm),
    ];
    let refused = console.post(&path, &fields).await;
    refused
        .is(StatusCode::UNPROCESSABLE_ENTITY)
        .has(&prefilled(202));
}

#[tokio::test]
async fn an_operation_that_no_process_reconciles_is_shown() {
    const TEXT: &str = "No process reconciles this operation";
    let console = TestConsole::new();
    let fence = console.grant("acme", "refund", "lost").await;
    let code = "execution_timed_out".into();
    let held = console.store.mark_unknown(fence, code, None);
    held.await.unwrap();
    let record = format!("/operations/{}", fence.id);
    for path in ["/", "/fragments/overview", &record] {
        console.get(path).await.is(StatusCode::OK).lacks(TEXT);
    }
    console.clock.advance(Duration::from_mins(12));
    for path in ["/", "/fragments/overview", &record] {
        console.get(path).await.has(TEXT).has("due for 12 min");
    }
    console.get("/?operation=refund").await.has(TEXT);
    console.get("/?operation=pay").await.lacks(TEXT);

    // A process claims it: then one does.
    let backoff = Schedule::default().backoff();
    let filter = OperationFilter::Only("refund".into());
    let claimed = console.store.claim_due(filter, backoff, 1).await.unwrap();
    assert_eq!(claimed.len(), 1);
    for path in ["/", &record] {
        console.get(path).await.lacks(TEXT);
    }
    console
        .store
        .dead_letter(fence, "given_up".into())
        .await
        .unwrap();
    console.clock.advance(Duration::from_hours(1));
    for path in ["/", &record] {
        console.get(path).await.lacks(TEXT);
    }
}

#[tokio::test]
async fn figures_of_different_age_say_how_old_they_are() {
    let console = TestConsole::new();
    let page = console.get("/").await;
    page.has("Now: read from the store at")
        .has("the last one incomplete")
        .has("not counted yet");
    let now = console.clock.now();
    let counts = RecordCounts {
        began_at: now,
        ended_at: now,
        counts: Vec::new(),
        all_callers: true,
    };
    console.store.publish_record_counts(counts).await.unwrap();
    console.clock.advance(Duration::from_mins(3));
    let page = console.get("/").await;
    page.has("counted 3 min 0 s ago")
        .has("the tiles above are newer");
}

#[tokio::test]
async fn the_status_is_the_second_column_of_the_records() {
    let console = TestConsole::new();
    console.completed("acme", "k", "paid").await;
    let page = console.get("/operations").await;
    page.has("<th scope=\"col\">Record</th><th scope=\"col\">Status</th>");
    let row = page.body.split("<tbody>").nth(1).unwrap();
    assert!(
        row.find("class=\"badge").unwrap() < row.find("<time").unwrap(),
        "{row}"
    );
}

#[tokio::test]
async fn the_page_of_an_error_code_needs_no_token() {
    let console = TestConsole::new();
    let missing = console.get("/api/v1/operations/x").await;
    let problem: serde_json::Value = serde_json::from_str(&missing.body).unwrap();
    let page = problem["type"].as_str().unwrap();
    assert_eq!(page, "/.semel/errors/admin_operation_not_found");
    let request = Request::get(page)
        .header("host", "127.0.0.1:8081")
        .extension(Peer::new("127.0.0.1:5000".parse().unwrap(), false))
        .body(Body::empty())
        .unwrap();
    let response = console.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
    let none = console.get("/.semel/errors/no_such_code").await;
    none.is(StatusCode::NOT_FOUND);
}
