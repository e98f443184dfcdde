//! What is made of events from elsewhere.

use std::time::Duration;

use bytes::Bytes;
use semel_core::history::What;
use semel_core::inbox::{Handling, Message, Receipt};
use semel_core::{
    Decision, Fence, Inbox as _, Key, Maintain as _, OperationId, Resolve, Status, Store as _,
    Verdict,
};
use semel_testkit::faulty::{Fault, Gate, Verb};
use semel_worker::{About, Applied, Delivered, Notice, Says, Worker, apply};

use crate::support::{PAY, SECOND, World, completion, identity, in_tenant, operator, response};

const PATIENTLY: Handling = Handling {
    look_after: Duration::from_secs(2),
    remember: Duration::from_hours(72),
};

fn notice(about: About, says: Says) -> Notice {
    Notice {
        about,
        says,
        evidence: Bytes::from_static(b"{\"type\":\"payment\"}"),
    }
}

fn succeeded(about: About) -> Notice {
    notice(about, Says::Completed(response("paid")))
}

fn by_id(fence: Fence) -> About {
    About::Operation(fence.id)
}

fn by_key(operations: &[&str]) -> About {
    About::Key {
        tenant: "acme".into(),
        key: Key::new("k").unwrap(),
        operations: operations.iter().map(|name| (*name).into()).collect(),
    }
}

impl World {
    async fn told_by(&self, notice: &Notice) -> Applied {
        apply(&self.store, "psp", notice).await.unwrap()
    }

    async fn receive(&self, id: &str, payload: Bytes) {
        let message = Message {
            source: "psp".into(),
            id: id.into(),
            payload,
        };
        let receipt = self.store.receive(message, PATIENTLY).await.unwrap();
        assert_eq!(receipt, Receipt::New);
    }

    async fn release(&self, fence: Fence) {
        let release = Resolve {
            fence,
            verdict: Verdict::NotExecuted("proven".into()),
            by: operator(),
            evidence: None,
        };
        self.store.resolve(release).await.unwrap();
    }
}

#[tokio::test]
async fn an_event_resolves_what_is_unknown_however_it_names_it() {
    for way in 0..5 {
        let world = World::new();
        let scoped = if way == 4 { in_tenant } else { identity };
        let fence = world.unknown_as(scoped(PAY, "k")).await;
        if way == 1 {
            let dead = world.store.dead_letter(fence, "exhausted".into());
            dead.await.unwrap();
        }
        let about = match way {
            0 | 1 => by_id(fence),
            2 => About::Resource(format!("pay_{}", fence.id).into()),
            _ => by_key(&["refund", PAY]),
        };
        assert_eq!(
            world.told_by(&succeeded(about)).await,
            Applied::Resolved,
            "{way}"
        );
        let Decision::Replay(replay) = world.decide(scoped(PAY, "k")).await else {
            panic!("not completed");
        };
        assert_eq!(replay.response, response("paid"));
        // What the executor had named is kept.
        assert!(replay.resource.is_some());
        let told = world.told(fence).await;
        let (what, who, _, seen) = told.last().unwrap();
        assert_eq!(
            (*what, who.as_str(), seen.as_str()),
            (
                What::ResolvedCompleted,
                "webhook:psp",
                "{\"type\":\"payment\"}"
            )
        );
    }
}

#[tokio::test]
async fn the_providers_word_that_nothing_happened_releases_a_first_attempt() {
    let world = World::new();
    let fence = world.unknown(PAY, "k").await;
    let never = notice(by_id(fence), Says::NotExecuted);
    assert_eq!(world.told_by(&never).await, Applied::Resolved);
    assert_eq!(world.status(fence).await, Status::FailedRetryable);
    // Once more, under another id.
    assert_eq!(world.told_by(&never).await, Applied::Moot);
}

