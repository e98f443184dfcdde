//! Every condition is needed: without any one of them a case fails.

use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::{Handling, Message, Receipt};
use semel_core::outbox::Event;
use semel_core::statistics::Misuse;
use semel_core::transition::{Decision, Verdict};
use semel_core::{
    Actor, Code, Fingerprint, Identity, Key, OperationId, Policy, Reserve, Resolve, Store as _,
    Timestamp,
};
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{Scale, first_failure};
use semel_testkit::guards::Guards;

use super::server::{OnServer, Server};
use super::settled::Settled;
use crate::attributes::{key, number};
use crate::conditions::{Condition, Conditions};
use crate::keys::{self, HEAD};
use crate::store::{Inner, values};

/// Which case detects that a condition is missing: the condition, 0, and the case.
const DETECTORS: &str = include_str!("detectors.txt");

/// The conditions whose detectors are in this file.
const OF_OUR_OWN: [Condition; 4] = [
    Condition::Append,
    Condition::EarlierMisuse,
    Condition::Forget,
    Condition::Remove,
];

impl Publisher for OnServer {
    async fn publish(&self, _: &Settled, _: Event) {
        panic!("this store has no outbox");
    }
}

fn without(removed: Option<Condition>) -> OnServer {
    OnServer {
        conditions: removed.map_or_else(Conditions::default, Conditions::without),
        scale: Scale::QUICK,
        ..OnServer::new(Server::Dynoxide)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_fails_without_any_condition() {
    for condition in Condition::ALL {
        if OF_OUR_OWN.contains(&condition) {
            continue;
        }
        let name = format!("{condition:?}");
        let mut lines = DETECTORS.lines();
        let listed = lines.find_map(|line| line.strip_prefix(&format!("{name} 0 ")));
        let only = |case: &str| (Some(case) == listed).then_some(0);
        if first_failure(without(Some(condition)), only)
            .await
            .is_some()
        {
            continue;
        }
        let any = |case: &str| (!case.starts_with("outbox::")).then_some(0);
        let found = first_failure(without(Some(condition)), any).await;
        let case = found.map(|failure| failure.case);
        panic!("without {name}, {listed:?} passes and {case:?} fails: correct the detector");
    }
}

#[test]
fn the_detectors_pass_with_every_condition() {
    let guards = Guards {
        statements: vec![],
        detectors: DETECTORS,
        alter: |_, identity_hash| OnServer {
            identity_hash,
            ..without(None)
        },
    };
    guards.check_detectors();
}

fn request(key: &str) -> Reserve {
    let key = Key::new(key).unwrap();
    Reserve {
        id: OperationId::generate(),
        identity: Identity::new("tenant-1", "create_payment", key).unwrap(),
        fingerprints: Fingerprint::from_parts(1, [1; 32]).into(),
        owner: "host-1/42".into(),
        policy: Policy::default(),
    }
}

/// The holder gives the key back while another process finds its lease expired: the record that
/// says that it may have executed must stay.
async fn an_eviction_does_not_remove_what_changed(removed: Option<Condition>) -> bool {
    let clock = ManualClock::default();
    let store = without(removed).open(&clock).await;
    let Decision::Execute(grant) = store.reserve(request("k")).await.unwrap() else {
        panic!("the first request executes");
    };
    let held = store.inner.held.get(&grant.fence.id).unwrap();
    clock.advance(Duration::from_mins(1));
    assert_eq!(store.sweep(1).await.unwrap(), [grant.fence]);
    // As a process that has not heard of it.
    store.inner.held.insert(grant.fence.id, held);
    store.evict(grant.fence, "refused".into()).await.unwrap();
    store.find(grant.fence.id).await.unwrap().is_some()
}

#[tokio::test]
async fn an_eviction_needs_its_condition() {
    assert!(an_eviction_does_not_remove_what_changed(None).await);
    assert!(!an_eviction_does_not_remove_what_changed(Some(Condition::Remove)).await);
}

/// Two processes find that their misuse is the first, and the later one writes last.
async fn a_first_misuse_stays_first(removed: Option<Condition>) -> bool {
    let clock = ManualClock::default();
    let store = without(removed).open(&clock).await;
    let misuse = Misuse {
        tenant: "t".into(),
        operation: "pay".into(),
        count: 1,
        first_at: Timestamp::from_micros(1),
        last_at: Timestamp::from_micros(9),
        last_id: OperationId::generate(),
    };
    store
        .add_counts(vec![], vec![misuse.clone()])
        .await
        .unwrap();
    let key = key(keys::MISUSES, &keys::digest(&["t", "pay"]));
    let later = values([(":first", number(5))]);
    let earlier = Some(Condition::EarlierMisuse);
    let written = store.inner.update(key, "SET f = :first", earlier, later);
    written.await.unwrap();
    store.misuses(1).await.unwrap() == [misuse]
}

#[tokio::test]
async fn a_first_misuse_needs_its_condition() {
    assert!(a_first_misuse_stays_first(None).await);
    assert!(!a_first_misuse_stays_first(Some(Condition::EarlierMisuse)).await);
}

/// A removal of a forgotten message is delayed until the message was received anew.
async fn a_delayed_removal_does_not_forget_a_new_message(removed: Option<Condition>) -> bool {
    let clock = ManualClock::default();
    let store = without(removed).open(&clock).await;
    let message = Message {
        source: "psp".into(),
        id: "evt_1".into(),
        payload: Bytes::new(),
    };
    let handling = Handling {
        look_after: Duration::ZERO,
        remember: Duration::from_secs(1),
    };
    let receive = || store.receive_message(message.clone(), handling);
    assert_eq!(receive().await.unwrap(), Receipt::New);
    let partition = keys::message("psp", "evt_1");
    let item = store.inner.read(&partition, HEAD).await.unwrap().unwrap();
    let seen = Inner::version(&item).unwrap();
    clock.advance(Duration::from_secs(1));
    store.inner.remove_item(&partition, HEAD).await.unwrap();
    assert_eq!(receive().await.unwrap(), Receipt::New);
    let removal = store
        .inner
        .remove(&partition, HEAD, Condition::Forget, seen);
    removal.await.unwrap();
    receive().await.unwrap() == Receipt::Repeated
}

#[tokio::test]
async fn a_forgotten_message_needs_its_condition() {
    assert!(a_delayed_removal_does_not_forget_a_new_message(None).await);
    assert!(!a_delayed_removal_does_not_forget_a_new_message(Some(Condition::Forget)).await);
}

/// A writer of an entry is delayed until after the erasure. Its entry is in the history, because
/// another one just like it is, and must not bring back what was erased.
async fn a_delayed_entry_does_not_bring_back_evidence(removed: Option<Condition>) -> bool {
    let clock = ManualClock::default();
    let store = without(removed).open(&clock).await;
    let Decision::Execute(grant) = store.reserve(request("k")).await.unwrap() else {
        panic!("the first request executes");
    };
    let (fence, lost) = (grant.fence, Code::new("timeout"));
    store.mark_unknown(fence, lost, None).await.unwrap();
    let found = Resolve {
        fence,
        verdict: Verdict::Completed(semel_core::Completion::new(201, vec![], "paid")),
        by: Actor::from("reconciler"),
        evidence: Some(Bytes::from_static(b"personal")),
    };
    store.resolve(found).await.unwrap();
    let before = store.history(fence.id).await.unwrap();
    store.erase(fence.id, "operator".into()).await.unwrap();
    let (partition, resolved) = (
        store.inner.partitions.get(&fence.id).unwrap(),
        before.last().unwrap(),
    );
    let head = before.iter().rev().nth(1).map(|entry| crate::item::Head {
        seq: entry.seq,
        hash: entry.hash,
    });
    store
        .inner
        .write_entry(&partition, fence.id, head, resolved)
        .await
        .unwrap();
    let after = store.history(fence.id).await.unwrap();
    after.iter().all(|entry| entry.note.evidence.is_none())
}

#[tokio::test]
async fn an_entry_needs_its_condition() {
    assert!(a_delayed_entry_does_not_bring_back_evidence(None).await);
    assert!(!a_delayed_entry_does_not_bring_back_evidence(Some(Condition::Append)).await);
}
