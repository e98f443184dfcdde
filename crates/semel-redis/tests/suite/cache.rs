//! Which answers are cached, for how long, and which requests get them.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_core::store::{Backend, ErasureEpoch, Reply, Request, Result};
use semel_core::{
    Clock, Completion, Decision, Fence, Fingerprint, Fingerprints, Memory, OperationId,
    RecoveryPoint, Reserve, Resolve, Resource, Response, Store as _, Timestamp, Verdict,
};
use semel_redis::{Cached, Options};
use semel_testkit::faulty::{Fault, Gate, Verb};
use semel_testkit::{Faulty, ManualClock};
use support::{
    BODY_WINDOW, FakeRedis, LONG_TIMEOUT, completed, fingerprint, replay, replayed_body, request,
    request_of,
};

type Store = Cached<Faulty<Memory>>;

/// The longest that a test waits for an event.
const LIMIT: Duration = Duration::from_secs(20);

/// A cached store, its fake Redis, and the store and clock behind it.
struct TestBed {
    clock: ManualClock,
    memory: Memory,
    redis: FakeRedis,
    inner: Faulty<Memory>,
    store: Store,
}

impl TestBed {
    async fn new() -> Self {
        let clock = ManualClock::default();
        let memory = Memory::new(Arc::new(clock.clone()));
        let redis = FakeRedis::start().await;
        let inner = Faulty::new(memory.clone());
        let store = open(&redis, inner.clone()).await;
        Self {
            clock,
            memory,
            redis,
            inner,
            store,
        }
    }

    /// A store of another process, with the same records and the same Redis.
    async fn open_another(&self) -> Store {
        open(&self.redis, Faulty::new(self.memory.clone())).await
    }

    /// From now on the inner store fails every reservation, so only Redis can answer.
    fn fail_reservations(&self) {
        self.inner
            .when(|verb, _| (verb == Verb::Reserve).then_some(Fault::FailBefore));
    }

    /// Completes a request and replays it once, which fills Redis.
    async fn fill(&self, key: &str) -> OperationId {
        let id = completed(&self.store, request(key), "paid").await;
        replay(&self.store, request(key)).await;
        id
    }
}

async fn open(redis: &FakeRedis, inner: Faulty<Memory>) -> Store {
    Options::new(redis.url.as_str())
        .wait_for_fills()
        .lookup_timeout(LONG_TIMEOUT)
        .open(inner)
        .await
        .unwrap()
}

#[tokio::test]
async fn second_replay_comes_from_redis_and_is_identical() {
    let bed = TestBed::new().await;
    completed(&bed.store, request("k"), "paid").await;
    assert_eq!(bed.redis.written().len(), 0);
    let first = replay(&bed.store, request("k")).await;
    assert_eq!(bed.redis.written().len(), 1);
    bed.fail_reservations();
    assert_eq!(replay(&bed.store, request("k")).await, first);
    assert_eq!(first.response.body.as_deref(), Some(&b"paid"[..]));
    // Reading it does not write it again.
    assert_eq!(bed.redis.written().len(), 1);
}

#[tokio::test]
async fn entry_of_one_process_is_replayed_by_another() {
    let bed = TestBed::new().await;
    bed.fill("k").await;
    let another = bed.open_another().await;
    another.inner().next_call(Fault::FailBefore);
    assert_eq!(
        replayed_body(&another, request("k")).await.as_deref(),
        Some(&b"paid"[..])
    );
}

#[tokio::test]
async fn redis_key_contains_only_the_hash_of_the_client_key() {
    let bed = TestBed::new().await;
    bed.fill("secret-key").await;
    let key = String::from_utf8(bed.redis.keys().remove(0)).unwrap();
    let hash = format!("{:?}", request("secret-key").identity.hash());
    assert_eq!(key, format!("semel:0:{hash}"));
}

#[tokio::test]
async fn only_completed_answers_with_a_body_are_cached() {
    let bed = TestBed::new().await;
    let store = &bed.store;
    let bodiless = Completion {
        response: Response {
            status: 204,
            headers: vec![],
            body: None,
            schema_version: 0,
        },
        resource: None,
    };
    let Decision::Execute(grant) = store.reserve(request("k")).await.unwrap() else {
        panic!("must execute");
    };
    let ask = |request| async move { store.reserve(request).await.unwrap() };
    assert!(matches!(ask(request("k")).await, Decision::InProgress(_)));
    store
        .mark_unknown(grant.fence, "timeout".into(), None)
        .await
        .unwrap();
    assert!(matches!(ask(request("k")).await, Decision::Unknown(_)));
    store.complete(grant.fence, bodiless).await.unwrap();
    assert!(matches!(ask(request("k")).await, Decision::Replay(_)));
    let misuse = Reserve {
        fingerprints: fingerprint(2).into(),
        ..request("k")
    };
    assert!(matches!(ask(misuse).await, Decision::KeyMisuse { .. }));
    bed.clock.advance(support::WINDOW);
    assert!(matches!(ask(request("k")).await, Decision::Expired(_)));
    assert_eq!(bed.redis.written().len(), 0);
}