/// The event may be about the attempt before, told late. Releasing the second on its word would
/// allow a third beside it.
#[tokio::test]
async fn that_word_does_not_release_a_later_attempt() {
    let world = World::new();
    let first = world.unknown(PAY, "k").await;
    world.release(first).await;
    let second = world.begin(PAY, "k").await;
    world.lose(second).await;
    let before = world.unresolved(second).await;
    let never = notice(by_id(first), Says::NotExecuted);
    assert_eq!(world.told_by(&never).await, Applied::Moot);
    assert_eq!(world.unresolved(second).await, before);
    let told = world.told(second).await;
    let (what, who, code, seen) = told.last().unwrap();
    assert_eq!((*what, who.as_str()), (What::Asked, "webhook:psp"));
    assert_eq!(code, "webhook_not_executed_of_some_attempt");
    assert!(!seen.is_empty());
    // That it happened is true of the operation, whichever attempt did it.
    assert_eq!(
        world.told_by(&succeeded(by_id(first))).await,
        Applied::Resolved
    );
}

#[tokio::test]
async fn what_is_over_is_not_changed_by_an_event() {
    let world = World::new();
    let fence = world.begin(PAY, "k").await;
    let end = world.store.complete(fence, completion("by its owner"));
    end.await.unwrap();
    let before = world.record(fence).await;
    for says in [Says::Completed(response("paid")), Says::NotExecuted] {
        let event = notice(by_id(fence), says);
        assert_eq!(world.told_by(&event).await, Applied::Moot);
        assert_eq!(world.record(fence).await, before);
    }
    world.clock.advance(Duration::from_hours(25));
    world.store.expire(10).await.unwrap();
    assert_eq!(world.status(fence).await, Status::Expired);
    assert_eq!(world.told_by(&succeeded(by_id(fence))).await, Applied::Moot);
}

#[tokio::test]
async fn an_event_that_contradicts_a_release_changes_nothing_and_is_told() {
    let world = World::new();
    let fence = world.unknown(PAY, "k").await;
    world.release(fence).await;
    let before = world.record(fence).await;
    let event = succeeded(by_id(fence));
    assert_eq!(world.told_by(&event).await, Applied::Contradicted);
    assert_eq!(world.record(fence).await, before);
}

#[tokio::test]
async fn an_event_that_is_early_waits() {
    let world = World::new();
    let unheard_of = About::Operation(OperationId::generate());
    assert_eq!(world.told_by(&succeeded(unheard_of)).await, Applied::Parked);
    let fence = world.begin(PAY, "k").await;
    for says in [Says::Completed(response("paid")), Says::NotExecuted] {
        let event = notice(by_id(fence), says);
        assert_eq!(world.told_by(&event).await, Applied::Parked);
    }
    assert_eq!(world.status(fence).await, Status::InProgress);
}

#[tokio::test]
async fn an_event_that_fits_two_operations_resolves_neither() {
    let world = World::new();
    let pay = world.unknown(PAY, "k").await;
    let refund = world.unknown("refund", "k").await;
    let event = succeeded(by_key(&[PAY, "refund"]));
    assert_eq!(world.told_by(&event).await, Applied::Parked);
    // One that is over is no better: the event may be about either.
    let end = world.store.complete(refund, completion("refunded"));
    end.await.unwrap();
    assert_eq!(world.told_by(&event).await, Applied::Parked);
    assert_eq!(world.status(pay).await, Status::Unknown);
    // A sender whose events are about payments only means the payment.
    let event = succeeded(by_key(&[PAY]));
    assert_eq!(world.told_by(&event).await, Applied::Resolved);
    let event = succeeded(by_key(&[PAY, "refund"]));
    assert_eq!(world.told_by(&event).await, Applied::Moot);
}

