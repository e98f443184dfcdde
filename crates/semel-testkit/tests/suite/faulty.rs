//! The faulty store fails as planned, and otherwise forwards to the inner store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::store::Error;
use semel_core::{
    Completion, Decision, Fence, Fingerprint, Held, Identity, Key, Memory, OperationId, Policy,
    Reserve, Response, Status, Store,
};
use semel_testkit::conformance::{Fixture, Harness};
use semel_testkit::faulty::{Fault, Gate, Verb};
use semel_testkit::{Faulty, ManualClock};

struct FaultyMemory;

impl Harness for FaultyMemory {
    type Store = Faulty<Memory>;

    async fn fresh(&self) -> Fixture<Faulty<Memory>> {
        let (store, clock) = store();
        Fixture::new(store, clock)
    }
}

fn store() -> (Faulty<Memory>, ManualClock) {
    let clock = ManualClock::default();
    (Faulty::new(Memory::new(Arc::new(clock.clone()))), clock)
}

fn request() -> Reserve {
    let key = Key::new("8e03978e-40d5-43dd").unwrap();
    Reserve {
        id: OperationId::generate(),
        identity: Identity::new("tenant-1", "create_payment", key).unwrap(),
        fingerprints: Fingerprint::from_parts(1, [1; 32]).into(),
        owner: "host-1/42".into(),
        policy: Policy::default(),
    }
}

fn completion(body: &'static str) -> Completion {
    Completion {
        response: Response {
            status: 201,
            headers: vec![],
            body: Some(Bytes::from_static(body.as_bytes())),
            schema_version: 0,
        },
        resource: None,
    }
}

async fn granted(store: &Faulty<Memory>) -> Fence {
    match store.reserve(request()).await.unwrap() {
        Decision::Execute(grant) => grant.fence,
        other => panic!("{other:?}"),
    }
}

async fn status(store: &Faulty<Memory>, fence: Fence) -> Option<Status> {
    let found = store.inner().find(fence.id).await.unwrap();
    found.map(|record| record.state.status())
}

#[tokio::test]
async fn without_a_plan_calls_are_forwarded() {
    assert_eq!(semel_testkit::conformance::failures(FaultyMemory).await, []);
}

#[tokio::test]
async fn failing_before_performs_nothing() {
    let (store, _) = store();
    store.next(Verb::Reserve, Fault::FailBefore);
    let error = store.reserve(request()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && !error.may_have_written());
    let found = store.find_identity(&request().identity).await.unwrap();
    assert_eq!(found, None);
    granted(&store).await;
}

#[tokio::test]
async fn a_complete_whose_reply_is_lost_is_repeated_when_sent_again() {
    let (store, _) = store();
    let fence = granted(&store).await;
    store.next(Verb::Complete, Fault::FailAfter);
    let error = store.complete(fence, completion("paid")).await.unwrap_err();
    assert!(matches!(error, Error::Ambiguous { .. }) && error.may_have_written());
    let held = store.complete(fence, completion("paid")).await.unwrap();
    assert_eq!(held, Held::Repeated);
}

#[tokio::test]
async fn a_reserve_whose_reply_is_lost_keeps_its_grant() {
    let (store, clock) = store();
    store.next(Verb::Reserve, Fault::FailAfter);
    store.reserve(request()).await.unwrap_err();
    let retry = store.reserve(request()).await.unwrap();
    assert!(matches!(retry, Decision::InProgress(_)), "{retry:?}");
    clock.advance(Policy::default().lease);
    let retry = store.reserve(request()).await.unwrap();
    assert!(matches!(retry, Decision::Unknown(_)), "{retry:?}");
}

#[tokio::test]
async fn a_complete_held_past_the_sweep_is_applied_as_late() {
    let (store, clock) = store();
    let fence = granted(&store).await;
    let gate = Gate::closed();
    store.next(Verb::Complete, Fault::HoldBefore(gate.clone()));
    let late = tokio::spawn({
        let store = store.clone();
        async move { store.complete(fence, completion("late")).await }
    });
    gate.reached().await;
    clock.advance(Policy::default().lease);
    assert_eq!(store.sweep(10).await.unwrap(), [fence]);
    assert_eq!(status(&store, fence).await, Some(Status::Unknown));
    gate.open();
    assert_eq!(late.await.unwrap().unwrap(), Held::Applied);
    assert_eq!(status(&store, fence).await, Some(Status::Completed));
}

#[tokio::test]
async fn a_held_call_is_performed_after_its_caller_gave_up() {
    let (store, _) = store();
    let fence = granted(&store).await;
    let gate = Gate::closed();
    store.next(Verb::Complete, Fault::HoldBefore(gate.clone()));
    let caller = tokio::spawn({
        let store = store.clone();
        async move { store.complete(fence, completion("late")).await }
    });
    gate.reached().await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    assert_eq!(status(&store, fence).await, Some(Status::InProgress));
    gate.open();
    gate.landed().await;
    assert_eq!(status(&store, fence).await, Some(Status::Completed));
}

#[tokio::test]
async fn a_call_held_after_is_performed_before_it_is_answered() {
    let (store, _) = store();
    let fence = granted(&store).await;
    let gate = Gate::closed();
    store.next(Verb::Release, Fault::HoldAfter(gate.clone()));
    let caller = tokio::spawn({
        let store = store.clone();
        async move { store.release(fence, "not_sent".into()).await }
    });
    gate.reached().await;
    assert_eq!(status(&store, fence).await, Some(Status::FailedRetryable));
    assert!(!caller.is_finished());
    gate.open();
    assert_eq!(caller.await.unwrap().unwrap(), Held::Applied);
}

#[tokio::test]
async fn a_read_before_a_late_write_is_stale_and_a_repeated_write_is_not() {
    let (store, _) = store();
    let fence = granted(&store).await;
    let gate = Gate::closed();
    store.next(Verb::Complete, Fault::LandLate(gate.clone()));
    let error = store.complete(fence, completion("paid")).await.unwrap_err();
    assert!(error.may_have_written());
    assert_eq!(
        status(&store, fence).await,
        Some(Status::InProgress),
        "the lie"
    );
    let again = store.complete(fence, completion("paid")).await.unwrap();
    assert_eq!(again, Held::Applied);
    gate.open();
    gate.landed().await;
    assert_eq!(status(&store, fence).await, Some(Status::Completed));
}

#[tokio::test]
async fn plans_apply_per_verb_in_order_before_the_rule() {
    let (store, _) = store();
    let fence = granted(&store).await;
    store.next(Verb::Heartbeat, Fault::FailAfter);
    store.next(Verb::Heartbeat, Fault::FailBefore);
    store.when(|verb, _| (verb == Verb::Sweep).then_some(Fault::FailBefore));
    let beat = async || store.heartbeat(fence, Duration::from_secs(1)).await;
    assert!(store.find(fence.id).await.is_ok());
    assert!(beat().await.unwrap_err().may_have_written());
    assert!(!beat().await.unwrap_err().may_have_written());
    assert!(beat().await.is_ok());
    assert!(store.sweep(1).await.is_err());
    store.next_call(Fault::FailBefore);
    assert!(store.purge(1).await.is_err());
    store.heal();
    assert!(store.sweep(1).await.is_ok());
    assert_eq!(store.calls(), 8);
}
