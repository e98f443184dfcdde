//! How webhook events are applied to records.

use std::time::Duration;

use bytes::Bytes;
use semel_core::history::EntryKind;
use semel_core::inbox::{Handling, Message, Receipt};
use semel_core::{Decision, Fence, Key, OperationId, Resolve, Status, Store as _, Verdict};
use semel_testkit::faulty::{Fault, Gate, Verb};
use semel_worker::{Applied, Delivered, Notice, NoticeTarget, NoticeVerdict, Worker, apply};

use crate::support::{Fixture, PAY, SECOND, completion, identity, in_tenant, operator, response};

const PATIENTLY: Handling = Handling {
    look_after: Duration::from_secs(2),
    remember: Duration::from_hours(72),
};

fn notice(target: NoticeTarget, verdict: NoticeVerdict) -> Notice {
    Notice {
        target,
        verdict,
        evidence: Bytes::from_static(b"{\"type\":\"payment\"}"),
    }
}

fn succeeded(target: NoticeTarget) -> Notice {
    notice(target, NoticeVerdict::Completed(response("paid")))
}

fn by_id(fence: Fence) -> NoticeTarget {
    NoticeTarget::Operation(fence.id)
}

fn by_key(operations: &[&str]) -> NoticeTarget {
    NoticeTarget::Key {
        tenant: "acme".into(),
        key: Key::new("k").unwrap(),
        operations: operations.iter().map(|name| (*name).into()).collect(),
    }
}

impl Fixture {
    async fn apply(&self, notice: &Notice) -> Applied {
        apply(&self.store, "psp", notice).await.unwrap()
    }

