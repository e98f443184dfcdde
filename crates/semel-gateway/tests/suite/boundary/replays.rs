//! What a retry gets that is not simply the stored response. Whatever it is, nothing executes again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::http::Response;
use semel_core::State;
use semel_http::{OnSchemaChange, ReplayMode, Retry, Route};

use crate::boundary::fixture::{EntryPoint, Fixture, SHORT};
use crate::boundary::self_completed::{completes_itself, stored as completion};

crate::boundary::through_both_entry_points!(
    the_schema_version_is_stored_and_disclosed_where_it_differs,
    a_response_of_another_schema_is_refused,
    a_response_of_another_schema_is_reconstructed,
    a_reconstructed_replay_is_the_current_representation,
    a_record_completed_without_a_body_is_fetched_for_its_first_client,
    a_refusal_of_the_application_is_replayed_from_the_store,
    a_failed_fetch_returns_503_and_executes_nothing,
    a_permitted_caller_gets_the_replay,
    a_denied_caller_gets_the_denial,
    an_unanswered_question_returns_503,
);

/// What the application is asked for replays: how often, and by whom.
#[derive(Clone, Default)]
struct Asked {
    times: Arc<AtomicUsize>,
    last: Arc<Mutex<Option<Retry>>>,
}

type Fetched = Result<Response<String>, &'static str>;

impl Asked {
    fn times(&self) -> usize {
        self.times.load(Ordering::SeqCst)
    }

    fn resource(&self) -> Option<String> {
        let last = self.last.lock().unwrap();
        let resource = last.as_ref()?.resource.as_ref()?;
        Some(format!("{}/{}", resource.kind, resource.id))
    }

    /// A function that counts, and answers with the number of the question.
    fn answers(
        &self,
        answer: impl Fn(usize) -> Fetched + Send + Sync + 'static,
    ) -> impl Fn(Retry) -> std::future::Ready<Fetched> + Send + Sync + 'static {
        let Self { times, last } = self.clone();
        move |retry| {
            *last.lock().unwrap() = Some(retry);
            std::future::ready(answer(times.fetch_add(1, Ordering::SeqCst) + 1))
        }
    }
}

fn with_status(status: u16, body: &str) -> Fetched {
    let response = Response::builder().status(status);
    let response = response
        .header("content-type", "text/plain")
        .header("etag", "\"current\"")
        .header("location", "/elsewhere")
        .header("www-authenticate", "Bearer")
        .header("x-unlisted", "1");
    response.body(body.to_owned()).map_err(|_| "invalid")
}

async fn with_route(entry: EntryPoint, change: impl FnOnce(Route) -> Route) -> Fixture {
    Fixture::with(entry, |layer| layer.defaults(change)).await
}

/// The schema version and the body of the only record.
async fn stored(fixture: &Fixture) -> (u16, Option<bytes::Bytes>) {
    let records = fixture.records().await;
    match &records[0].state {
        State::Completed(completed) => {
            let response = &completed.response;
            (response.schema_version, response.body.clone())
        }
        other => panic!("{other:?}"),
    }
}

async fn the_schema_version_is_stored_and_disclosed_where_it_differs(entry: EntryPoint) {
    for (does, version, disclosed) in [
        ("status-201", 3, None),
        ("schema-3", 3, None),
        ("schema-4", 4, Some("4")),
        ("schema-x", 3, None),
    ] {
        let fixture = with_route(entry, |route| route.schema(3)).await;
        let path = format!("/do/{does}");
        let first = fixture.post(&path, "k1", "{}").await;
        assert_eq!(first.header("semel-schema-version"), None, "{does}");
        assert_eq!(stored(&fixture).await.0, version, "{does}");
        // From the store, then from the cache.
        for _ in 0..2 {
            let again = fixture.post(&path, "k1", "{}").await;
            assert!(again.is_replay());
            assert_eq!(again.header("semel-schema-version"), disclosed, "{does}");
            assert_eq!(again.body, first.body);
        }
    }
    // The header is removed where nothing is guarded, too.
    let fixture = Fixture::new(entry).await;
    let passed = fixture.post("/ignored/schema-4", "", "{}").await;
    assert_eq!(passed.header("semel-schema-version"), None);
}

async fn a_response_of_another_schema_is_refused(entry: EntryPoint) {
    let fixture = with_route(entry, |route| {
        route.schema(3).on_schema_change(OnSchemaChange::Refuse)
    })
    .await;
    for (does, key) in [("schema-3", "k1"), ("schema-2", "k2")] {
        let path = format!("/do/{does}");
        assert_eq!(fixture.post(&path, key, "{}").await.status, 201);
    }
    assert!(fixture.post("/do/schema-3", "k1", "{}").await.is_replay());
    for _ in 0..2 {
        let again = fixture.post("/do/schema-2", "k2", "{}").await;
        again.refuses(410, "idempotency_response_not_stored");
        assert_eq!(again.json()["resource"]["id"], "1");
        assert_eq!(again.header("location"), Some("/things/1"));
    }
    assert_eq!(fixture.app.executions(), 2);
}

