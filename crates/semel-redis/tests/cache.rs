//! What is kept, for how long, and who is given it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test code says what is wrong by panicking"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_core::history::Entry;
use semel_core::store::{Epoch, Page, Query, Result, Standing};
use semel_core::{
    Clock, Code, Completion, Decision, Fence, Fingerprint, Fingerprints, Held, Identity,
    Inspect as _, Maintain as _, Memory, OperationId, Record, RecoveryPoint, Reserve, Resolve,
    Resource, Response, Store as _, Timestamp, Verdict,
};
use semel_redis::{Cached, Options};
use semel_testkit::faulty::{Fault, Gate, Verb};
use semel_testkit::{Faulty, ManualClock};
use support::{
    BODY_WINDOW, Fake, LONG, completed, fingerprint, replay, replayed_body, request, request_of,
};

type Store = Cached<Faulty<Memory>>;

/// Longest wait for something that is about to happen.
const LIMIT: Duration = Duration::from_secs(20);

/// A store, its Redis, and what is around them.
struct World {
    clock: ManualClock,
    memory: Memory,
    redis: Fake,
    inner: Faulty<Memory>,
    store: Store,
}

impl World {
    async fn new() -> Self {
        let clock = ManualClock::default();
        let memory = Memory::new(Arc::new(clock.clone()));
        let redis = Fake::start().await;
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

    /// Another process over the same records and the same Redis.
    async fn another(&self) -> Store {
        open(&self.redis, Faulty::new(self.memory.clone())).await
    }

    /// From now on only Redis can answer.
    fn store_is_away(&self) {
        self.inner
            .when(|verb, _| (verb == Verb::Reserve).then_some(Fault::FailBefore));
    }

    /// Completed, asked for once, and so in Redis.
    async fn kept(&self, key: &str) -> OperationId {
        let id = completed(&self.store, request(key), "paid").await;
        replay(&self.store, request(key)).await;
        id
    }
}

async fn open(redis: &Fake, inner: Faulty<Memory>) -> Store {
    Options::new(redis.url.as_str())
        .wait_for_fills()
        .lookup_patience(LONG)
        .open(inner)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_second_replay_comes_out_of_redis_and_is_the_same() {
    let world = World::new().await;
    completed(&world.store, request("k"), "paid").await;
    assert_eq!(world.redis.written().len(), 0);
    let first = replay(&world.store, request("k")).await;
    assert_eq!(world.redis.written().len(), 1);
    world.store_is_away();
    assert_eq!(replay(&world.store, request("k")).await, first);
    assert_eq!(first.response.body.as_deref(), Some(&b"paid"[..]));
    // Reading it does not write it again.
    assert_eq!(world.redis.written().len(), 1);
}

#[tokio::test]
async fn what_one_process_read_serves_another() {
    let world = World::new().await;
    world.kept("k").await;
    let another = world.another().await;
    another.inner().next_call(Fault::FailBefore);
    assert_eq!(
        replayed_body(&another, request("k")).await.as_deref(),
        Some(&b"paid"[..])
    );
}

#[tokio::test]
async fn the_key_in_redis_does_not_show_the_clients_key() {
    let world = World::new().await;
    world.kept("secret-key").await;
    let key = String::from_utf8(world.redis.keys().remove(0)).unwrap();
    let hash = format!("{:?}", request("secret-key").identity.hash());
    assert_eq!(key, format!("semel:0:{hash}"));
}

#[tokio::test]
async fn only_completed_answers_with_a_body_are_kept() {
    let world = World::new().await;
    let store = &world.store;
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
    world.clock.advance(support::WINDOW);
    assert!(matches!(ask(request("k")).await, Decision::Expired(_)));
    assert_eq!(world.redis.written().len(), 0);
}

#[tokio::test]
async fn another_body_under_the_key_is_misuse_although_redis_has_an_answer() {
    let world = World::new().await;
    let id = world.kept("k").await;
    let misuse = Reserve {
        fingerprints: fingerprint(2).into(),
        ..request("k")
    };
    let decision = world.store.reserve(misuse).await.unwrap();
    assert_eq!(decision, Decision::KeyMisuse { id });
}

/// The new version of a fingerprint may not see what the old one saw. A record that has the old
/// one must be compared by the old one, also out of Redis.
#[tokio::test]
async fn of_several_fingerprints_the_records_own_counts() {
    let world = World::new().await;
    let id = completed(&world.store, request("k"), "paid").await;
    let with = |older| Reserve {
        fingerprints: Fingerprints::from(Fingerprint::from_parts(2, [5; 32]))
            .with_older(fingerprint(older)),
        ..request("k")
    };
    replay(&world.store, with(1)).await;
    assert_eq!(world.redis.written().len(), 1);
    let decision = world.store.reserve(with(2)).await.unwrap();
    assert_eq!(decision, Decision::KeyMisuse { id });
    world.store_is_away();
    replay(&world.store, with(1)).await;
    replay(&world.store, request("k")).await;
}

#[tokio::test]
async fn an_answer_is_over_at_its_instant() {
    let world = World::new().await;
    world.kept("k").await;
    let end = world.clock.now().saturating_add(BODY_WINDOW);
    world.clock.set(Timestamp::from_micros(end.as_micros() - 1));
    world.store_is_away();
    replay(&world.store, request("k")).await;
    world.clock.set(end);
    assert!(world.store.reserve(request("k")).await.is_err());
    // The store still has the body until somebody drops it. It is not kept again.
    world.inner.heal();
    replay(&world.store, request("k")).await;
    assert_eq!(world.redis.written().len(), 1);
}

#[tokio::test]
async fn redis_is_told_to_forget_before_the_answer_is_over() {
    let hour = Duration::from_hours(1);
    let second = Duration::from_secs(1);
    // How long before its end an answer is read, and how long it is kept then.
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
        let world = World::new().await;
        completed(&world.store, request("k"), "paid").await;
        world.clock.advance(BODY_WINDOW.saturating_sub(left));
        replay(&world.store, request("k")).await;
        let written = world.redis.written();
        let millis = written.first().map(|written| u128::from(written.millis));
        assert_eq!(millis, kept.map(|kept| kept.as_millis()), "{left:?}");
    }
}

#[tokio::test]
async fn a_large_answer_is_not_kept() {
    let world = World::new().await;
    let Decision::Execute(grant) = world.store.reserve(request("k")).await.unwrap() else {
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
    world.store.complete(grant.fence, completion).await.unwrap();
    for _ in 0..2 {
        let replayed = replayed_body(&world.store, request("k")).await;
        assert_eq!(replayed.as_ref(), Some(&body));
    }
    assert_eq!(world.redis.written().len(), 0);
}

#[tokio::test]
async fn an_erasure_by_another_process_counts_at_once() {
    let world = World::new().await;
    let id = world.kept("k").await;
    let other = world.kept("other").await;
    // By a process that does not even know of Redis.
    assert!(world.memory.erase(id, "test".into()).await.unwrap());
    assert_eq!(world.redis.keys().len(), 2);
    let erased = replay(&world.store, request("k")).await;
    assert_eq!(
        (erased.response.body, erased.response.headers),
        (None, vec![])
    );
    // What was not erased is read again, and kept again.
    assert_eq!(replay(&world.store, request("other")).await.id, other);
    world.store_is_away();
    replay(&world.store, request("other")).await;
    assert!(world.store.reserve(request("k")).await.is_err());
}

#[tokio::test]
async fn an_erasure_removes_the_entry() {
    let world = World::new().await;
    let id = world.kept("k").await;
    assert_eq!(world.redis.keys().len(), 1);
    let another = world.another().await;
    assert!(another.erase(id, "test".into()).await.unwrap());
    assert_eq!(world.redis.keys().len(), 0);
    assert_eq!(replayed_body(&world.store, request("k")).await, None);
    assert_eq!(world.redis.keys().len(), 0);
    // What cannot be found cannot be removed, and that is no error.
    assert!(
        !another
            .erase(OperationId::generate(), "test".into())
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn an_erasure_of_which_nobody_knows_whether_it_happened_removes_the_entry() {
    let world = World::new().await;
    let id = world.kept("k").await;
    world.inner.next(Verb::Erase, Fault::FailAfter);
    assert!(
        world
            .store
            .erase(id, "test".into())
            .await
            .unwrap_err()
            .may_have_written()
    );
    assert_eq!(world.redis.keys().len(), 0);
}

#[tokio::test]
async fn an_erasure_does_not_need_the_lookup() {
    let world = World::new().await;
    let id = world.kept("k").await;
    world.inner.next(Verb::Find, Fault::FailBefore);
    assert!(world.store.erase(id, "test".into()).await.unwrap());
    assert_eq!(replayed_body(&world.store, request("k")).await, None);
}

#[tokio::test]
async fn a_verdict_removes_what_should_not_be_there() {
    let world = World::new().await;
    let Decision::Execute(grant) = world.store.reserve(request("k")).await.unwrap() else {
        panic!("must execute");
    };
    world
        .store
        .mark_unknown(grant.fence, "timeout".into(), None)
        .await
        .unwrap();
    let verdict = Resolve {
        fence: grant.fence,
        verdict: Verdict::NotExecuted("never_created".into()),
        by: "test".into(),
        evidence: None,
    };
    world.store.resolve(verdict).await.unwrap();
    assert_eq!(world.redis.dels(), 1);
}

/// The store has read the answer, then it is erased, then the reader hears of it.
#[tokio::test]
async fn a_fill_that_began_before_an_erasure_brings_nothing_back() {
    let world = World::new().await;
    let id = completed(&world.store, request("k"), "paid").await;
    let gate = Gate::closed();
    world
        .inner
        .next(Verb::Reserve, Fault::HoldAfter(gate.clone()));
    let store = world.store.clone();
    let reading = tokio::spawn(async move { replayed_body(&store, request("k")).await });
    gate.landed().await;
    assert!(world.memory.erase(id, "test".into()).await.unwrap());
    gate.open();
    // This one asked before the erasure, and may be told.
    assert!(reading.await.unwrap().is_some());
    assert_eq!(replayed_body(&world.store, request("k")).await, None);
    // And it was seen in time that nobody could use it.
    assert_eq!(world.redis.written().len(), 0);
}

/// The answer is on its way to Redis when it is erased, and arrives after its removal.
#[tokio::test]
async fn a_fill_that_lands_after_an_erasure_brings_nothing_back() {
    let world = World::new().await;
    let id = completed(&world.store, request("k"), "paid").await;
    let gate = Gate::closed();
    world.redis.hold_sets(&gate);
    let store = world.store.clone();
    let reading = tokio::spawn(async move { replayed_body(&store, request("k")).await });
    gate.reached().await;
    // Its own connection, so that its removal is not behind the fill.
    assert!(
        world
            .another()
            .await
            .erase(id, "test".into())
            .await
            .unwrap()
    );
    gate.open();
    assert!(reading.await.unwrap().is_some());
    assert_eq!(world.redis.written().len(), 1);
    assert_eq!(replayed_body(&world.store, request("k")).await, None);
    assert_eq!(
        replayed_body(&world.another().await, request("k")).await,
        None
    );
}

/// Redis is asked before an erasure and answers after it.
#[tokio::test]
async fn an_answer_that_arrives_after_an_erasure_is_not_given() {
    let world = World::new().await;
    let id = world.kept("k").await;
    let memory = world.memory.clone();
    world.redis.lie(move |_, stored| {
        let erasing = memory.erase(id, "test".into());
        let mut erasing = std::pin::pin!(erasing);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(erasing.as_mut().poll(&mut context).is_ready());
        support::Say::Value(stored)
    });
    assert_eq!(replayed_body(&world.store, request("k")).await, None);
}

/// A store that cannot tell its epoch.
struct Blind(Memory);

impl semel_core::Store for Blind {
    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        self.0.reserve(request).await
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }

    fn epoch(&self) -> Option<Epoch> {
        None
    }

    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Held> {
        self.0.complete(fence, completion).await
    }

    async fn release(&self, fence: Fence, code: Code) -> Result<Held> {
        self.0.release(fence, code).await
    }

    async fn evict(&self, fence: Fence, code: Code) -> Result<Held> {
        self.0.evict(fence, code).await
    }

    async fn mark_unknown(
        &self,
        fence: Fence,
        code: Code,
        resource: Option<Resource>,
    ) -> Result<Held> {
        self.0.mark_unknown(fence, code, resource).await
    }

    fn prepare(&self, _: OperationId, completion: Completion) -> Result<Completion> {
        let resource = None;
        Ok(Completion {
            resource,
            ..completion
        })
    }

    async fn heartbeat(&self, fence: Fence, lease: Duration) -> Result<Held> {
        self.0.heartbeat(fence, lease).await
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        self.0.advance(fence, point).await
    }
}

impl semel_core::Inspect for Blind {
    async fn find(&self, id: OperationId) -> Result<Option<Record>> {
        self.0.find(id).await
    }

    async fn find_identity(&self, identity: &Identity) -> Result<Option<Record>> {
        self.0.find_identity(identity).await
    }

    async fn find_resource(&self, resource_id: &str) -> Result<Option<Record>> {
        self.0.find_resource(resource_id).await
    }

    async fn history(&self, id: OperationId) -> Result<Vec<Entry>> {
        self.0.history(id).await
    }

    async fn standing(&self) -> Result<Vec<Standing>> {
        self.0.standing().await
    }

    async fn list(&self, query: Query) -> Result<Page> {
        self.0.list(query).await
    }
}

#[tokio::test]
async fn without_an_epoch_redis_is_neither_read_nor_written() {
    let world = World::new().await;
    world.kept("k").await;
    let (gets, sets) = (world.redis.gets(), world.redis.written().len());
    let store = Options::new(world.redis.url.as_str())
        .wait_for_fills()
        .lookup_patience(LONG)
        .open(Blind(world.memory.clone()))
        .await
        .unwrap();
    for _ in 0..2 {
        replay(&store, request("k")).await;
    }
    assert_eq!(world.redis.gets(), gets);
    assert_eq!(world.redis.written().len(), sets);
}

/// What an application's transaction writes is what the store would have written.
#[tokio::test]
async fn a_completion_is_prepared_by_the_store_inside() {
    let world = World::new().await;
    let store = Options::new(world.redis.url.as_str())
        .open(Blind(world.memory.clone()))
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
async fn fills_are_bounded_and_hold_nobody_up() {
    let world = World::new().await;
    let store = Options::new(world.redis.url.as_str())
        .open(world.inner.clone())
        .await
        .unwrap();
    let keys: Vec<String> = (0..40).map(|key| format!("k{key}")).collect();
    for key in &keys {
        completed(&store, request(key), "paid").await;
    }
    let gate = Gate::closed();
    let found = Arc::new(AtomicUsize::new(0));
    let (held, finds) = (gate.clone(), Arc::clone(&found));
    world.inner.when(move |verb, _| {
        (verb == Verb::Find).then(|| {
            finds.fetch_add(1, Ordering::SeqCst);
            Fault::HoldBefore(held.clone())
        })
    });
    for key in &keys {
        // With two fingerprints, so that a fill looks the record up, where it is held.
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
async fn tenants_do_not_meet() {
    let world = World::new().await;
    world.kept("k").await;
    let decision = world.store.reserve(request_of("tenant-2", "k")).await;
    assert!(matches!(decision.unwrap(), Decision::Execute(_)));
}

#[tokio::test]
async fn the_rest_goes_straight_to_the_store() {
    let world = World::new().await;
    let id = world.kept("k").await;
    let asked = world.redis.gets();
    assert_eq!(world.store.epoch(), world.memory.epoch());
    assert_eq!(world.store.clock().now(), world.clock.now());
    let found = world.store.find(id).await.unwrap().unwrap();
    assert_eq!(Some(&found), world.memory.find(id).await.unwrap().as_ref());
    assert_eq!(
        world.store.find_identity(&found.identity).await.unwrap(),
        Some(found)
    );
    let fence = Fence { id, attempt: 1 };
    assert!(world.store.watch(fence).await.is_none());
    assert!(world.store.glance(&request("k")).is_none());
    assert_eq!(world.redis.gets(), asked);
}