#[tokio::test]
async fn different_body_under_a_cached_key_is_key_misuse() {
    let bed = TestBed::new().await;
    let id = bed.fill("k").await;
    let misuse = Reserve {
        fingerprints: fingerprint(2).into(),
        ..request("k")
    };
    let decision = bed.store.reserve(misuse).await.unwrap();
    assert_eq!(decision, Decision::KeyMisuse { id });
}

/// A newer fingerprint version may ignore what the older one covers. A record with the older
/// fingerprint must be compared by that one, also from Redis.
#[tokio::test]
async fn request_with_several_fingerprints_is_compared_by_that_of_the_record() {
    let bed = TestBed::new().await;
    let id = completed(&bed.store, request("k"), "paid").await;
    let with = |older| Reserve {
        fingerprints: Fingerprints::from(Fingerprint::from_parts(2, [5; 32]))
            .with_older(fingerprint(older)),
        ..request("k")
    };
    replay(&bed.store, with(1)).await;
    assert_eq!(bed.redis.written().len(), 1);
    let decision = bed.store.reserve(with(2)).await.unwrap();
    assert_eq!(decision, Decision::KeyMisuse { id });
    bed.fail_reservations();
    replay(&bed.store, with(1)).await;
    replay(&bed.store, request("k")).await;
}

#[tokio::test]
async fn cached_answer_is_not_replayed_from_its_expiry_on() {
    let bed = TestBed::new().await;
    bed.fill("k").await;
    let end = bed.clock.now().saturating_add(BODY_WINDOW);
    bed.clock.set(Timestamp::from_micros(end.as_micros() - 1));
    bed.fail_reservations();
    replay(&bed.store, request("k")).await;
    bed.clock.set(end);
    assert!(bed.store.reserve(request("k")).await.is_err());
    // The store still has the body until `drop_bodies`. It is not cached again.
    bed.inner.heal();
    replay(&bed.store, request("k")).await;
    assert_eq!(bed.redis.written().len(), 1);
}

#[tokio::test]
async fn redis_expiry_ends_before_the_answer_expires() {
    let hour = Duration::from_hours(1);
    let second = Duration::from_secs(1);
    // How long before its expiry an answer is read, and how long Redis keeps it then.
    let cases = [
        (BODY_WINDOW, Some(hour)),
        (hour + second, Some(hour)),
        (hour, hour.checked_sub(second)),
        (2 * second, Some(second)),
        (
            second + Duration::from_micros(1999),
            Some(Duration::from_millis(1)),
        ),
        (second + Duration::from_micros(999), None),
        (second, None),
        (Duration::from_micros(1), None),
    ];
    for (left, kept) in cases {
        let bed = TestBed::new().await;
        completed(&bed.store, request("k"), "paid").await;
        bed.clock.advance(BODY_WINDOW.saturating_sub(left));
        replay(&bed.store, request("k")).await;
        let written = bed.redis.written();
        let millis = written.first().map(|written| u128::from(written.millis));
        assert_eq!(millis, kept.map(|kept| kept.as_millis()), "{left:?}");
    }
}

#[tokio::test]
async fn large_answer_is_not_cached() {
    let bed = TestBed::new().await;
    let Decision::Execute(grant) = bed.store.reserve(request("k")).await.unwrap() else {
        panic!("must execute");
    };
    let body = Bytes::from(vec![7; 1 << 20]);
    let response = Response {
        status: 200,
        headers: vec![],
        body: Some(body.clone()),
        schema_version: 0,
    };
    let completion = Completion {
        response,
        resource: None,
    };
    bed.store.complete(grant.fence, completion).await.unwrap();
    for _ in 0..2 {
        let replayed = replayed_body(&bed.store, request("k")).await;
        assert_eq!(replayed.as_ref(), Some(&body));
    }
    assert_eq!(bed.redis.written().len(), 0);
}

#[tokio::test]
async fn erasure_by_another_process_takes_effect_at_once() {
    let bed = TestBed::new().await;
    let id = bed.fill("k").await;
    let other = bed.fill("other").await;
    // By a process without Redis.
    assert!(bed.memory.erase(id, "test".into()).await.unwrap());
    assert_eq!(bed.redis.keys().len(), 2);
    let erased = replay(&bed.store, request("k")).await;
    assert_eq!(
        (erased.response.body, erased.response.headers),
        (None, vec![])
    );
    // The other answer is read from the store again, and cached again.
    assert_eq!(replay(&bed.store, request("other")).await.id, other);
    bed.fail_reservations();
    replay(&bed.store, request("other")).await;
    assert!(bed.store.reserve(request("k")).await.is_err());
}

