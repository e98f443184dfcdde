//! Spellings of a path, and hosts: which requests are the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Method, Request, Version};
use http_body_util::{BodyExt as _, Full};
use semel_core::contract::PublishedRules;
use semel_core::fingerprint::{Authority, Hosts, Options, Request as Fields, Rules, RulesId};
use semel_core::store::Query;
use semel_core::{
    Completion, Decision, Fingerprint, Identity, Key, Memory, OperationId, Policy, Reserve,
    Store as _, Timestamp,
};
use semel_http::{KeyRule, Layer, RequestBody, Route, route, tenant};
use semel_testkit::ManualClock;
use tower::ServiceExt as _;

use crate::support::{Answer, answer};

/// A layer, and a service that counts what it executes.
struct Fixture {
    layer: Layer<Memory>,
    executions: Arc<AtomicUsize>,
}

impl Fixture {
    fn new(change: impl FnOnce(Layer<Memory>) -> Layer<Memory>) -> Self {
        let store = Memory::new(Arc::new(ManualClock::default()));
        let layer = Layer::new(store).tenant(tenant::only_one());
        Self {
            layer: change(layer),
            executions: Arc::default(),
        }
    }

    /// One route, which requires a key.
    fn payments() -> Self {
        Self::new(|layer| layer.route("POST /payments", |route| route.operation("pay")))
    }