#[tokio::test]
async fn an_event_is_not_about_another_tenant_or_another_command() {
    let world = World::new();
    let fence = world.unknown_as(in_tenant(PAY, "k")).await;
    let event = succeeded(by_key(&["refund"]));
    assert_eq!(world.told_by(&event).await, Applied::Parked);
    for tenant in ["other", ""] {
        let about = About::Key {
            tenant: tenant.into(),
            key: Key::new("k").unwrap(),
            operations: vec![PAY.into()],
        };
        assert_eq!(world.told_by(&succeeded(about)).await, Applied::Parked);
    }
    assert_eq!(world.status(fence).await, Status::Unknown);
}

#[tokio::test]
async fn an_event_that_is_overtaken_looks_again() {
    let world = World::new();
    let fence = world.unknown(PAY, "k").await;
    let gate = Gate::closed();
    world
        .store
        .next(Verb::Resolve, Fault::HoldBefore(gate.clone()));
    let (store, event) = (world.store.clone(), succeeded(by_id(fence)));
    let applied = tokio::spawn(async move { apply(&store, "psp", &event).await });
    gate.reached().await;
    let end = world
        .store
        .inner()
        .complete(fence, completion("by its owner"));
    end.await.unwrap();
    gate.open();
    assert_eq!(applied.await.unwrap().unwrap(), Applied::Moot);
    let told = world.told(fence).await;
    assert_eq!(told.last().unwrap().0, What::CompletedLate);
}

#[tokio::test]
async fn a_parked_event_meets_its_operation() {
    let world = World::new();
    let worker = Worker::new(world.store.clone());
    world
        .receive("evt_1", succeeded(by_key(&[PAY])).to_bytes())
        .await;
    assert_eq!(worker.deliver_once().await.unwrap(), Delivered::default());
    world.clock.advance(2 * SECOND);
    assert_eq!(worker.deliver_once().await.unwrap().parked, 1);
    let fence = world.unknown(PAY, "k").await;
    world.clock.advance(2 * SECOND);
    assert_eq!(worker.deliver_once().await.unwrap().resolved, 1);
    assert_eq!(world.status(fence).await, Status::Completed);
    world.clock.advance(Duration::from_hours(1));
    assert_eq!(worker.deliver_once().await.unwrap(), Delivered::default());
}

#[tokio::test]
async fn an_event_that_nothing_comes_of_is_given_up() {
    let world = World::new();
    let worker = Worker::new(world.store.clone());
    let event = succeeded(About::Resource("nobody's".into()));
    world.receive("evt_1", event.to_bytes()).await;
    world
        .receive("evt_2", Bytes::from_static(b"no notice"))
        .await;
    world.clock.advance(2 * SECOND);
    let round = worker.deliver_once().await.unwrap();
    assert_eq!((round.parked, round.given_up), (1, 1));
    for tries in 2..=20 {
        world.clock.advance(Duration::from_mins(5));
        let round = worker.deliver_once().await.unwrap();
        let given_up = usize::from(tries == 20);
        assert_eq!(
            (round.claimed, round.given_up),
            (1, given_up),
            "try {tries}"
        );
    }
    world.clock.advance(Duration::from_hours(1));
    assert_eq!(worker.deliver_once().await.unwrap(), Delivered::default());
}

#[tokio::test]
async fn an_event_is_settled_only_after_it_is_applied() {
    let world = World::new();
    let worker = Worker::new(world.store.clone());
    let fence = world.unknown(PAY, "k").await;
    world
        .receive("evt_1", succeeded(by_id(fence)).to_bytes())
        .await;
    world.clock.advance(2 * SECOND);
    world.store.next(Verb::Resolve, Fault::FailBefore);
    assert!(worker.deliver_once().await.is_err());
    world.clock.advance(2 * SECOND);
    // It is applied, and then cannot be settled: it is looked at once more, and moot.
    world.store.next(Verb::Settle, Fault::FailBefore);
    assert!(worker.deliver_once().await.is_err());
    assert_eq!(world.status(fence).await, Status::Completed);
    world.clock.advance(Duration::from_mins(1));
    assert_eq!(worker.deliver_once().await.unwrap().moot, 1);
}