    async fn receive(&self, id: &str, payload: Bytes) {
        let message = Message {
            source: "psp".into(),
            id: id.into(),
            payload,
        };
        let receipt = self
            .store
            .receive_message(message, PATIENTLY)
            .await
            .unwrap();
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
async fn an_event_resolves_an_unknown_record_by_id_key_or_resource() {
    for way in 0..5 {
        let fixture = Fixture::new();
        let scoped = if way == 4 { in_tenant } else { identity };
        let fence = fixture.unknown_as(scoped(PAY, "k")).await;
        if way == 1 {
            let dead = fixture.store.dead_letter(fence, "exhausted".into());
            dead.await.unwrap();
        }
        let target = match way {
            0 | 1 => by_id(fence),
            2 => NoticeTarget::Resource(format!("pay_{}", fence.id).into()),
            _ => by_key(&["refund", PAY]),
        };
        assert_eq!(
            fixture.apply(&succeeded(target)).await,
            Applied::Resolved,
            "{way}"
        );
        let Decision::Replay(replay) = fixture.decide(scoped(PAY, "k")).await else {
            panic!("not completed");
        };
        assert_eq!(replay.response, response("paid"));
        // The resource that the executor recorded is kept.
        assert!(replay.resource.is_some());
        let history = fixture.history(fence).await;
        let (what, who, _, seen) = history.last().unwrap();
        assert_eq!(
            (*what, who.as_str(), seen.as_str()),
            (
                EntryKind::ResolvedCompleted,
                "webhook:psp",
                "{\"type\":\"payment\"}"
            )
        );
    }
}

#[tokio::test]
async fn not_executed_releases_a_first_attempt() {
    let fixture = Fixture::new();
    let fence = fixture.unknown(PAY, "k").await;
    let never = notice(by_id(fence), NoticeVerdict::NotExecuted);
    assert_eq!(fixture.apply(&never).await, Applied::Resolved);
    assert_eq!(fixture.status(fence).await, Status::FailedRetryable);
    // The same event again, under another id.
    assert_eq!(fixture.apply(&never).await, Applied::Moot);
}

/// The event may be a late one about the attempt before. Releasing the second attempt because of it
/// would let a third execute beside it.
#[tokio::test]
async fn not_executed_does_not_release_a_later_attempt() {
    let fixture = Fixture::new();
    let first = fixture.unknown(PAY, "k").await;
    fixture.release(first).await;
    let second = fixture.begin(PAY, "k").await;
    fixture.lose(second).await;
    let before = fixture.unresolved(second).await;
    let never = notice(by_id(first), NoticeVerdict::NotExecuted);
    assert_eq!(fixture.apply(&never).await, Applied::Moot);
    assert_eq!(fixture.unresolved(second).await, before);
    let history = fixture.history(second).await;
    let (what, who, code, seen) = history.last().unwrap();
    assert_eq!((*what, who.as_str()), (EntryKind::Asked, "webhook:psp"));
    assert_eq!(code, "webhook_not_executed_of_some_attempt");
    assert!(!seen.is_empty());
    // A success is true of the operation, whichever attempt caused it.
    assert_eq!(
        fixture.apply(&succeeded(by_id(first))).await,
        Applied::Resolved
    );
}

#[tokio::test]
async fn an_event_does_not_change_a_settled_record() {
    let fixture = Fixture::new();
    let fence = fixture.begin(PAY, "k").await;
    let end = fixture.store.complete(fence, completion("by its owner"));
    end.await.unwrap();
    let before = fixture.record(fence).await;
    for says in [
        NoticeVerdict::Completed(response("paid")),
        NoticeVerdict::NotExecuted,
    ] {
        let event = notice(by_id(fence), says);
        assert_eq!(fixture.apply(&event).await, Applied::Moot);
        assert_eq!(fixture.record(fence).await, before);
    }
    fixture.clock.advance(Duration::from_hours(25));
    fixture.store.expire(10).await.unwrap();
    assert_eq!(fixture.status(fence).await, Status::Expired);
    assert_eq!(fixture.apply(&succeeded(by_id(fence))).await, Applied::Moot);
}

#[tokio::test]
async fn an_event_that_contradicts_a_release_changes_nothing_and_is_reported() {
    let fixture = Fixture::new();
    let fence = fixture.unknown(PAY, "k").await;
    fixture.release(fence).await;
    let before = fixture.record(fence).await;
    let event = succeeded(by_id(fence));
    assert_eq!(fixture.apply(&event).await, Applied::Contradicted);
    assert_eq!(fixture.record(fence).await, before);
}

#[tokio::test]
async fn an_early_event_is_parked() {
    let fixture = Fixture::new();
    let unheard_of = NoticeTarget::Operation(OperationId::generate());
    assert_eq!(fixture.apply(&succeeded(unheard_of)).await, Applied::Parked);
    let fence = fixture.begin(PAY, "k").await;
    for says in [
        NoticeVerdict::Completed(response("paid")),
        NoticeVerdict::NotExecuted,
    ] {
        let event = notice(by_id(fence), says);
        assert_eq!(fixture.apply(&event).await, Applied::Parked);
    }
    assert_eq!(fixture.status(fence).await, Status::InProgress);
}

#[tokio::test]
async fn an_ambiguous_event_resolves_no_record() {
    let fixture = Fixture::new();
    let pay = fixture.unknown(PAY, "k").await;
    let refund = fixture.unknown("refund", "k").await;
    let event = succeeded(by_key(&[PAY, "refund"]));
    assert_eq!(fixture.apply(&event).await, Applied::Parked);
    // The same if one of them is settled: the event may be about either.
    let end = fixture.store.complete(refund, completion("refunded"));
    end.await.unwrap();
    assert_eq!(fixture.apply(&event).await, Applied::Parked);
    assert_eq!(fixture.status(pay).await, Status::Unknown);
    // If the sender may only report on payments, the event matches the payment.
    let event = succeeded(by_key(&[PAY]));
    assert_eq!(fixture.apply(&event).await, Applied::Resolved);
    let event = succeeded(by_key(&[PAY, "refund"]));
    assert_eq!(fixture.apply(&event).await, Applied::Moot);
}

#[tokio::test]
async fn an_event_does_not_match_another_tenant_or_operation() {
    let fixture = Fixture::new();
    let fence = fixture.unknown_as(in_tenant(PAY, "k")).await;
    let event = succeeded(by_key(&["refund"]));
    assert_eq!(fixture.apply(&event).await, Applied::Parked);
    for tenant in ["other", ""] {
        let target = NoticeTarget::Key {
            tenant: tenant.into(),
            key: Key::new("k").unwrap(),
            operations: vec![PAY.into()],
        };
        assert_eq!(fixture.apply(&succeeded(target)).await, Applied::Parked);
    }
    assert_eq!(fixture.status(fence).await, Status::Unknown);
}

#[tokio::test]
async fn an_overtaken_event_reads_the_record_again() {
    let fixture = Fixture::new();
    let fence = fixture.unknown(PAY, "k").await;
    let gate = Gate::closed();
    fixture
        .store
        .next(Verb::Resolve, Fault::HoldBefore(gate.clone()));
    let (store, event) = (fixture.store.clone(), succeeded(by_id(fence)));
    let applied = tokio::spawn(async move { apply(&store, "psp", &event).await });
    gate.reached().await;
    let end = fixture
        .store
        .inner()
        .complete(fence, completion("by its owner"));
    end.await.unwrap();
    gate.open();
    assert_eq!(applied.await.unwrap().unwrap(), Applied::Moot);
    let history = fixture.history(fence).await;
    assert_eq!(history.last().unwrap().0, EntryKind::CompletedLate);
}

#[tokio::test]
async fn a_parked_event_resolves_its_record_later() {
    let fixture = Fixture::new();
    let worker = Worker::new(fixture.store.clone());
    fixture
        .receive("evt_1", succeeded(by_key(&[PAY])).to_bytes())
        .await;
    assert_eq!(worker.deliver_once().await.unwrap(), Delivered::default());
    fixture.clock.advance(2 * SECOND);
    assert_eq!(worker.deliver_once().await.unwrap().parked, 1);
    let fence = fixture.unknown(PAY, "k").await;
    fixture.clock.advance(2 * SECOND);
    assert_eq!(worker.deliver_once().await.unwrap().resolved, 1);
    assert_eq!(fixture.status(fence).await, Status::Completed);
    fixture.clock.advance(Duration::from_hours(1));
    assert_eq!(worker.deliver_once().await.unwrap(), Delivered::default());
}

#[tokio::test]
async fn an_event_without_a_record_is_given_up_after_its_last_try() {
    let fixture = Fixture::new();
    let worker = Worker::new(fixture.store.clone());
    let event = succeeded(NoticeTarget::Resource("unknown".into()));
    fixture.receive("evt_1", event.to_bytes()).await;
    fixture
        .receive("evt_2", Bytes::from_static(b"no notice"))
        .await;
    fixture.clock.advance(2 * SECOND);
    let round = worker.deliver_once().await.unwrap();
    assert_eq!((round.parked, round.given_up), (1, 1));
    for tries in 2..=20 {
        fixture.clock.advance(Duration::from_mins(5));
        let round = worker.deliver_once().await.unwrap();
        let given_up = usize::from(tries == 20);
        assert_eq!(
            (round.claimed, round.given_up),
            (1, given_up),
            "try {tries}"
        );
    }
    fixture.clock.advance(Duration::from_hours(1));
    assert_eq!(worker.deliver_once().await.unwrap(), Delivered::default());
}

#[tokio::test]
async fn an_event_is_settled_only_after_it_is_applied() {
    let fixture = Fixture::new();
    let worker = Worker::new(fixture.store.clone());
    let fence = fixture.unknown(PAY, "k").await;
    fixture
        .receive("evt_1", succeeded(by_id(fence)).to_bytes())
        .await;
    fixture.clock.advance(2 * SECOND);
    fixture.store.next(Verb::Resolve, Fault::FailBefore);
    assert!(worker.deliver_once().await.is_err());
    fixture.clock.advance(2 * SECOND);
    // The event is applied but cannot be settled: the next try finds it moot.
    fixture.store.next(Verb::SettleMessage, Fault::FailBefore);
    assert!(worker.deliver_once().await.is_err());
    assert_eq!(fixture.status(fence).await, Status::Completed);
    fixture.clock.advance(Duration::from_mins(1));
    assert_eq!(worker.deliver_once().await.unwrap().moot, 1);
}
