//! Authentication, roles, sessions and CSRF protection of the admin listener.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use semel_core::key::KeyHasher;
use semel_core::outbox::Event;
use semel_core::{
    Completion, Decision, Fence, Fingerprint, Identity, Key, Memory, OperationId, Policy, Reserve,
    Response, Store as _,
};
use semel_gateway::activity::Counts;
use semel_gateway::admin::{Access, Api};
use semel_gateway::observed::Events;
use semel_gateway::server::Peer;
use semel_gateway::{admin, telemetry};
use semel_testkit::ManualClock;
use semel_worker::Reconcilers;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::support::unrouted;

const OPERATOR: &str = "the-token-of-operators";
const VIEWER: &str = "the-token-of-viewers";
const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";

struct Fixture {
    clock: ManualClock,
    store: Memory,
    router: axum::Router,
}

struct TestResponse {
    status: u16,
    headers: http::HeaderMap,
    text: String,
}

impl TestResponse {
    fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }

    fn code(&self) -> Value {
        let problem: Value = serde_json::from_str(&self.text).unwrap_or_default();
        problem["code"].clone()
    }

    /// `name=value` of the `Set-Cookie` header.
    fn cookie(&self) -> String {
        let line = self.header("set-cookie");
        line.split(';').next().unwrap().to_owned()
    }
}

fn tokens(secure_cookie: bool) -> Access {
    Access::Tokens {
        operator: OPERATOR.parse().unwrap(),
        viewer: Some(VIEWER.parse().unwrap()),
        secure_cookie,
    }
}

impl Fixture {
    fn new(access: Access) -> Self {
        Self::hashed(access, None)
    }

    fn hashed(access: Access, key_hasher: Option<KeyHasher>) -> Self {
        let clock = ManualClock::default();
        let store = Memory::new(Arc::new(clock.clone()));
        let api = Api {
            store: store.clone(),
            reconcilers: Reconcilers::new(store.clone()),
            events: Events::default(),
            key_hasher,
            counts: Counts::default(),
            layer: unrouted(store.clone()),
        };
        let recorder = telemetry::recorder().unwrap();
        let router = admin::router(
            access,
            || async { Ok(Vec::new()) },
            recorder.handle(),
            api,
            store.clone(),
        );
        Self {
            clock,
            store,
            router,
        }
    }

    fn with_tokens() -> Self {
        Self::new(tokens(false))
    }

