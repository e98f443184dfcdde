use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::get;
use http::Request;
use semel_http::tenant::Tenant;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::config::TenantFrom;
use crate::tenant::KeySource;
use crate::tenant::resolver;
use crate::tenant::tests::{Issuer, claims};

/// An endpoint that counts its requests and answers with what is set last.
struct Endpoint {
    url: String,
    answer: Arc<std::sync::Mutex<(StatusCode, String)>>,
    requests: Arc<AtomicUsize>,
}

impl Endpoint {
    async fn start(keys: &[Value]) -> Self {
        let answer = Arc::new(std::sync::Mutex::new((StatusCode::OK, set(keys))));
        let requests = Arc::new(AtomicUsize::new(0));
        let (shown, counted) = (Arc::clone(&answer), Arc::clone(&requests));
        let jwks = get(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let answer = shown.lock().unwrap().clone();
            async move { answer }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/jwks?v=1", listener.local_addr().unwrap());
        let router = Router::new().route("/jwks", jwks);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            url,
            answer,
            requests,
        }
    }

    fn answers(&self, status: StatusCode, body: String) {
        *self.answer.lock().unwrap() = (status, body);
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    fn keys(&self, min_interval: Duration, max_age: Duration) -> Arc<RemoteKeys> {
        let keys = RemoteKeys::new(self.url.parse().unwrap(), Expected::default()).unwrap();
        Arc::new(RemoteKeys {
            min_interval,
            max_age,
            ..keys
        })
    }
}

fn set(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

/// What a request with this token gets: the tenant, or the status of its refusal.
async fn ask(keys: &Arc<RemoteKeys>, token: &str) -> Result<String, u16> {
    let from = TenantFrom::Jwt {
        claim: "sub".into(),
        keys: KeySource::Remote(Arc::clone(keys)),
    };
    let request = Request::builder().header("authorization", format!("Bearer {token}"));
    let (head, ()) = request.body(()).unwrap().into_parts();
    let mut tenant = resolver(&from)(&head);
    loop {
        tenant = match tenant {
            Tenant::Known(name) => return Ok(name.into()),
            Tenant::Unresolved => return Err(403),
            Tenant::Unavailable { .. } => return Err(503),
            Tenant::Pending(found) => found.await,
        };
    }
}

const NEVER: Duration = Duration::from_hours(24);
const ALWAYS: Duration = Duration::ZERO;

#[tokio::test]
async fn keys_are_fetched_once_and_an_unknown_kid_fetches_them_again() {
    let [one, two] = [Issuer::new(), Issuer::new()];
    let endpoint = Endpoint::start(&[one.jwk("one")]).await;
    let keys = endpoint.keys(ALWAYS, NEVER);
    let acme = claims("acme");
    let [by_one, by_two] = [one.sign(Some("one"), &acme), two.sign(Some("two"), &acme)];
    for _ in 0..3 {
        assert_eq!(ask(&keys, &by_one).await, Ok("acme".into()));
    }
    assert_eq!(endpoint.requests(), 1);
    // Fetched, and not there: the token is forged or the issuer's mistake.
    assert_eq!(ask(&keys, &by_two).await, Err(403));
    assert_eq!(endpoint.requests(), 2);
    endpoint.answers(StatusCode::OK, set(&[one.jwk("one"), two.jwk("two")]));
    assert_eq!(ask(&keys, &by_two).await, Ok("acme".into()));
    assert_eq!(endpoint.requests(), 3);
    // A known kid with another signature needs no fetch.
    assert_eq!(ask(&keys, &two.sign(Some("one"), &acme)).await, Err(403));
    assert_eq!(endpoint.requests(), 3);
}

#[tokio::test]
async fn a_key_without_a_name_that_was_replaced_is_fetched() {
    let [old, new] = [Issuer::new(), Issuer::new()];
    let unnamed = |issuer: &Issuer| {
        let mut jwk = issuer.jwk("x");
        jwk.as_object_mut().unwrap().remove("kid");
        jwk
    };
    let endpoint = Endpoint::start(&[unnamed(&old)]).await;
    let keys = endpoint.keys(ALWAYS, NEVER);
    let acme = claims("acme");
    assert_eq!(ask(&keys, &old.sign(None, &acme)).await, Ok("acme".into()));
    endpoint.answers(StatusCode::OK, set(&[unnamed(&new)]));
    assert_eq!(ask(&keys, &new.sign(None, &acme)).await, Ok("acme".into()));
    assert_eq!(ask(&keys, &old.sign(None, &acme)).await, Err(403));
}

#[tokio::test]
async fn concurrent_requests_share_one_fetch() {
    let one = Issuer::new();
    let endpoint = Endpoint::start(&[one.jwk("one")]).await;
    let keys = endpoint.keys(NEVER, NEVER);
    let token = one.sign(Some("one"), &claims("acme"));
    let asked = futures_util::future::join_all((0..20).map(|_| ask(&keys, &token))).await;
    assert!(asked.iter().all(|tenant| *tenant == Ok("acme".into())));
    assert_eq!(endpoint.requests(), 1);
}

#[tokio::test]
async fn within_the_minimum_interval_an_unknown_kid_gets_503_and_no_fetch() {
    let [one, two] = [Issuer::new(), Issuer::new()];
    let endpoint = Endpoint::start(&[one.jwk("one")]).await;
    let keys = endpoint.keys(NEVER, NEVER);
    let acme = claims("acme");
    assert_eq!(
        ask(&keys, &one.sign(Some("one"), &acme)).await,
        Ok("acme".into())
    );
    for kid in ["two", "three", "four"] {
        assert_eq!(ask(&keys, &two.sign(Some(kid), &acme)).await, Err(503));
    }
    assert_eq!(endpoint.requests(), 1);
}

#[tokio::test]
async fn stale_keys_stay_in_use_while_a_fetch_fails() {
    let [one, two] = [Issuer::new(), Issuer::new()];
    let endpoint = Endpoint::start(&[]).await;
    let keys = endpoint.keys(ALWAYS, ALWAYS);
    let acme = claims("acme");
    let [by_one, by_two] = [one.sign(Some("one"), &acme), two.sign(Some("two"), &acme)];
    let long = format!("{}{}", set(&[one.jwk("one")]), " ".repeat(1 << 20));
    let failures = [
        (StatusCode::OK, set(&[])),
        (StatusCode::OK, "not JSON".to_owned()),
        (StatusCode::OK, long),
        (StatusCode::NOT_FOUND, set(&[one.jwk("one")])),
    ];
    for (status, body) in &failures {
        endpoint.answers(*status, body.clone());
        assert_eq!(ask(&keys, &by_one).await, Err(503), "{status} without keys");
    }
    endpoint.answers(StatusCode::OK, set(&[one.jwk("one")]));
    assert_eq!(ask(&keys, &by_one).await, Ok("acme".into()));
    for (status, body) in failures {
        endpoint.answers(status, body);
        assert_eq!(
            ask(&keys, &by_two).await,
            Err(503),
            "{status} with stale keys"
        );
        assert_eq!(ask(&keys, &by_one).await, Ok("acme".into()));
    }
}

#[tokio::test]
async fn old_keys_are_fetched_again_and_a_removed_one_is_refused() {
    let [one, two] = [Issuer::new(), Issuer::new()];
    let endpoint = Endpoint::start(&[one.jwk("one")]).await;
    let keys = endpoint.keys(ALWAYS, ALWAYS);
    let token = one.sign(Some("one"), &claims("acme"));
    assert_eq!(ask(&keys, &token).await, Ok("acme".into()));
    endpoint.answers(StatusCode::OK, set(&[two.jwk("two")]));
    let refused = async {
        while ask(&keys, &token).await != Err(403) {
            tokio::task::yield_now().await;
        }
    };
    let refused = timeout(Duration::from_secs(30), refused).await;
    assert!(refused.is_ok(), "the removed key is still accepted");
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_stop_the_fetch() {
    let one = Issuer::new();
    let endpoint = Endpoint::start(&[one.jwk("one")]).await;
    let keys = endpoint.keys(NEVER, NEVER);
    let token = one.sign(Some("one"), &claims("acme"));
    let mut asking = Box::pin(ask(&keys, &token));
    assert!(futures_util::poll!(&mut asking).is_pending());
    drop(asking);
    let known = async {
        while !matches!(keys.verify(&token), Verified::Claims(_)) {
            tokio::task::yield_now().await;
        }
    };
    let known = timeout(Duration::from_secs(30), known).await;
    assert!(known.is_ok(), "the keys never arrived");
}