    async fn send(&self, request: http::request::Builder, key: &str) -> Answer {
        let request = match key {
            "" => request,
            key => request.header("idempotency-key", key),
        };
        let executions = Arc::clone(&self.executions);
        let inner = tower::service_fn(move |_: Request<RequestBody<Full<Bytes>>>| {
            executions.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, std::convert::Infallible>(answer(201, "paid")) }
        });
        let service = tower_layer::Layer::layer(&self.layer, inner);
        let request = request.body(Full::from("{}")).unwrap();
        let (head, body) = service.oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer {
            status: head.status,
            headers: head.headers,
            text: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    async fn post(&self, path: &str, key: &str) -> Answer {
        self.send(Request::post(path), key).await
    }

    fn executions(&self) -> usize {
        self.executions.load(Ordering::SeqCst)
    }

    async fn records(&self) -> usize {
        let listed = self.layer.store().list(Query::default()).await.unwrap();
        listed.operations.len()
    }
}

fn named(name: &'static str) -> impl FnOnce(Route) -> Route {
    move |route| route.operation(name)
}

/// The same path for RFC 3986.
const EQUIVALENT: [&str; 5] = [
    "/payments",
    "/%70ayments",
    "/%70%61yments",
    "/./payments",
    "/x/../payments",
];

/// The same path for some applications.
const LOOSER: [&str; 10] = [
    "/payments/",
    "/PAYMENTS",
    "/Payments",
    "//payments",
    "/payments//",
    "/payments;v=1",
    "/payments/;v=1",
    "/%50ayments",
    "/payments/.",
    "/;x/payments",
];

/// Nothing decides whether an application takes it for the path.
const UNDECIDABLE: [&str; 14] = [
    "/%2Fpayments",
    "/payments%2f",
    "/%252Fpayments",
    "/x/%2e%2e/payments",
    "/x/..;y/payments",
    "/x//../payments",
    "/payments%00",
    "/payments%00.json",
    "/payments%0A",
    "/payments%5C",
    "/\\payments",
    "/payments%3Bv=1",
    "/x/%2E./payments",
    "/%2570ayments",
];

#[tokio::test]
async fn every_spelling_requires_the_key_and_finds_the_record() {
    for first in EQUIVALENT.into_iter().chain(LOOSER) {
        let fixture = Fixture::payments();
        let missing = fixture.post(first, "").await;
        missing.refuses(400, "idempotency_key_missing");
        let executed = fixture.post(first, "k").await;
        assert!(executed.status == 201 && !executed.is_replay(), "{first}");
        assert!(fixture.post(first, "k").await.is_replay(), "{first}");
        for second in EQUIVALENT.into_iter().chain(LOOSER) {
            let both_equivalent = EQUIVALENT.contains(&first) && EQUIVALENT.contains(&second);
            let answer = fixture.post(second, "k").await;
            let is_expected = answer.is_replay() || answer.status == 422;
            assert!(is_expected, "{first} {second}: {answer:?}");
            assert!(answer.is_replay() || !both_equivalent, "{first} {second}");
        }
        assert_eq!((fixture.executions(), fixture.records().await), (1, 1));
    }
    let fixture = Fixture::payments();
    fixture.post("/payments", "k").await;
    for other in LOOSER {
        let answer = fixture.post(other, "k").await;
        answer.refuses(422, "idempotency_key_reused");
    }
}

#[tokio::test]
async fn undecidable_spelling_of_a_guarded_path_is_refused() {
    let fixture = Fixture::payments();
    for spelling in UNDECIDABLE {
        for key in ["", "k"] {
            let answer = fixture.post(spelling, key).await;
            answer.refuses(400, "path_ambiguous");
        }
    }
    // Raw bytes that are not ASCII, and percent signs that encode nothing.
    let parameter = Fixture::new(|layer| layer.route("POST /payments/{id}", named("pay")));
    for spelling in [
        "/payments/é",
        "/payments/%zz",
        "/payments/%",
        "/payments/a%2Fb",
    ] {
        parameter
            .post(spelling, "k")
            .await
            .refuses(400, "path_ambiguous");
    }
    assert_eq!(fixture.executions() + parameter.executions(), 0);
}

#[tokio::test]
async fn undecidable_path_that_no_route_could_match_passes_without_a_key() {
    let fixture = Fixture::payments();
    for path in ["/files%2Fx", "/a/%2e%2e/b", "/x%00", "/%zz"] {
        assert_eq!(fixture.post(path, "").await.status, 201, "{path}");
        // With a key it is guarded, and another spelling would be another record.
        fixture.post(path, "k").await.refuses(400, "path_ambiguous");
    }
    // Other methods are guarded on their routes only.
    let put = fixture.send(Request::put("/files%2Fx"), "k").await;
    assert_eq!(put.status, 201);
}

/// An application that keeps dot segments or parameters would route the request elsewhere.
#[tokio::test]
async fn path_that_another_route_may_claim_is_refused() {
    let fixture = Fixture::new(|layer| {
        layer
            .route("POST /payments/{id}/refunds", named("refund"))
            .route("POST /orders/{id}", |route| route.key(KeyRule::Ignored))
            .route("POST /orders/pay", named("pay"))
    });
    for path in [
        "/payments/../refunds",
        "/payments/x%2Fy/refunds",
        "/orders/pay;x",
        "/orders/pay%23x",
        "/orders/pay%20",
    ] {
        fixture.post(path, "k").await.refuses(400, "path_ambiguous");
        fixture.post(path, "").await.refuses(400, "path_ambiguous");
    }
    assert_eq!(fixture.executions(), 0);
    // One reading is enough where all lead to the same route.
    assert_eq!(
        fixture.post("/payments/x;v=1/refunds", "k").await.status,
        201
    );
    assert_eq!(fixture.post("/orders/7;v=1", "").await.status, 201);
}

#[tokio::test]
async fn operations_without_a_name_are_identified_by_the_folded_path() {
    for change in [
        (|layer| layer) as fn(Layer<Memory>) -> Layer<Memory>,
        |layer| layer.route("POST /Members/{id}/Pay", |route| route),
    ] {
        let fixture = Fixture::new(change);
        assert_eq!(fixture.post("/members/a@b/pay", "k").await.status, 201);
        for spelling in [
            "/members/a%40b/pay",
            "/Members/A@b/pay/",
            "//members/a@b;x/pay",
        ] {
            let answer = fixture.post(spelling, "k").await;
            answer.refuses(422, "idempotency_key_reused");
        }
        assert!(fixture.post("/members/a@b/p%61y", "k").await.is_replay());
        // Another path is another operation, and the key another key.
        assert_eq!(fixture.post("/members/c/pay", "k").await.status, 201);
        assert_eq!(fixture.executions(), 2);
        let records = fixture.layer.store().list(Query::default()).await.unwrap();
        let mut names: Vec<_> = records
            .operations
            .iter()
            .map(|record| record.identity.operation().to_owned())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["POST /members/a@b/pay", "POST /members/c/pay"]);
    }
}

#[tokio::test]
async fn exact_route_matches_only_its_spelling() {
    let fixture = Fixture::new(|layer| {
        layer
            .route("POST /payments/{id}", |route| {
                route.operation("pay").match_exactly()
            })
            .route("POST /Refunds", Route::match_exactly)
            .route("POST /refunds", named("refund"))
    });
    // A parameter may contain what would be ambiguous.
    for path in ["/payments/a%2Fb", "/payments/7", "/Refunds", "/REFUNDS"] {
        let missing = fixture.post(path, "").await;
        missing.refuses(400, "idempotency_key_missing");
        assert_eq!(fixture.post(path, path).await.status, 201, "{path}");
    }
    for path in ["/PAYMENTS/7", "/payments/7/", "//payments/7"] {
        assert_eq!(fixture.post(path, "").await.status, 201, "{path}");
    }
    let listed = fixture.layer.store().list(Query::default()).await.unwrap();
    let mut names: Vec<_> = listed
        .operations
        .iter()
        .map(|record| record.identity.operation())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["POST /Refunds", "pay", "pay", "refund"]);
}