    async fn send(&self, request: Request<Body>) -> TestResponse {
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        let stream = parts
            .headers
            .get("content-type")
            .is_some_and(|kind| kind == "text/event-stream");
        let text = if stream {
            String::new()
        } else {
            let body = body.collect().await.unwrap().to_bytes();
            String::from_utf8(body.to_vec()).unwrap()
        };
        TestResponse {
            status: parts.status.as_u16(),
            headers: parts.headers,
            text,
        }
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> TestResponse {
        let request = request(Method::GET, path, headers);
        self.send(request.body(Body::empty()).unwrap()).await
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> TestResponse {
        let request = request(Method::POST, path, headers);
        self.send(request.body(Body::from(body.to_owned())).unwrap())
            .await
    }

    async fn log_in(&self, token: &str, more: &str) -> TestResponse {
        let form = format!("token={token}{more}");
        self.post("/login", &[("content-type", FORM)], &form).await
    }

    /// The cookie and the CSRF token of a new session.
    async fn session(&self, token: &str, more: &str) -> (String, String) {
        let answer = self.log_in(token, more).await;
        assert_eq!(answer.status, 303, "{}", answer.text);
        let cookie = answer.cookie();
        let csrf = self.csrf(&cookie).await;
        (cookie, csrf)
    }

    /// The CSRF token in a page.
    async fn csrf(&self, cookie: &str) -> String {
        let page = self.get("/", &[("cookie", cookie)]).await;
        let (_, rest) = page.text.split_once("name=\"csrf\" ").expect(&page.text);
        rest.split('"').nth(1).unwrap().to_owned()
    }

    async fn grant(&self, key: &str) -> Fence {
        let request = Reserve {
            id: OperationId::generate(),
            identity: Identity::new("acme", "pay", Key::new(key).unwrap()).unwrap(),
            fingerprints: Fingerprint::of(&1).unwrap().into(),
            owner: "host/1".into(),
            policy: Policy::default(),
        };
        match self.store.reserve(request).await.unwrap() {
            Decision::Execute(grant) => grant.fence,
            other => panic!("{other:?}"),
        }
    }

    async fn unknown(&self, key: &str) -> Fence {
        let fence = self.grant(key).await;
        let marked = self.store.mark_unknown(fence, "timeout".into(), None);
        marked.await.unwrap();
        fence
    }
}

fn request(method: Method, path: &str, headers: &[(&str, &str)]) -> http::request::Builder {
    request_from("192.0.2.1:5000", method, path, headers)
}

fn request_from(
    peer: &str,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
) -> http::request::Builder {
    let peer: SocketAddr = peer.parse().unwrap();
    let request = Request::builder().method(method).uri(path);
    let mut request = request.extension(Peer::new(peer, false));
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "admin.example:8081");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// Every method and path of the `OpenAPI` document, with a generated id.
async fn documented(fixture: &Fixture) -> Vec<(Method, String, Value)> {
    let answer = fixture
        .get("/openapi.json", &[("authorization", &bearer(VIEWER))])
        .await;
    assert_eq!(answer.status, 200);
    let document: Value = serde_json::from_str(&answer.text).unwrap();
    let id = OperationId::generate().to_string();
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let method = method.to_uppercase().parse().unwrap();
            all.push((method, path.replace("{id}", &id), operation.clone()));
        }
    }
    assert!(all.len() >= 13, "{all:?}");
    all
}

#[tokio::test]
async fn without_credentials_everything_but_the_probes_is_401() {
    let fixture = Fixture::with_tokens();
    let mut requests = documented(&fixture).await;
    let open = |operation: &Value| operation["security"] == json!([{}]);
    let opened: Vec<_> = requests
        .iter()
        .filter(|(_, _, operation)| open(operation))
        .map(|(_, path, _)| path.clone())
        .collect();
    assert_eq!(opened, ["/healthz", "/readyz"]);
    for path in ["/", "/operations", "/nothing", "/api/v1/nothing", "/api"] {
        requests.push((Method::GET, path.to_owned(), Value::Null));
        requests.push((Method::POST, path.to_owned(), Value::Null));
        requests.push((Method::DELETE, path.to_owned(), Value::Null));
    }
    requests.push((Method::POST, "/logout".to_owned(), Value::Null));
    for (method, path, operation) in requests {
        let credentials: [&[(&str, &str)]; 5] = [
            &[],
            &[("accept", "text/html")],
            &[("cookie", "semel_session=00; a=b")],
            &[("cookie", "semel_session=")],
            &[("x-forwarded-for", "127.0.0.1"), ("host", "localhost")],
        ];
        for headers in credentials {
            let request = request(method.clone(), &path, headers);
            let answer = fixture.send(request.body(Body::empty()).unwrap()).await;
            let expected = if open(&operation) { 200 } else { 401 };
            assert_eq!(answer.status, expected, "{method} {path} {headers:?}");
            if expected == 401 {
                assert_eq!(answer.header("www-authenticate"), "Bearer", "{path}");
            }
        }
    }
    let page = fixture
        .get("/operations?status=unknown", &[("accept", "text/html,*/*")])
        .await;
    assert_eq!(page.status, 401);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert!(page.text.contains("action=\"/login\""), "{}", page.text);
    let next = "name=\"next\" value=\"/operations?status=unknown\"";
    assert!(page.text.contains(next), "{}", page.text);
    let api = fixture
        .get("/api/v1/stats", &[("accept", "text/html")])
        .await;
    assert_eq!(api.code(), "admin_unauthenticated");
    assert_eq!(api.header("content-type"), "application/problem+json");
}

