//! An application that completes its own record in its own transaction: whether or not it then
//! responds, the client receives the stored response.

use semel_core::{Completion, Decision, Fence, OperationId, Reserve, Response, Status, Store as _};
use semel_testkit::faulty::{Fault, Verb};

use crate::boundary::fixture::{EntryPoint, Fixture, stripe};

crate::boundary::through_both_entry_points!(
    the_stored_record_answers_however_the_attempt_ends,
    a_stored_failure_is_no_replay_for_stripe,
    a_stored_response_without_a_body_returns_410,
    a_record_that_cannot_be_read_is_pending,
    an_identical_response_is_not_read_again,
    completion_by_another_attempt_is_an_incident,
);

pub(super) fn stored(status: u16, body: Option<&'static str>) -> Completion {
    let response = Response {
        status,
        headers: vec![("etag".into(), "\"stored\"".into())],
        body: body.map(Into::into),
        schema_version: 0,
    };
    Completion {
        response,
        resource: None,
    }
}

/// Has the application complete its record before it answers.
pub(super) fn completes_itself(fixture: &Fixture, completion: Completion) {
    let store = fixture.store.clone();
    let hook = move || {
        let (store, completion) = (store.clone(), completion.clone());
        Box::pin(async move {
            let fence = only(&store).await;
            store.inner().complete(fence, completion).await.unwrap();
        }) as _
    };
    assert!(fixture.app.hook.set(Box::new(hook)).is_ok());
}

/// The fence of the only record.
async fn only(store: &crate::boundary::fixture::Store) -> Fence {
    let page = store
        .inner()
        .list(semel_core::store::Query::default())
        .await;
    page.unwrap().operations[0].fence
}

async fn the_stored_record_answers_however_the_attempt_ends(entry: EntryPoint) {
    for does in [
        "status-201",
        // The application crashes or loses its connection.
        "panic",
        "broken",
        // Unknown, released, forgotten.
        "status-503",
        "status-408",
        "status-429",
        "say-not-executed-500",
        "sized-1048577",
    ] {
        let fixture = Fixture::new(entry).await;
        completes_itself(&fixture, stored(202, Some("stored")));
        let path = format!("/do/hooked-{does}");
        let first = fixture.post(&path, "k1", "{}").await;
        assert_eq!(
            (first.status.as_u16(), first.text()),
            (202, "stored"),
            "{does}"
        );
        assert_eq!(first.header("etag"), Some("\"stored\""));
        assert!(!first.is_replay(), "{does}");
        assert!(first.header("idempotency-key-expires").is_some());
        let again = fixture.post(&path, "k1", "{}").await;
        assert!(again.is_replay());
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        let expires = "idempotency-key-expires";
        assert_eq!(again.header(expires), first.header(expires));
        assert_eq!(fixture.app.executions(), 1);
        assert_eq!(fixture.status().await, Some(Status::Completed));
    }
}

async fn a_stored_failure_is_no_replay_for_stripe(entry: EntryPoint) {
    let fixture = Fixture::with(entry, stripe).await;
    completes_itself(&fixture, stored(500, Some("stored")));
    let first = fixture.post("/do/hooked-panic", "k1", "{}").await;
    assert_eq!((first.status.as_u16(), first.text()), (500, "stored"));
    assert_eq!(first.header("stripe-should-retry"), None);
}

async fn a_stored_response_without_a_body_returns_410(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    completes_itself(&fixture, stored(202, None));
    // The retry gets the same response.
    for _ in 0..2 {
        let answer = fixture.post("/do/hooked-status-201", "k1", "{}").await;
        answer.refuses(410, "idempotency_response_not_stored");
    }
    assert_eq!(fixture.app.executions(), 1);
}

async fn a_record_that_cannot_be_read_is_pending(entry: EntryPoint) {
    for fault in [Fault::FailBefore, Fault::FailAfter] {
        let fixture = Fixture::new(entry).await;
        completes_itself(&fixture, stored(202, Some("stored")));
        let mut reserved = 0;
        fixture.store.when(move |verb, _| {
            reserved += usize::from(verb == Verb::Reserve);
            (verb == Verb::Reserve && reserved == 2).then_some(fault.clone())
        });
        let first = fixture.post("/do/hooked-status-201", "k1", "{}").await;
        first.refuses(503, "idempotency_outcome_pending");
        let again = fixture.post("/do/hooked-status-201", "k1", "{}").await;
        assert_eq!((again.text(), again.is_replay()), ("stored", true));
        assert_eq!(fixture.app.executions(), 1);
    }
}

async fn an_identical_response_is_not_read_again(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let completion = Completion {
        response: Response {
            status: 204,
            headers: vec![],
            body: Some("".into()),
            schema_version: 0,
        },
        resource: None,
    };
    completes_itself(&fixture, completion);
    let mut reserved = 0;
    fixture.store.when(move |verb, _| {
        reserved += usize::from(verb == Verb::Reserve);
        assert!(reserved <= 1, "the record was read");
        None
    });
    let first = fixture.post("/do/hooked-empty", "k1", "{}").await;
    assert_eq!((first.status.as_u16(), first.is_replay()), (204, false));
}

/// Another attempt took the record over: the operation may have been executed twice.
async fn completion_by_another_attempt_is_an_incident(entry: EntryPoint) {
    for (completed, does) in [(false, "status-201"), (true, "status-201"), (true, "panic")] {
        let fixture = Fixture::new(entry).await;
        let store = fixture.store.clone();
        let hook = move || {
            let store = store.clone();
            Box::pin(async move {
                let fence = next_attempt(&store).await;
                if completed {
                    let completion = stored(202, Some("of another attempt"));
                    store.inner().complete(fence, completion).await.unwrap();
                }
            }) as _
        };
        assert!(fixture.app.hook.set(Box::new(hook)).is_ok());
        let path = format!("/do/hooked-{does}");
        let first = fixture.post(&path, "k1", "{}").await;
        let status = if does == "panic" { 504 } else { 409 };
        first.refuses(status, "idempotency_outcome_unknown");
        assert!(first.header("location").is_some());
    }
}

/// Releases the only record and reserves it for the next attempt.
async fn next_attempt(store: &crate::boundary::fixture::Store) -> Fence {
    let store = store.inner();
    let page = store
        .list(semel_core::store::Query::default())
        .await
        .unwrap();
    let fence = page.operations[0].fence;
    let record = store.find(fence.id).await.unwrap().unwrap();
    store.release(fence, "test".into()).await.unwrap();
    let again = Reserve {
        id: OperationId::generate(),
        identity: record.identity,
        fingerprints: record.fingerprint.into(),
        owner: "another".into(),
        policy: semel_core::Policy::default(),
    };
    match store.reserve(again).await.unwrap() {
        Decision::Execute(grant) => grant.fence,
        other => panic!("{other:?}"),
    }
}