/// The more specific route wins, whichever of them is exact.
#[tokio::test]
async fn exact_route_does_not_shadow_a_more_specific_one() {
    let fixture = Fixture::new(|layer| {
        layer
            .route("POST /{*rest}", |route| {
                route.key(KeyRule::Ignored).match_exactly()
            })
            .route("POST /payments", named("pay"))
    });
    for path in EQUIVALENT.into_iter().chain(LOOSER) {
        let missing = fixture.post(path, "").await;
        assert_eq!(missing.status, 400, "{path}");
    }
    for path in UNDECIDABLE {
        fixture.post(path, "").await.refuses(400, "path_ambiguous");
    }
    assert_eq!(fixture.post("/other%2F", "").await.status, 201);
}

#[test]
fn patterns_that_fold_onto_each_other_are_refused() {
    let layer = || Layer::new(Memory::default()).tenant(tenant::only_one());
    let first = || layer().route("POST /Payments/{id}", named("pay"));
    for second in ["POST /payments/{other}", "POST /PAYMENTS/{id}/"] {
        let error = first().try_route(second, named("pay")).unwrap_err();
        let route::Error::Path { pattern, reason } = &error else {
            panic!("{error:?}");
        };
        assert!(
            pattern == second && reason.contains("\"/Payments/{id}\""),
            "{error}"
        );
    }
    let exact = first().try_route("POST /payments/{id}", Route::match_exactly);
    exact.unwrap();
    for unclear in ["POST /a;b", "POST /a/../b", "POST /a%2Fb"] {
        assert!(
            layer().try_route(unclear, named("pay")).is_err(),
            "{unclear}"
        );
        let exact = layer().try_route(unclear, Route::match_exactly);
        exact.unwrap();
    }
}

#[tokio::test]
async fn standard_method_in_lower_case_is_refused() {
    let fixture = Fixture::payments();
    for method in ["post", "Post", "patch", "get", "pOST"] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = Request::builder().method(method).uri("/payments");
        let answer = fixture.send(request, "k").await;
        answer.refuses(400, "request_malformed");
    }
    let own = Method::from_bytes(b"purge").unwrap();
    let own = Request::builder().method(own).uri("/payments");
    assert_eq!(fixture.send(own, "k").await.status, 201);
    assert_eq!(fixture.executions(), 1);
}

#[tokio::test]
async fn another_host_under_a_used_key_is_misuse() {
    let host = |host: &'static str| Request::post("/payments").header("host", host);
    let target = |uri: &'static str| Request::post(uri).version(Version::HTTP_2);
    let fixture = Fixture::payments();
    assert_eq!(fixture.send(host("api.example"), "k").await.status, 201);
    let same = [
        host("api.example"),
        host("API.example."),
        target("https://api.example/payments"),
        target("https://api.example:443/payments"),
        target("http://API.example:80/payments"),
    ];
    for request in same {
        let replayed = fixture.send(request, "k").await;
        assert!(replayed.is_replay(), "{replayed:?}");
    }
    let others = [
        host("api2.example"),
        host("api.example:8443"),
        target("https://api2.example/payments"),
        target("https://api.example/payments").header("host", "api2.example"),
        Request::post("/payments"),
    ];
    for request in others {
        let refused = fixture.send(request, "k").await;
        refused.refuses(422, "idempotency_key_reused");
    }
    assert_eq!(fixture.executions(), 1);
}

#[tokio::test]
async fn hosts_can_be_equivalent_or_left_out() {
    let host = |host: &'static str| Request::post("/payments").header("host", host);
    let pair = Hosts::equivalent([["api.example", "api2.example"]]).unwrap();
    for (hosts, third_status) in [(pair, 422), (Hosts::any(), 201)] {
        let fixture =
            Fixture::new(|layer| layer.hosts(&hosts).route("POST /payments", named("pay")));
        assert_eq!(fixture.send(host("api.example"), "k").await.status, 201);
        assert!(fixture.send(host("api2.example"), "k").await.is_replay());
        let third = fixture.send(host("api3.example"), "k").await;
        assert_eq!(third.status, third_status);
        assert_eq!(fixture.executions(), 1);
        // Requests without a route, too.
        let unnamed = |host| Request::post("/other").header("host", host);
        assert_eq!(fixture.send(unnamed("api.example"), "k").await.status, 201);
        let second = fixture.send(unnamed("api2.example"), "k").await;
        assert!(second.is_replay(), "{second:?}");
    }
}