#[tokio::test]
async fn every_documented_path_exists() {
    let fixture = Fixture::with_tokens();
    for (method, path, operation) in documented(&fixture).await {
        let headers = [
            ("authorization", &*bearer(OPERATOR)),
            ("content-type", JSON),
        ];
        let request = request(method.clone(), &path, &headers);
        let answer = fixture.send(request.body(Body::empty()).unwrap()).await;
        assert_ne!(answer.code(), "admin_nothing_here", "{method} {path}");
        assert_ne!(answer.status, 405, "{method} {path}");
        let answers = operation["responses"].as_object().unwrap();
        let status = answer.status.to_string();
        assert!(answers.contains_key(&status), "{method} {path}: {status}");
    }
    for (method, path, status) in [
        (Method::DELETE, "/api/v1/stats", 405),
        (Method::POST, "/metrics", 405),
        (Method::GET, "/api/v1/nothing", 404),
    ] {
        let request = request(method, path, &[("authorization", &bearer(OPERATOR))]);
        let answer = fixture.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.header("content-type"), "application/problem+json");
        assert_eq!(status == 405, !answer.header("allow").is_empty(), "{path}");
    }
}

#[tokio::test]
async fn a_viewer_reads_and_gets_403_for_actions() {
    let fixture = Fixture::with_tokens();
    let fence = fixture.unknown("key").await;
    let done = fixture.grant("done").await;
    let completion = Completion {
        response: Response {
            status: 201,
            headers: Vec::new(),
            body: Some("secret".into()),
            schema_version: 0,
        },
        resource: None,
    };
    fixture.store.complete(done, completion).await.unwrap();
    let event = Event::new("paid", "payment/1", "{}").unwrap();
    fixture.store.publish(event.clone());
    fixture
        .store
        .dead_letter_event(event.id, "400")
        .await
        .unwrap();
    let (cookie, csrf) = fixture.session(VIEWER, "&name=eve").await;
    let by_token = bearer(VIEWER);
    let logins: [&[(&str, &str)]; 2] = [
        &[("authorization", &by_token), ("content-type", JSON)],
        &[
            ("cookie", &cookie),
            ("x-semel-csrf", &csrf),
            ("content-type", JSON),
        ],
    ];
    for headers in logins {
        for path in [
            format!("/api/v1/operations/{}", done.id),
            "/api/v1/operations".to_owned(),
            "/api/v1/stats".to_owned(),
            "/api/v1/outbox".to_owned(),
            "/metrics".to_owned(),
            "/".to_owned(),
        ] {
            assert_eq!(fixture.get(&path, headers).await.status, 200, "{path}");
        }
        let reveal = format!("/api/v1/operations/{}?reveal=true", done.id);
        let revealed = fixture.get(&reveal, headers).await;
        assert_eq!(revealed.status, 403);
        assert_eq!(revealed.code(), "admin_not_an_operator");
        assert!(!revealed.text.contains("secret"));
        let body = r#"{"verdict":"not_executed","reason":"no"}"#;
        for path in [
            format!("/api/v1/operations/{}/resolve", fence.id),
            format!("/api/v1/operations/{}/reconcile", fence.id),
            format!("/api/v1/operations/{}/erase", done.id),
            format!("/api/v1/outbox/{}/retry", event.id),
        ] {
            let refused = fixture.post(&path, headers, body).await;
            assert_eq!(refused.status, 403, "{path}");
            assert_eq!(refused.code(), "admin_not_an_operator", "{path}");
        }
    }
    let record = fixture.store.find(fence.id).await.unwrap().unwrap();
    assert_eq!(record.state.status(), semel_core::Status::Unknown);
    assert_eq!(fixture.store.outbox_backlog().await.unwrap().dead, 1);
    let reveal = format!("/api/v1/operations/{}?reveal=true", done.id);
    let by_token = bearer(OPERATOR);
    let revealed = fixture.get(&reveal, &[("authorization", &by_token)]).await;
    assert!(revealed.text.contains("secret"), "{}", revealed.text);
}

