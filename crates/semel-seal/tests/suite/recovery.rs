//! Recovery points are sealed on every write and opened on every read.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::store::OperationFilter;
use semel_core::transition::Grant;
use semel_core::{
    Backend as _, Backoff, Completion, Decision, Error, Fence, Fingerprint, Held, Identity, Key,
    Memory, OperationId, Policy, Record, RecoveryPoint, Reserve, Resolve, Response, Stale, Status,
    Store, Verdict,
};
use semel_seal::{Keyring, Sealed};
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{self, Fixture, Harness, Scale};

const OLD: &str = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NEW: &str = "new:HwECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

const LEASE: Duration = Duration::from_secs(30);

/// A sealed store, and the clock and plain store behind it.
struct TestBed {
    clock: ManualClock,
    memory: Memory,
    sealed: Sealed<Memory>,
}

fn keys(text: &str) -> Keyring {
    text.parse().unwrap()
}

fn test_bed(keyring: Option<Keyring>) -> TestBed {
    let clock = ManualClock::default();
    let memory = Memory::new(Arc::new(clock.clone()));
    TestBed {
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

/// Reserves a key and writes its first recovery point.
async fn advanced(store: &impl Store, key: &str) -> Fence {
    let fence = granted(store, key).await.unwrap().fence;
    let held = store.advance(fence, point("charged", key)).await.unwrap();
    assert_eq!(held, Held::Applied);
    fence
}

async fn stored(bed: &TestBed, fence: Fence) -> RecoveryPoint {
    let record = bed.memory.find(fence.id).await.unwrap().unwrap();
    record.recovery.unwrap()
}

async fn claim(store: &Sealed<Memory>) -> Vec<Record> {
    let claimed = store.claim_abandoned("pay", "resume-job".into(), LEASE, 10);
    claimed.await.unwrap()
}

fn opened(record: Option<Record>) -> RecoveryPoint {
    record.unwrap().recovery.unwrap()
}

fn corrupt_error<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
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
async fn every_read_opens_a_sealed_recovery_point() {
    let bed = test_bed(Some(keys(NEW)));
    let store = &bed.sealed;
    let fence = advanced(store, "a").await;
    let kept = stored(&bed, fence).await;
    assert_eq!(
        &*kept.name, "charged",
        "the name of the point is not encrypted"
    );
    let text = String::from_utf8_lossy(&kept.data).into_owned();
    assert!(!text.contains("4242"), "{text}");
    // A transaction of the application would write the same bytes.
    let prepared = store.prepare_point(fence.id, point("charged", "a"));
    assert_eq!(prepared.unwrap(), kept);

    let expected = point("charged", "a");
    let record = store.find(fence.id).await.unwrap().unwrap();
    let identity = record.identity.clone();
    assert_eq!(record.recovery.as_ref(), Some(&expected));
    let found = store.find_identity(&identity).await.unwrap();
    assert_eq!(opened(found), expected);
    bed.clock.advance(LEASE);
    let resumed = granted(store, "a").await.unwrap();
    assert_eq!(resumed.recovery, Some(expected.clone()), "Resume");
    bed.clock.advance(LEASE);
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
        .claim_due(OperationFilter::All, backoff, 10)
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
async fn swapped_and_altered_recovery_points_are_refused() {
    let bed = test_bed(Some(keys(NEW)));
    let store = &bed.sealed;
    let [a, b, c, d] = [
        advanced(store, "a").await,
        advanced(store, "b").await,
        advanced(store, "c").await,
        advanced(store, "d").await,
    ];
    // The point of another operation, the point under another name, and a flipped bit.
    let of_d = stored(&bed, d).await;
    bed.memory.advance(a, of_d).await.unwrap();
    let renamed = RecoveryPoint {
        name: "created".into(),
        ..stored(&bed, b).await
    };
    bed.memory.advance(b, renamed).await.unwrap();
    let RecoveryPoint { name, data } = stored(&bed, c).await;
    let mut data = data.to_vec();
    *data.last_mut().unwrap() ^= 1;
    let data = data.into();
    bed.memory
        .advance(c, RecoveryPoint { name, data })
        .await
        .unwrap();

    bed.clock.advance(LEASE);
    for (key, fence) in [("a", a), ("b", b), ("c", c)] {
        corrupt_error(store.find(fence.id).await);
        corrupt_error(granted(store, key).await);
    }
    assert_eq!(
        granted(store, "d").await.unwrap().recovery,
        Some(point("charged", "d"))
    );
}

/// A record that does not decrypt becomes unknown, and the claims of other records succeed.
#[tokio::test]
async fn abandoned_record_that_does_not_decrypt_becomes_unknown() {
    let bed = test_bed(Some(keys(NEW)));
    let store = &bed.sealed;
    let altered = advanced(store, "altered").await;
    let whole = advanced(store, "whole").await;
    let point_of_other = stored(&bed, whole).await;
    bed.memory.advance(altered, point_of_other).await.unwrap();
    bed.clock.advance(LEASE);
    let claimed = claim(store).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].id, whole.id);
    let lost = bed.memory.find(altered.id).await.unwrap().unwrap();
    assert_eq!(lost.state.status(), Status::Unknown);
    assert_eq!(lost.last_error, Some("recovery_unreadable".into()));
    // A reconciler can claim the record, too.
    let backoff = Backoff {
        every: LEASE,
        max_every: LEASE,
    };
    let due = store
        .claim_due(OperationFilter::All, backoff, 10)
        .await
        .unwrap();
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].recovery, lost.recovery, "still sealed");
}

#[tokio::test]
async fn plain_and_old_recovery_points_open_and_a_missing_key_is_named() {
    let bed = test_bed(None);
    let seal = |keyring| Sealed::new(bed.memory.clone(), keyring);
    advanced(&bed.sealed, "plain").await;
    advanced(&seal(Some(keys(OLD))), "old").await;
    let new = seal(Some(keys(&format!("{NEW},{OLD}"))));
    advanced(&new, "new").await;
    for key in ["plain", "old", "new"] {
        bed.clock.advance(LEASE);
        let grant = granted(&new, key).await.unwrap();
        assert_eq!(grant.recovery, Some(point("charged", key)));
    }
    bed.clock.advance(LEASE);
    let missing = corrupt_error(granted(&seal(Some(keys(NEW))), "old").await);
    assert!(missing.contains("`old`"), "{missing}");
    bed.clock.advance(LEASE);
    corrupt_error(granted(&bed.sealed, "new").await);
}

struct SealedMemory;

impl Harness for SealedMemory {
    type Store = Sealed<Memory>;

    async fn fresh(&self) -> Fixture<Sealed<Memory>> {
        let TestBed { clock, sealed, .. } = test_bed(Some(keys(NEW)));
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

/// A sealed store passes the conformance suite, except for evidence, which histories keep sealed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_suite_passes_except_for_evidence() {
    let failures = conformance::failures(SealedMemory).await;
    let (evidence, others): (Vec<_>, Vec<_>) = failures.into_iter().partition(|failure| {
        let case = failure.case;
        let reads_evidence = ["evidence::", "table::every_verb_on_unknown"];
        case == "history::verdicts_are_recorded_with_reason_and_evidence"
            || reads_evidence.iter().any(|prefix| case.starts_with(prefix))
    });
    assert_eq!(others, []);
    assert!(!evidence.is_empty(), "no case failed: remove the exception");
}