/// HTTP/2 has no `Host`.
#[tokio::test]
async fn rules_about_host_see_the_authority() {
    let by_host = |head: &http::request::Parts| {
        let host = head.headers.get("host").map(|host| host.to_str().unwrap());
        host.map(str::to_owned)
    };
    let store = Memory::new(Arc::new(ManualClock::default()));
    let options = Options {
        headers: vec!["Host".into()],
        ..Options::default()
    };
    let layer = Layer::new(store).tenant(by_host).hosts(&Hosts::any());
    let fixture = Fixture {
        layer: layer.route("POST /payments", |route| {
            route.operation("pay").fingerprint(options)
        }),
        executions: Arc::default(),
    };
    let target = |uri: &'static str| Request::post(uri).version(Version::HTTP_2);
    let first = fixture.send(target("https://a.example/payments"), "k");
    assert_eq!(first.await.status, 201);
    let header = Request::post("/payments").header("host", "a.example");
    assert!(fixture.send(header, "k").await.is_replay());
    // Another tenant.
    let other = fixture.send(target("https://b.example/payments"), "k");
    assert!(!other.await.is_replay());
    assert_eq!(fixture.executions(), 2);
}

/// Puts a completed record into the store.
async fn store_record(store: &Memory, operation: &str, key: &str, fingerprint: Fingerprint) {
    let reserve = Reserve {
        id: OperationId::generate(),
        identity: Identity::new(tenant::ONLY_ONE, operation, Key::new(key).unwrap()).unwrap(),
        fingerprints: fingerprint.into(),
        owner: "an earlier version".into(),
        policy: Policy::default(),
    };
    let Decision::Execute(grant) = store.reserve(reserve).await.unwrap() else {
        panic!("the key is used");
    };
    let completion = Completion::new(201, Vec::new(), "paid");
    store.complete(grant.fence, completion).await.unwrap();
}

/// Records of versions that took the path as it was sent, and left the authority out.
#[tokio::test]
async fn record_made_under_the_first_rules_replays() {
    let fixture = Fixture::payments();
    let store = fixture.layer.store();
    let fields = || Fields::new("pay", "POST", "/payments").body("{}");
    let old = fields().fingerprint(&Rules::default());
    assert_eq!(old.rules(), RulesId::DEFAULT);
    store_record(store, "pay", "k", old).await;
    let ask = |path: &'static str| Request::post(path).header("host", "api.example");
    for _ in 0..2 {
        let replayed = fixture.send(ask("/payments"), "k").await;
        assert!(replayed.is_replay(), "{replayed:?}");
    }
    // The old rules distinguish spellings more strictly.
    let refused = fixture.send(ask("/%70ayments"), "k").await;
    refused.refuses(422, "idempotency_key_reused");
    assert_eq!(fixture.executions(), 0);
    // A new record is made under the new rules.
    fixture.send(ask("/payments"), "new").await;
    let new = fields().authority(Authority {
        scheme: None,
        host: b"api.example",
    });
    let new = new.fingerprint(&Rules::default().with_hosts(&Hosts::default()));
    let listed = store.list(Query::default()).await.unwrap();
    let newest = store.find(listed.operations[0].fence.id).await.unwrap();
    assert_eq!(newest.unwrap().fingerprint, new);
}

/// As above, with options; and a layer that declares other hosts than the one that made a record.
#[tokio::test]
async fn record_made_under_other_hosts_or_options_replays() {
    let options = || Options {
        ignore: vec!["/trace".into()],
        ..Options::default()
    };
    let fixture = Fixture::new(|layer| {
        layer.route("POST /payments", |route| {
            route.operation("pay").fingerprint(options())
        })
    });
    let store = fixture.layer.store();
    let rules = Rules::new(&options()).unwrap();
    let fields = Fields::new("pay", "POST", "/payments").body("{}");
    store_record(store, "pay", "old", fields.fingerprint(&rules)).await;
    let published = store.contracts().await.unwrap();
    let mut contracts = published.contracts;
    let now = Timestamp::from_micros(1);
    contracts
        .rule_sets
        .push(PublishedRules::new("pay", &rules, now));
    let revision = published.revision;
    assert!(store.publish_contracts(revision, contracts).await.unwrap());
    let ask = |host: &'static str| Request::post("/payments").header("host", host);
    assert!(fixture.send(ask("a"), "old").await.is_replay());
    assert_eq!(fixture.send(ask("a"), "new").await.status, 201);

    let pair = Hosts::equivalent([["a", "b"]]).unwrap();
    let later = Layer::new(store.clone()).tenant(tenant::only_one());
    let later = Fixture {
        layer: later.hosts(&pair).route("POST /payments", |route| {
            route.operation("pay").fingerprint(options())
        }),
        executions: Arc::default(),
    };
    assert!(later.send(ask("a"), "new").await.is_replay());
    let refused = later.send(ask("b"), "new").await;
    refused.refuses(422, "idempotency_key_reused");
    assert_eq!(later.executions(), 0);
}