/// The requests that a browser sends on behalf of another site, with the cookie.
#[tokio::test]
async fn a_cross_site_post_is_refused() {
    let fixture = Fixture::with_tokens();
    let fence = fixture.unknown("key").await;
    let (cookie, csrf) = fixture.session(OPERATOR, "").await;
    let (_, other) = fixture.session(OPERATOR, "").await;
    let resolve = format!("/api/v1/operations/{}/resolve", fence.id);
    let body = r#"{"verdict":"not_executed","reason":"checked"}"#;
    let by_cookie = ("cookie", &*cookie);
    let refused: [&[(&str, &str)]; 8] = [
        &[],
        &[("x-semel-csrf", "")],
        &[("x-semel-csrf", &other)],
        &[("x-semel-csrf", &csrf), ("sec-fetch-site", "cross-site")],
        &[("x-semel-csrf", &csrf), ("sec-fetch-site", "same-site")],
        &[("x-semel-csrf", &csrf), ("origin", "https://evil.example")],
        &[("x-semel-csrf", &csrf), ("origin", "null")],
        &[
            ("x-semel-csrf", &csrf),
            ("origin", "http://admin.example:80"),
        ],
    ];
    for more in refused {
        let headers = [&[by_cookie, ("content-type", JSON)], more].concat();
        let answer = fixture.post(&resolve, &headers, body).await;
        assert_eq!(answer.status, 403, "{more:?}");
        assert_eq!(answer.code(), "admin_cross_site", "{more:?}");
    }
    let wrong = format!("csrf={other}");
    let twice = format!("csrf={csrf}&csrf={csrf}");
    let right = format!("a=b&csrf={csrf}");
    let form = [by_cookie, ("content-type", FORM)];
    for body in ["", "csrf=", &wrong, &twice] {
        let answer = fixture.post("/logout", &form, body).await;
        assert_eq!(answer.status, 403, "{body}");
    }
    let elsewhere = [&form[..], &[("sec-fetch-site", "cross-site")]].concat();
    assert_eq!(
        fixture.post("/logout", &elsewhere, &right).await.status,
        403
    );
    let plain = [by_cookie, ("content-type", "text/plain")];
    assert_eq!(fixture.post("/logout", &plain, &right).await.status, 403);
    let record = fixture.store.find(fence.id).await.unwrap().unwrap();
    assert_eq!(record.state.status(), semel_core::Status::Unknown);

    let own = [
        by_cookie,
        ("content-type", JSON),
        ("x-semel-csrf", &csrf),
        ("sec-fetch-site", "same-origin"),
        ("origin", "http://Admin.example:8081"),
    ];
    let answer = fixture.post(&resolve, &own, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(fixture.post("/logout", &form, &right).await.status, 303);
}

#[tokio::test]
async fn a_cross_site_post_is_refused_without_a_token_too() {
    let fixture = Fixture::new(Access::Loopback);
    let fence = fixture.unknown("key").await;
    let resolve = format!("/api/v1/operations/{}/resolve", fence.id);
    let body = r#"{"verdict":"not_executed","reason":"checked"}"#;
    let post = async |path: &str, more: &[(&str, &str)], body: &str| {
        let headers = [&[("host", "localhost:8081")], more].concat();
        let request = request_from("127.0.0.1:5000", Method::POST, path, &headers);
        fixture
            .send(request.body(Body::from(body.to_owned())).unwrap())
            .await
    };
    let kind = ("content-type", JSON);
    for more in [
        ("sec-fetch-site", "cross-site"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
    ] {
        let answer = post(&resolve, &[kind, more], body).await;
        assert_eq!(
            (answer.status, answer.code()),
            (403, json!("admin_cross_site"))
        );
    }
    let form = ("content-type", FORM);
    assert_eq!(
        post(&resolve, &[form], "verdict=completed").await.status,
        415
    );
    for wrong in ["", "csrf=", "csrf=00"] {
        let answer = post("/logout", &[form], wrong).await;
        assert_eq!(
            (answer.status, answer.code()),
            (403, json!("admin_cross_site"))
        );
    }
    let local = ("host", "localhost:8081");
    let page = request_from("127.0.0.1:5000", Method::GET, "/", &[local]);
    let page = fixture.send(page.body(Body::empty()).unwrap()).await;
    let (_, rest) = page.text.split_once("name=\"csrf\" ").expect(&page.text);
    let csrf = format!("csrf={}", rest.split('"').nth(1).unwrap());
    assert_eq!(post("/logout", &[form], &csrf).await.status, 303);
    // A program, without browser headers, passes.
    assert_eq!(post(&resolve, &[kind], body).await.status, 200);
    let login = request_from("127.0.0.1:5000", Method::GET, "/login", &[local]);
    let login = fixture.send(login.body(Body::empty()).unwrap()).await;
    assert_eq!((login.status, login.header("location")), (303, "/"));
}

#[tokio::test]
async fn a_session_ends_when_idle_after_12_hours_and_on_logout() {
    let fixture = Fixture::with_tokens();
    let minutes = |minutes| Duration::from_mins(minutes);
    let is_in = async |cookie: &str, more: &[(&str, &str)]| {
        let headers = [&[("cookie", cookie)], more].concat();
        fixture.get("/api/v1/stats", &headers).await.status == 200
    };
    // Idle timeout.
    let (cookie, _) = fixture.session(OPERATOR, "").await;
    fixture.clock.advance(minutes(29));
    assert!(is_in(&cookie, &[]).await);
    fixture.clock.advance(minutes(29));
    assert!(is_in(&cookie, &[]).await, "renewed by use");
    fixture.clock.advance(minutes(30));
    assert!(!is_in(&cookie, &[]).await);
    // Background requests do not renew it.
    let (cookie, _) = fixture.session(OPERATOR, "").await;
    let background = [("x-semel-background", "1")];
    fixture.clock.advance(minutes(29));
    assert!(is_in(&cookie, &background).await);
    fixture.clock.advance(minutes(1));
    assert!(!is_in(&cookie, &background).await);
    // Absolute timeout.
    let (cookie, _) = fixture.session(OPERATOR, "").await;
    for _ in 0..35 {
        fixture.clock.advance(minutes(20));
        assert!(is_in(&cookie, &[]).await);
    }
    fixture.clock.advance(minutes(20));
    assert!(!is_in(&cookie, &[]).await, "after 12 hours");
    // Logout ends only this session.
    let (cookie, csrf) = fixture.session(OPERATOR, "").await;
    let (other, _) = fixture.session(OPERATOR, "").await;
    let headers = [("cookie", &*cookie), ("content-type", FORM)];
    let out = fixture
        .post("/logout", &headers, &format!("csrf={csrf}"))
        .await;
    assert_eq!((out.status, out.header("location")), (303, "/login"));
    assert!(out.header("set-cookie").contains("Max-Age=0"));
    assert!(!is_in(&cookie, &[]).await);
    assert!(is_in(&other, &[]).await);
}

#[tokio::test]
async fn an_event_stream_ends_with_its_session() {
    let fixture = Fixture::with_tokens();
    let (cookie, csrf) = fixture.session(VIEWER, "").await;
    let (other, _) = fixture.session(VIEWER, "").await;
    let open = async |cookie: &str| {
        let request = request(Method::GET, "/api/v1/events", &[("cookie", cookie)]);
        let request = request.body(Body::empty()).unwrap();
        let answer = fixture.router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body()
    };
    let (logged_out, idle) = (open(&cookie).await, open(&other).await);
    let headers = [("cookie", &*cookie), ("content-type", FORM)];
    let form = format!("csrf={csrf}");
    assert_eq!(fixture.post("/logout", &headers, &form).await.status, 303);
    logged_out.collect().await.unwrap();
    fixture.clock.advance(Duration::from_mins(30));
    idle.collect().await.unwrap();
}

#[tokio::test]
async fn a_login_always_creates_a_new_session_id() {
    let fixture = Fixture::with_tokens();
    let planted = "semel_session=0123456789abcdef";
    let headers = [("content-type", FORM), ("cookie", planted)];
    let form = format!("token={OPERATOR}");
    let first = fixture.post("/login", &headers, &form).await;
    assert_eq!((first.status, first.header("location")), (303, "/"));
    let set = first.header("set-cookie");
    assert!(
        set.ends_with("; HttpOnly; SameSite=Strict; Path=/"),
        "{set}"
    );
    assert_ne!(first.cookie(), planted);
    assert_eq!(first.cookie().len(), "semel_session=".len() + 64);
    let stats = async |cookie: &str| {
        fixture
            .get("/api/v1/stats", &[("cookie", cookie)])
            .await
            .status
    };
    assert_eq!(stats(planted).await, 401);
    assert_eq!(stats(&first.cookie()).await, 200);
    assert_eq!(
        stats(&format!("{}; {planted}", first.cookie())).await,
        401,
        "two cookies"
    );

    let cookie = first.cookie();
    let headers = [("content-type", FORM), ("cookie", &*cookie)];
    let second = fixture.post("/login", &headers, &form).await;
    assert_ne!(second.cookie(), cookie);
    assert_eq!(stats(&cookie).await, 401, "the old session ended");
    assert_eq!(stats(&second.cookie()).await, 200);

    let secure = Fixture::new(tokens(true));
    let answer = secure.log_in(OPERATOR, "").await;
    let set = answer.header("set-cookie");
    assert!(set.starts_with("__Host-semel_session="), "{set}");
    assert!(
        set.ends_with("; HttpOnly; SameSite=Strict; Path=/; Secure"),
        "{set}"
    );
    let cookie = answer.cookie();
    let name = cookie.replace("__Host-", "");
    assert_eq!(
        secure.get("/metrics", &[("cookie", &cookie)]).await.status,
        200
    );
    assert_eq!(
        secure.get("/metrics", &[("cookie", &name)]).await.status,
        401
    );
}

#[tokio::test]
async fn a_login_redirects_only_within_the_listener() {
    let fixture = Fixture::with_tokens();
    for (next, location) in [
        (
            "%2Foperations%3Fstatus%3Dunknown",
            "/operations?status=unknown",
        ),
        ("%2F%2Fevil.example", "/"),
        ("%2F%5Cevil.example", "/"),
        ("%2F%09%2Fevil.example", "/"),
        ("https%3A%2F%2Fevil.example", "/"),
        ("%2Fa%0D%0ASet-Cookie%3A+b", "/"),
        ("", "/"),
    ] {
        let answer = fixture.log_in(OPERATOR, &format!("&next={next}")).await;
        assert_eq!(answer.header("location"), location, "{next}");
        let page = fixture.get(&format!("/login?next={next}"), &[]).await;
        assert!(!page.text.contains("evil"), "{}", page.text);
    }
    let wrong = fixture
        .log_in("wrong", "&name=%3Cscript%3E%22&next=%2Fa")
        .await;
    assert_eq!(wrong.status, 401);
    assert!(!wrong.text.contains("<script>"), "{}", wrong.text);
    assert!(wrong.text.contains("value=\"/a\""), "{}", wrong.text);
    assert_eq!(wrong.header("set-cookie"), "");
    let form = format!("token={OPERATOR}");
    for more in [
        ("sec-fetch-site", "cross-site"),
        ("origin", "https://evil.example"),
    ] {
        let answer = fixture
            .post("/login", &[("content-type", FORM), more], &form)
            .await;
        assert_eq!(answer.status, 403);
        assert_eq!(answer.header("set-cookie"), "");
    }
    let answer = fixture
        .post("/login", &[("content-type", "text/plain")], &form)
        .await;
    assert_eq!((answer.status, answer.header("set-cookie")), (415, ""));
    let long = format!("&name={}", "x".repeat(65));
    assert_eq!(fixture.log_in(OPERATOR, &long).await.status, 422);
}

#[tokio::test]
async fn wrong_tokens_are_limited_and_right_ones_are_not() {
    let fixture = Fixture::with_tokens();
    let stats = async |peer: &str, token: &str| {
        let token = bearer(token);
        let headers = [("authorization", &*token)];
        let request = request_from(peer, Method::GET, "/api/v1/stats", &headers);
        fixture.send(request.body(Body::empty()).unwrap()).await
    };
    let login = async |peer: &str, token: &str| {
        let request = request_from(peer, Method::POST, "/login", &[("content-type", FORM)]);
        let form = Body::from(format!("token={token}"));
        fixture.send(request.body(form).unwrap()).await
    };
    let (here, there) = ("192.0.2.1:5000", "192.0.2.2:5000");
    for _ in 0..20 {
        assert_eq!(
            login(here, OPERATOR).await.status,
            303,
            "right tokens do not count"
        );
    }
    for attempt in 0..5 {
        let answer = if attempt % 2 == 0 {
            login(here, "wrong").await
        } else {
            stats(here, "wrong").await
        };
        assert_eq!(answer.status, 401, "{attempt}");
    }
    let refused = login(here, "wrong").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, "12"));
    assert!(
        refused.text.contains("action=\"/login\""),
        "{}",
        refused.text
    );
    assert_eq!(
        login(here, OPERATOR).await.status,
        429,
        "the form is limited"
    );
    let refused = stats("192.0.2.1:6000", "wrong").await;
    assert_eq!(
        (refused.status, refused.code()),
        (401, json!("admin_unauthenticated"))
    );
    assert_eq!(
        stats(here, OPERATOR).await.status,
        200,
        "a right bearer token is never limited"
    );
    assert_eq!(login(there, OPERATOR).await.status, 303);
    fixture.clock.advance(Duration::from_secs(12));
    assert_eq!(login(here, OPERATOR).await.status, 303);

    // The total limit.
    let mut seen = 0;
    for number in 0..200 {
        let peer = format!("198.51.100.{number}:1");
        seen += u32::from(login(&peer, "wrong").await.status == 401);
    }
    assert_eq!(seen, 100);
    assert_eq!(stats(there, OPERATOR).await.status, 200);
}

