//! What phases found is sealed as answers are, on every way in and out.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "any answer but the right one fails the test"
)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::store::Which;
use semel_core::transition::Grant;
use semel_core::{
    Backoff, Completion, Decision, Error, Fence, Fingerprint, Held, Identity, Inspect as _, Key,
    Maintain as _, Memory, OperationId, Policy, Record, RecoveryPoint, Reserve, Resolve, Response,
    Stale, Status, Store, Verdict,
};
use semel_seal::{Keyring, Sealed};
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{self, Fixture, Harness, Scale};

const OLD: &str = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NEW: &str = "new:HwECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

const LEASE: Duration = Duration::from_secs(30);

struct World {
    clock: ManualClock,
    memory: Memory,
    sealed: Sealed<Memory>,
}

fn keys(text: &str) -> Keyring {
    text.parse().unwrap()
}

fn world(keyring: Option<Keyring>) -> World {
    let clock = ManualClock::default();
    let memory = Memory::new(Arc::new(clock.clone()));
    World {
        sealed: Sealed::new(memory.clone(), keyring),
        memory,
        clock,
    }
}

fn request(key: &str) -> Reserve {
    Reserve {
        id: OperationId::generate(),
        identity: Identity::new("tenant", "pay", Key::new(key).unwrap()).unwrap(),
        fingerprints: Fingerprint::of(&1).unwrap().into(),
        owner: "test".into(),
        policy: Policy {
            lease: LEASE,
            stale: Stale::Resume,
            recovery_points: true,
            ..Policy::default()
        },
    }
}

fn point(name: &str, of: &str) -> RecoveryPoint {
    RecoveryPoint {
        name: name.into(),
        data: Bytes::from(format!("{{\"card\":\"4242 of {of}\"}}")),
    }
}

async fn granted(store: &impl Store, key: &str) -> Result<Grant, Error> {
    match store.reserve(request(key)).await? {
        Decision::Execute(grant) | Decision::Resume(grant) => Ok(grant),
        other => panic!("{other:?}"),
    }
}

/// An operation that came as far as a point.
async fn advanced(store: &impl Store, key: &str) -> Fence {
    let fence = granted(store, key).await.unwrap().fence;
    let held = store.advance(fence, point("charged", key)).await.unwrap();
    assert_eq!(held, Held::Applied);
    fence
}

async fn stored(world: &World, fence: Fence) -> RecoveryPoint {
    let record = world.memory.find(fence.id).await.unwrap().unwrap();
    record.recovery.unwrap()
}

async fn claim(store: &Sealed<Memory>) -> Vec<Record> {
    let claimed = store.claim_abandoned("pay", "completer".into(), LEASE, 10);
    claimed.await.unwrap()
}

fn opened(record: Option<Record>) -> RecoveryPoint {
    record.unwrap().recovery.unwrap()
}

