//! An application that completes its own record, in a transaction of its own, and then answers
//! or does not: its client is told what the record says.

use semel_core::{Completion, Decision, Fence, OperationId, Reserve, Response, Status, Store as _};
use semel_testkit::faulty::{Fault, Verb};

use crate::world::{Door, World, stripe};

crate::through_both_doors!(
    whatever_it_then_does_the_record_answers,
    a_stored_failure_is_no_replay_for_stripe,
    a_stored_answer_without_a_body_is_told,
    a_record_that_cannot_be_read_is_pending,
    the_same_answer_needs_no_second_look,
    another_attempt_is_an_incident_as_before,
);

fn stored(status: u16, body: Option<&'static str>) -> Completion {
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
fn completes_itself(world: &World, completion: Completion) {
    let store = world.store.clone();
    let hook = move || {
        let (store, completion) = (store.clone(), completion.clone());
        Box::pin(async move {
            let fence = only(&store).await;
            store.inner().complete(fence, completion).await.unwrap();
        }) as _
    };
    assert!(world.app.hook.set(Box::new(hook)).is_ok());
}

/// The fence of the only record.
async fn only(store: &crate::world::Store) -> Fence {
    use semel_core::Inspect as _;
    let page = store
        .inner()
        .list(semel_core::store::Query::default())
        .await;
    page.unwrap().operations[0].fence
}

async fn whatever_it_then_does_the_record_answers(door: Door) {
    for does in [
        "status-201",
        // In other words: it died, or lost its connection.
        "panic",
        "broken",
        // Unknown, released, forgotten.
        "status-503",
        "status-408",
        "status-429",
        "say-not-executed-500",
        "sized-1048577",
    ] {
        let world = World::new(door).await;
        completes_itself(&world, stored(202, Some("stored")));
        let path = format!("/do/hooked-{does}");
        let first = world.post(&path, "k1", "{}").await;
        assert_eq!(
            (first.status.as_u16(), first.text()),
            (202, "stored"),
            "{does}"
        );
        assert_eq!(first.header("etag"), Some("\"stored\""));
        assert!(!first.is_replay(), "{does}");
        assert!(first.header("idempotency-key-expires").is_some());
        let again = world.post(&path, "k1", "{}").await;
        assert!(again.is_replay());
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        let expires = "idempotency-key-expires";
        assert_eq!(again.header(expires), first.header(expires));
        assert_eq!(world.app.executions(), 1);
        assert_eq!(world.status().await, Some(Status::Completed));
    }
}

async fn a_stored_failure_is_no_replay_for_stripe(door: Door) {
    let world = World::with(door, stripe).await;
    completes_itself(&world, stored(500, Some("stored")));
    let first = world.post("/do/hooked-panic", "k1", "{}").await;
    assert_eq!((first.status.as_u16(), first.text()), (500, "stored"));
    assert_eq!(first.header("stripe-should-retry"), None);
}

async fn a_stored_answer_without_a_body_is_told(door: Door) {
    let world = World::new(door).await;
    completes_itself(&world, stored(202, None));
    // What a retry is told, too.
    for _ in 0..2 {
        let answer = world.post("/do/hooked-status-201", "k1", "{}").await;
        answer.refuses(410, "idempotency_response_not_stored");
    }
    assert_eq!(world.app.executions(), 1);
}

async fn a_record_that_cannot_be_read_is_pending(door: Door) {
    for fault in [Fault::FailBefore, Fault::FailAfter] {
        let world = World::new(door).await;
        completes_itself(&world, stored(202, Some("stored")));
        let mut reserved = 0;
        world.store.when(move |verb, _| {
            reserved += usize::from(verb == Verb::Reserve);
            (verb == Verb::Reserve && reserved == 2).then_some(fault.clone())
        });
        let first = world.post("/do/hooked-status-201", "k1", "{}").await;
        first.refuses(503, "idempotency_outcome_pending");
        let again = world.post("/do/hooked-status-201", "k1", "{}").await;
        assert_eq!((again.text(), again.is_replay()), ("stored", true));
        assert_eq!(world.app.executions(), 1);
    }
}

async fn the_same_answer_needs_no_second_look(door: Door) {
    let world = World::new(door).await;
    let completion = Completion {
        response: Response {
            status: 204,
            headers: vec![],
            body: Some("".into()),
            schema_version: 0,
        },
        resource: None,
    };
    completes_itself(&world, completion);
    let mut reserved = 0;
    world.store.when(move |verb, _| {
        reserved += usize::from(verb == Verb::Reserve);
        assert!(reserved <= 1, "the record was read");
        None
    });
    let first = world.post("/do/hooked-empty", "k1", "{}").await;
    assert_eq!((first.status.as_u16(), first.is_replay()), (204, false));
}

/// The record went on without this attempt: what it did may have been done twice.
async fn another_attempt_is_an_incident_as_before(door: Door) {
    for (completed, does) in [(false, "status-201"), (true, "status-201"), (true, "panic")] {
        let world = World::new(door).await;
        let store = world.store.clone();
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
        assert!(world.app.hook.set(Box::new(hook)).is_ok());
        let path = format!("/do/hooked-{does}");
        let first = world.post(&path, "k1", "{}").await;
        let status = if does == "panic" { 504 } else { 409 };
        first.refuses(status, "idempotency_outcome_unknown");
        assert!(first.header("location").is_some());
    }
}

/// Takes the only record away from its attempt, and gives it to the next.
async fn next_attempt(store: &crate::world::Store) -> Fence {
    use semel_core::Inspect as _;
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