#[tokio::test]
async fn the_history_lists_the_logged_in_name() {
    let fixture = Fixture::with_tokens();
    let decide = async |fence: Fence, headers: &[(&str, &str)], by: &Value| {
        let mut body = json!({ "verdict": "not_executed", "reason": "checked" });
        if !by.is_null() {
            body["by"] = by.clone();
        }
        let headers = [headers, &[("content-type", JSON)]].concat();
        let path = format!("/api/v1/operations/{}/resolve", fence.id);
        let answer = fixture.post(&path, &headers, &body.to_string()).await;
        let history = fixture.store.history(fence.id).await.unwrap();
        let actor = history.last().unwrap().note.actor.to_string();
        (answer.status, actor)
    };
    let (named, csrf) = fixture.session(OPERATOR, "&name=+alice+").await;
    let alice = [("cookie", &*named), ("x-semel-csrf", &*csrf)];
    let (nameless, csrf) = fixture.session(OPERATOR, "").await;
    let unnamed = [("cookie", &*nameless), ("x-semel-csrf", &*csrf)];
    let token = bearer(OPERATOR);
    let program = [("authorization", &*token)];
    for (number, (headers, by, status, actor)) in [
        (&alice[..], Value::Null, 200, "operator:alice"),
        (&alice, json!("alice"), 200, "operator:alice"),
        (&alice, json!("mallory"), 422, "executor"),
        (&unnamed, Value::Null, 200, "operator"),
        (&unnamed, json!("bob"), 200, "operator:bob"),
        (&program, json!("carol"), 200, "operator:carol"),
        (&program, Value::Null, 200, "operator"),
    ]
    .into_iter()
    .enumerate()
    {
        let fence = fixture.unknown(&format!("key-{number}")).await;
        let seen = decide(fence, headers, &by).await;
        assert_eq!(seen, (status, actor.to_owned()), "{number}");
    }
}