fn is_corrupt<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Err(error @ Error::Corrupt { .. }) => {
            let text = error.to_string();
            assert!(!text.contains("4242"), "{text}");
            text
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_way_out_opens_what_was_sealed_on_the_way_in() {
    let world = world(Some(keys(NEW)));
    let store = &world.sealed;
    let fence = advanced(store, "a").await;
    let kept = stored(&world, fence).await;
    assert_eq!(&*kept.name, "charged", "where it stands is not a secret");
    let text = String::from_utf8_lossy(&kept.data).into_owned();
    assert!(!text.contains("4242"), "{text}");
    // A transaction that writes it elsewhere writes the same.
    let prepared = store.prepare_point(fence.id, point("charged", "a"));
    assert_eq!(prepared.unwrap(), kept);

    let expected = point("charged", "a");
    let record = store.find(fence.id).await.unwrap().unwrap();
    let identity = record.identity.clone();
    assert_eq!(record.recovery.as_ref(), Some(&expected));
    let found = store.find_identity(&identity).await.unwrap();
    assert_eq!(opened(found), expected);
    world.clock.advance(LEASE);
    let resumed = granted(store, "a").await.unwrap();
    assert_eq!(resumed.recovery, Some(expected.clone()), "Resume");
    world.clock.advance(LEASE);
    let claimed = claim(store).await.pop();
    assert_eq!(opened(claimed.clone()), expected, "claim_abandoned");
    let fence = claimed.unwrap().fence();
    store
        .mark_unknown(fence, "timeout".into(), None)
        .await
        .unwrap();
    let backoff = Backoff {
        every: LEASE,
        max_every: LEASE,
    };
    let due = store
        .claim_due(Which::All, backoff, 10)
        .await
        .unwrap()
        .pop();
    assert_eq!(opened(due), expected, "claim_due");
    let never = Resolve {
        fence,
        verdict: Verdict::NotExecuted("never_created".into()),
        by: "psp".into(),
        evidence: None,
    };
    store.resolve(never).await.unwrap();
    let again = granted(store, "a").await.unwrap();
    assert_eq!(again.recovery, Some(expected.clone()), "Execute");
    let completion = Completion {
        response: Response {
            status: 201,
            headers: vec![],
            body: None,
            schema_version: 0,
        },
        resource: None,
    };
    store.complete(again.fence, completion).await.unwrap();
    assert_eq!(opened(store.find(fence.id).await.unwrap()), expected);
}

#[tokio::test]
async fn swapped_and_altered_points_are_refused() {
    let world = world(Some(keys(NEW)));
    let store = &world.sealed;
    let [a, b, c, d] = [
        advanced(store, "a").await,
        advanced(store, "b").await,
        advanced(store, "c").await,
        advanced(store, "d").await,
    ];
    // Another operation's, the same under another point's name, and a bit.
    let of_d = stored(&world, d).await;
    world.memory.advance(a, of_d).await.unwrap();
    let renamed = RecoveryPoint {
        name: "created".into(),
        ..stored(&world, b).await
    };
    world.memory.advance(b, renamed).await.unwrap();
    let RecoveryPoint { name, data } = stored(&world, c).await;
    let mut data = data.to_vec();
    *data.last_mut().unwrap() ^= 1;
    let data = data.into();
    world
        .memory
        .advance(c, RecoveryPoint { name, data })
        .await
        .unwrap();

    world.clock.advance(LEASE);
    for (key, fence) in [("a", a), ("b", b), ("c", c)] {
        is_corrupt(store.find(fence.id).await);
        is_corrupt(granted(store, key).await);
    }
    assert_eq!(
        granted(store, "d").await.unwrap().recovery,
        Some(point("charged", "d"))
    );
}

/// A completer neither gets what it cannot read nor is kept from the rest by it.
#[tokio::test]
async fn what_does_not_open_is_not_gone_on_with() {
    let world = world(Some(keys(NEW)));
    let store = &world.sealed;
    let broken = advanced(store, "broken").await;
    let whole = advanced(store, "whole").await;
    let foreign = stored(&world, whole).await;
    world.memory.advance(broken, foreign).await.unwrap();
    world.clock.advance(LEASE);
    let claimed = claim(store).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].id, whole.id);
    let lost = world.memory.find(broken.id).await.unwrap().unwrap();
    assert_eq!(lost.state.status(), Status::Unknown);
    assert_eq!(lost.last_error, Some("recovery_unreadable".into()));
    // A reconciler is not kept from the rest either.
    let backoff = Backoff {
        every: LEASE,
        max_every: LEASE,
    };
    let due = store.claim_due(Which::All, backoff, 10).await.unwrap();
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].recovery, lost.recovery, "as it is");
}

#[tokio::test]
async fn points_from_before_still_read_and_a_missing_key_is_named() {
    let world = world(None);
    let seal = |keyring| Sealed::new(world.memory.clone(), keyring);
    advanced(&world.sealed, "plain").await;
    advanced(&seal(Some(keys(OLD))), "old").await;
    let new = seal(Some(keys(&format!("{NEW},{OLD}"))));
    advanced(&new, "new").await;
    for key in ["plain", "old", "new"] {
        world.clock.advance(LEASE);
        let grant = granted(&new, key).await.unwrap();
        assert_eq!(grant.recovery, Some(point("charged", key)));
    }
    world.clock.advance(LEASE);
    let missing = is_corrupt(granted(&seal(Some(keys(NEW))), "old").await);
    assert!(missing.contains("`old`"), "{missing}");
    world.clock.advance(LEASE);
    is_corrupt(granted(&world.sealed, "new").await);
}

struct SealedMemory;

impl Harness for SealedMemory {
    type Store = Sealed<Memory>;

    async fn fresh(&self) -> Fixture<Sealed<Memory>> {
        let World { clock, sealed, .. } = world(Some(keys(NEW)));
        Fixture::new(sealed, clock)
    }

    fn scale(&self) -> Scale {
        Scale::QUICK
    }
}

impl Publisher for SealedMemory {
    async fn publish(&self, store: &Sealed<Memory>, event: semel_core::outbox::Event) {
        store.inner().publish(event);
    }
}

semel_testkit::outbox_suite!(SealedMemory);

/// A seal is not seen from outside, except in evidence, which histories keep as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_holds_behind_a_seal() {
    let failures = conformance::failures(SealedMemory).await;
    let (evidence, others): (Vec<_>, Vec<_>) = failures.into_iter().partition(|failure| {
        let case = failure.case;
        let shown = ["evidence::", "table::every_verb_on_unknown"];
        let told = case == "history::verdicts_are_told_with_reason_and_evidence";
        told || shown.iter().any(|shown| case.starts_with(shown))
    });
    assert_eq!(others, []);
    assert!(!evidence.is_empty(), "then nothing is excepted");
}