#[tokio::test]
async fn erasure_removes_the_entry() {
    let bed = TestBed::new().await;
    let id = bed.fill("k").await;
    assert_eq!(bed.redis.keys().len(), 1);
    let another = bed.open_another().await;
    assert!(another.erase(id, "test".into()).await.unwrap());
    assert_eq!(bed.redis.keys().len(), 0);
    assert_eq!(replayed_body(&bed.store, request("k")).await, None);
    assert_eq!(bed.redis.keys().len(), 0);
    // Erasing an id that does not exist is not an error.
    assert!(
        !another
            .erase(OperationId::generate(), "test".into())
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn ambiguous_erasure_removes_the_entry() {
    let bed = TestBed::new().await;
    let id = bed.fill("k").await;
    bed.inner.next(Verb::Erase, Fault::FailAfter);
    assert!(
        bed.store
            .erase(id, "test".into())
            .await
            .unwrap_err()
            .may_have_written()
    );
    assert_eq!(bed.redis.keys().len(), 0);
}

#[tokio::test]
async fn erasure_succeeds_when_the_record_lookup_fails() {
    let bed = TestBed::new().await;
    let id = bed.fill("k").await;
    bed.inner.next(Verb::Find, Fault::FailBefore);
    assert!(bed.store.erase(id, "test".into()).await.unwrap());
    assert_eq!(replayed_body(&bed.store, request("k")).await, None);
}

#[tokio::test]
async fn verdict_removes_the_entry() {
    let bed = TestBed::new().await;
    let Decision::Execute(grant) = bed.store.reserve(request("k")).await.unwrap() else {
        panic!("must execute");
    };
    bed.store
        .mark_unknown(grant.fence, "timeout".into(), None)
        .await
        .unwrap();
    let verdict = Resolve {
        fence: grant.fence,
        verdict: Verdict::NotExecuted("never_created".into()),
        by: "test".into(),
        evidence: None,
    };
    bed.store.resolve(verdict).await.unwrap();
    assert_eq!(bed.redis.dels(), 1);
}

/// The store reads the answer, the answer is erased, and only then does the read return.
#[tokio::test]
async fn fill_started_before_an_erasure_does_not_restore_the_answer() {
    let bed = TestBed::new().await;
    let id = completed(&bed.store, request("k"), "paid").await;
    let gate = Gate::closed();
    bed.inner
        .next(Verb::Reserve, Fault::HoldAfter(gate.clone()));
    let store = bed.store.clone();
    let reading = tokio::spawn(async move { replayed_body(&store, request("k")).await });
    gate.landed().await;
    assert!(bed.memory.erase(id, "test".into()).await.unwrap());
    gate.open();
    // This request came before the erasure and may get the answer.
    assert!(reading.await.unwrap().is_some());
    assert_eq!(replayed_body(&bed.store, request("k")).await, None);
    // The fill noticed the new epoch and wrote nothing.
    assert_eq!(bed.redis.written().len(), 0);
}

/// The answer is erased while the fill is in flight, and the fill is performed after the removal.
#[tokio::test]
async fn fill_performed_after_an_erasure_does_not_restore_the_answer() {
    let bed = TestBed::new().await;
    let id = completed(&bed.store, request("k"), "paid").await;
    let gate = Gate::closed();
    bed.redis.hold_sets(&gate);
    let store = bed.store.clone();
    let reading = tokio::spawn(async move { replayed_body(&store, request("k")).await });
    gate.reached().await;
    // On another connection, so that the removal does not queue behind the fill.
    assert!(
        bed.open_another()
            .await
            .erase(id, "test".into())
            .await
            .unwrap()
    );
    gate.open();
    assert!(reading.await.unwrap().is_some());
    assert_eq!(bed.redis.written().len(), 1);
    assert_eq!(replayed_body(&bed.store, request("k")).await, None);
    assert_eq!(
        replayed_body(&bed.open_another().await, request("k")).await,
        None
    );
}

/// The lookup starts before an erasure, and Redis replies after it.
#[tokio::test]
async fn redis_reply_after_an_erasure_is_not_replayed() {
    let bed = TestBed::new().await;
    let id = bed.fill("k").await;
    let memory = bed.memory.clone();
    bed.redis.script_gets(move |_, stored| {
        let erasing = memory.erase(id, "test".into());
        let mut erasing = std::pin::pin!(erasing);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(erasing.as_mut().poll(&mut context).is_ready());
        support::FakeReply::Value(stored)
    });
    assert_eq!(replayed_body(&bed.store, request("k")).await, None);
}

/// A store whose erasure epoch is unknown.
struct StoreWithoutEpoch(Memory);

impl Backend for StoreWithoutEpoch {
    async fn call(&self, request: Request) -> Result<Reply> {
        self.0.call(request).await
    }

    fn try_decide(&self, request: &Reserve) -> Option<Decision> {
        self.0.try_decide(request)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        None
    }

    fn prepare(&self, _: OperationId, completion: Completion) -> Result<Completion> {
        let resource = None;
        Ok(Completion {
            resource,
            ..completion
        })
    }

    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        self.0.prepare_point(id, point)
    }

    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        self.0.decrypt_evidence(id, evidence)
    }
}