#[tokio::test]
async fn every_response_has_the_security_headers() {
    let fixture = Fixture::with_tokens();
    let token = bearer(OPERATOR);
    for (path, token) in [
        ("/healthz", ""),
        ("/login", ""),
        ("/", ""),
        ("/", &*token),
        ("/metrics", &*token),
        ("/api/v1/operations", &*token),
        ("/api/v1/events", &*token),
        ("/nothing", &*token),
    ] {
        let headers = [("authorization", token), ("accept", "text/html")];
        let headers = if token.is_empty() {
            &headers[1..]
        } else {
            &headers
        };
        let answer = fixture.get(path, headers).await;
        let policy = answer.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; "),
            "{path}: {policy}"
        );
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "same-origin"),
            ("x-frame-options", "DENY"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), value, "{path}");
        }
        let cached = answer.header("cache-control");
        assert!(
            ["no-store", "no-cache"].contains(&cached),
            "{path}: {cached}"
        );
    }
}

#[tokio::test]
async fn the_openapi_document_is_consistent() {
    let fixture = Fixture::with_tokens();
    let token = bearer(OPERATOR);
    let answer = fixture
        .get("/openapi.json", &[("authorization", &token)])
        .await;
    assert_eq!(answer.header("content-type"), JSON);
    let document: Value = serde_json::from_str(&answer.text).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1."));
    let mut names = std::collections::BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let at = format!("{method} {path}");
            assert!(names.insert(operation["operationId"].to_string()), "{at}");
            assert!(operation["summary"].is_string(), "{at}");
            let answers = operation["responses"].as_object().unwrap();
            let secured = operation["security"] != json!([{}]);
            assert_eq!(secured, answers.contains_key("401"), "{at}");
            if path.contains("{id}") {
                assert_eq!(operation["parameters"][0]["name"], "id", "{at}");
                assert!(answers.contains_key("404"), "{at}");
            }
        }
    }
    // Every reference resolves.
    let mut stack = vec![&document];
    while let Some(value) = stack.pop() {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(name)) = members.get("$ref") {
                    let pointer = name.strip_prefix('#').unwrap();
                    assert!(document.pointer(pointer).is_some(), "{name}");
                }
                stack.extend(members.values());
            }
            Value::Array(elements) => stack.extend(elements),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_viewer_sees_the_hash_of_a_key_and_an_operator_the_key() {
    const CLIENT_KEY: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";
    let fixture = Fixture::with_tokens();
    let fence = fixture.unknown(CLIENT_KEY).await;
    let given_up = fixture.store.dead_letter(fence, "given_up".into()).await;
    given_up.unwrap();
    let record = format!("/operations/{}", fence.id);
    for path in [
        "/operations",
        "/dead-letters",
        &record,
        &format!("/api/v1{record}"),
        "/api/v1/operations",
        &format!("/api/v1/operations?key={CLIENT_KEY}"),
    ] {
        for (token, seen, hidden) in [
            (OPERATOR, CLIENT_KEY, "#d77da802"),
            (VIEWER, "#d77da802", CLIENT_KEY),
        ] {
            let headers = [("authorization", &*bearer(token)), ("accept", "text/html")];
            let answer = fixture.get(path, &headers).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.text);
            assert!(answer.text.contains(seen), "{path}: {}", answer.text);
            assert!(!answer.text.contains(hidden), "{path}: {}", answer.text);
        }
    }
}

#[tokio::test]
async fn a_hashed_key_is_found_by_the_clear_key_and_by_its_hash() {
    let hasher = KeyHasher::new(b"0123456789abcdef0123456789abcdef").unwrap();
    let fixture = Fixture::hashed(tokens(false), Some(hasher.clone()));
    let stored = hasher.hash(&Key::new("order-1").unwrap());
    let fence = fixture.grant(stored.as_str()).await;
    let operator = bearer(OPERATOR);
    for (key, found) in [
        ("order-1", true),
        (stored.as_str(), true),
        ("order-2", false),
    ] {
        for path in ["/api/v1/operations", "/operations"] {
            let headers = [("authorization", &*operator), ("accept", "text/html")];
            let answer = fixture.get(&format!("{path}?key={key}"), &headers).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            let id = fence.id.to_string();
            assert_eq!(answer.text.contains(&id), found, "{path} {key}");
        }
    }
}