async fn a_response_of_another_schema_is_reconstructed(entry: EntryPoint) {
    let asked = Asked::default();
    let fetch = asked.answers(|_| with_status(200, "current"));
    let fixture = with_route(entry, |route| {
        let route = route.schema(3).reconstruct(fetch);
        route.on_schema_change(OnSchemaChange::Reconstruct)
    })
    .await;
    for (does, key, text) in [
        ("schema-3", "k1", None),
        ("schema-2", "k2", Some("current")),
    ] {
        let path = format!("/do/{does}");
        let first = fixture.post(&path, key, "{}").await;
        let again = fixture.post(&path, key, "{}").await;
        assert_eq!(again.text(), text.unwrap_or(first.text()), "{does}");
        assert_eq!(again.header("semel-reconstructed"), text.map(|_| "true"));
    }
    assert_eq!((asked.times(), fixture.app.executions()), (1, 2));
}

async fn a_reconstructed_replay_is_the_current_representation(entry: EntryPoint) {
    let asked = Asked::default();
    let fetch = asked.answers(|times| with_status(200, &format!("current {times}")));
    let fixture = with_route(entry, |route| {
        route.replay(ReplayMode::Reconstruct).reconstruct(fetch)
    })
    .await;
    let first = fixture.post("/do/schema-1", "k1", "{}").await;
    assert_eq!(
        (first.status.as_u16(), first.text()),
        (201, r#"{"execution":1}"#)
    );
    assert_eq!(first.header("semel-reconstructed"), None);
    assert_eq!(stored(&fixture).await.1, None);
    for times in 1..=3 {
        let again = fixture.post("/do/schema-1", "k1", "{}").await;
        // The stored status and location, the rest as it is now.
        let expected = (201, format!("current {times}"));
        assert_eq!((again.status.as_u16(), again.text().to_owned()), expected);
        assert_eq!(again.header("location"), Some("/things/1"));
        assert_eq!(again.header("content-type"), Some("text/plain"));
        assert_eq!(again.header("etag"), Some("\"current\""));
        assert_eq!(again.header("x-unlisted"), None);
        assert_eq!(again.header("semel-reconstructed"), Some("true"));
        let expires = "idempotency-key-expires";
        assert_eq!(again.header(expires), first.header(expires));
        assert_eq!(again.header("idempotency-key"), Some("k1"));
        assert!(again.is_replay());
    }
    assert_eq!(asked.resource().as_deref(), Some("thing/1"));
    assert_eq!((asked.times(), fixture.app.executions()), (3, 1));
    // Another request with the key is misuse before anything is fetched.
    let other = fixture.post("/do/schema-1", "k1", "[]").await;
    other.refuses(422, "idempotency_key_reused");
    assert_eq!(asked.times(), 3);
}

/// The application completed the record itself and kept no body; its answer was lost.
async fn a_record_completed_without_a_body_is_fetched_for_its_first_client(entry: EntryPoint) {
    for (fetched, status) in [(200, 202), (500, 503)] {
        let asked = Asked::default();
        let fetch = asked.answers(move |_| with_status(fetched, "current"));
        let fixture = with_route(entry, |route| {
            route.replay(ReplayMode::Reconstruct).reconstruct(fetch)
        })
        .await;
        completes_itself(&fixture, completion(202, None));
        let first = fixture.post("/do/hooked-panic", "k1", "{}").await;
        assert_eq!(first.status, status);
        assert!(!first.is_replay());
        // As its caller: the application may show others something else.
        let account = asked.last.lock().unwrap().as_ref().map(|retry| {
            let account = retry.head.headers.get("x-account");
            account.cloned()
        });
        assert_eq!(account.flatten().unwrap(), "acme");
        if status == 202 {
            assert_eq!(first.text(), "current");
            assert_eq!(first.header("semel-reconstructed"), Some("true"));
            assert!(first.header("idempotency-key-expires").is_some());
        } else {
            first.refuses(503, "idempotency_replay_unavailable");
        }
        let again = fixture.post("/do/hooked-panic", "k1", "{}").await;
        assert_eq!((again.status, again.text()), (first.status, first.text()));
        assert_eq!((asked.times(), fixture.app.executions()), (2, 1));
    }
}

async fn a_refusal_of_the_application_is_replayed_from_the_store(entry: EntryPoint) {
    for does in ["status-422", "status-500", "empty"] {
        let asked = Asked::default();
        let fetch = asked.answers(|_| with_status(200, "current"));
        let fixture = with_route(entry, |route| {
            route.replay(ReplayMode::Reconstruct).reconstruct(fetch)
        })
        .await;
        let path = format!("/do/{does}");
        let first = fixture.post(&path, "k1", "{}").await;
        let again = fixture.post(&path, "k1", "{}").await;
        assert!(again.is_replay(), "{does}");
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        assert_eq!(asked.times(), 0);
    }
}

async fn a_failed_fetch_returns_503_and_executes_nothing(entry: EntryPoint) {
    let fails: [fn() -> Fetched; 5] = [
        || Err("broken"),
        || with_status(404, "gone"),
        || with_status(500, "broken"),
        || with_status(302, "elsewhere"),
        || with_status(200, &"x".repeat(101)),
    ];
    for fail in fails {
        let asked = Asked::default();
        let fetch = asked.answers(move |_| fail());
        let fixture = with_route(entry, |route| {
            let route = route.replay(ReplayMode::Reconstruct).max_response(100);
            route.reconstruct(fetch)
        })
        .await;
        fixture.post("/do/schema-1", "k1", "{}").await;
        for _ in 0..2 {
            let again = fixture.post("/do/schema-1", "k1", "{}").await;
            again.refuses(503, "idempotency_replay_unavailable");
            assert_eq!(again.header("retry-after"), Some("1"));
            assert_eq!(again.json()["retryable"], true);
        }
        assert_eq!((asked.times(), fixture.app.executions()), (2, 1));
    }
    let fixture = with_route(entry, |route| {
        let route = route.replay(ReplayMode::Reconstruct).execute_max(SHORT);
        route.reconstruct(|_| std::future::pending::<Fetched>())
    })
    .await;
    fixture.post("/do/schema-1", "k1", "{}").await;
    let again = fixture.post("/do/schema-1", "k1", "{}").await;
    again.refuses(503, "idempotency_replay_unavailable");
    assert_eq!(fixture.app.executions(), 1);
}

async fn a_permitted_caller_gets_the_replay(entry: EntryPoint) {
    let asked = Asked::default();
    let ask = asked.answers(|_| with_status(200, "yes"));
    let fixture = with_route(entry, |route| route.authorize(ask)).await;
    let first = fixture.post("/do/schema-1", "k1", "{}").await;
    assert_eq!(asked.times(), 0, "the first request is no replay");
    // From the store, then from the cache: each is asked for.
    for times in 1..=3 {
        let again = fixture.post("/do/schema-1", "k1", "{}").await;
        assert!(again.is_replay());
        assert_eq!(again.body, first.body);
        assert_eq!(asked.times(), times);
    }
    let last = asked.last.lock().unwrap().take().unwrap();
    assert_eq!(last.identity.tenant(), "acme");
    assert_eq!(last.head.headers["x-account"], "acme");
    assert_eq!((last.status.as_u16(), fixture.app.executions()), (201, 1));
}

async fn a_denied_caller_gets_the_denial(entry: EntryPoint) {
    for status in [401, 403] {
        let asked = Asked::default();
        // Permitted once, which fills the cache, and then revoked.
        let ask = asked.answers(move |times| match times {
            1 => with_status(204, ""),
            _ => with_status(status, "revoked"),
        });
        let fixture = with_route(entry, |route| route.authorize(ask)).await;
        fixture.post("/do/schema-1", "k1", "{}").await;
        assert!(fixture.post("/do/schema-1", "k1", "{}").await.is_replay());
        for _ in 0..2 {
            let denied = fixture.post("/do/schema-1", "k1", "{}").await;
            assert_eq!((denied.status.as_u16(), denied.text()), (status, "revoked"));
            assert_eq!(denied.header("www-authenticate"), Some("Bearer"));
            assert!(!denied.is_replay());
        }
        assert_eq!((asked.times(), fixture.app.executions()), (3, 1));
        // The status does not disclose the response either.
        let id = fixture.records().await[0].id;
        let head = http::Request::get(format!("/.semel/operations/{id}"))
            .header("x-account", "acme")
            .body(())
            .unwrap();
        let shown = fixture.layer.status(&head.into_parts().0).await.unwrap();
        let shown: serde_json::Value = serde_json::from_slice(shown.body()).unwrap();
        assert_eq!(shown["status"], "completed");
        assert_eq!(shown.get("response"), None);
    }
}

async fn an_unanswered_question_returns_503(entry: EntryPoint) {
    let answers: [fn() -> Fetched; 4] = [
        || Err("broken"),
        || with_status(404, ""),
        || with_status(302, ""),
        || with_status(500, ""),
    ];
    for answer in answers {
        let asked = Asked::default();
        let ask = asked.answers(move |_| answer());
        let fixture = with_route(entry, |route| route.authorize(ask)).await;
        fixture.post("/do/schema-1", "k1", "{}").await;
        let again = fixture.post("/do/schema-1", "k1", "{}").await;
        again.refuses(503, "idempotency_replay_unavailable");
        assert_eq!(again.header("retry-after"), Some("1"));
        assert_eq!(fixture.app.executions(), 1);
    }
}