#[tokio::test]
async fn store_without_an_epoch_does_not_use_redis() {
    let bed = TestBed::new().await;
    bed.fill("k").await;
    let (gets, sets) = (bed.redis.gets(), bed.redis.written().len());
    let store = Options::new(bed.redis.url.as_str())
        .wait_for_fills()
        .lookup_timeout(LONG_TIMEOUT)
        .open(StoreWithoutEpoch(bed.memory.clone()))
        .await
        .unwrap();
    for _ in 0..2 {
        replay(&store, request("k")).await;
    }
    assert_eq!(bed.redis.gets(), gets);
    assert_eq!(bed.redis.written().len(), sets);
}

/// An application's transaction must write what the store would write.
#[tokio::test]
async fn prepare_delegates_to_the_inner_store() {
    let bed = TestBed::new().await;
    let store = Options::new(bed.redis.url.as_str())
        .open(StoreWithoutEpoch(bed.memory.clone()))
        .await
        .unwrap();
    let completion = Completion {
        response: Response {
            status: 201,
            headers: vec![],
            body: None,
            schema_version: 0,
        },
        resource: Some(Resource {
            kind: "payment".into(),
            id: "pay_1".into(),
        }),
    };
    let prepared = store.prepare(OperationId::generate(), completion).unwrap();
    assert_eq!(prepared.resource, None);
}

#[tokio::test]
async fn at_most_16_fills_run_and_requests_do_not_wait_for_them() {
    let bed = TestBed::new().await;
    let store = Options::new(bed.redis.url.as_str())
        .open(bed.inner.clone())
        .await
        .unwrap();
    let keys: Vec<String> = (0..40).map(|key| format!("k{key}")).collect();
    for key in &keys {
        completed(&store, request(key), "paid").await;
    }
    let gate = Gate::closed();
    let found = Arc::new(AtomicUsize::new(0));
    let (held, finds) = (gate.clone(), Arc::clone(&found));
    bed.inner.when(move |verb, _| {
        (verb == Verb::Find).then(|| {
            finds.fetch_add(1, Ordering::SeqCst);
            Fault::HoldBefore(held.clone())
        })
    });
    for key in &keys {
        // With two fingerprints, so that the fill calls `find`, which is held at the gate.
        let two = Fingerprints::from(Fingerprint::from_parts(2, [5; 32]));
        let two = Reserve {
            fingerprints: two.with_older(fingerprint(1)),
            ..request(key)
        };
        replay(&store, two).await;
    }
    let reached = gate.reached_times(16);
    tokio::time::timeout(LIMIT, reached).await.unwrap();
    assert_eq!(found.load(Ordering::SeqCst), 16);
    gate.open();
}

#[tokio::test]
async fn same_key_of_another_tenant_executes() {
    let bed = TestBed::new().await;
    bed.fill("k").await;
    let decision = bed.store.reserve(request_of("tenant-2", "k")).await;
    assert!(matches!(decision.unwrap(), Decision::Execute(_)));
}

#[tokio::test]
async fn other_calls_go_to_the_inner_store_without_redis() {
    let bed = TestBed::new().await;
    let id = bed.fill("k").await;
    let asked = bed.redis.gets();
    assert_eq!(bed.store.erasure_epoch(), bed.memory.erasure_epoch());
    assert_eq!(bed.store.clock().now(), bed.clock.now());
    let found = bed.store.find(id).await.unwrap().unwrap();
    assert_eq!(Some(&found), bed.memory.find(id).await.unwrap().as_ref());
    assert_eq!(
        bed.store.find_identity(&found.identity).await.unwrap(),
        Some(found)
    );
    let fence = Fence { id, attempt: 1 };
    assert!(bed.store.watch(fence).await.unwrap().is_none());
    assert!(bed.store.try_decide(&request("k")).is_none());
    assert_eq!(bed.redis.gets(), asked);
}
