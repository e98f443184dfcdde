//! However a handler's transaction ends, record, rows and answer agree.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "test code says what is wrong by panicking"
)]

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Response;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_core::store::{Error, Query};
use semel_core::transaction::{Conclude, Finished, Finishing, Word};
use semel_core::{
    Completion, Decision, Fence, Held, Inspect as _, Memory, OperationId, Record, Reserve, State,
    Status, Store as _, Transaction,
};
use semel_http::{KeyRule, Layer, Operation, Outcome, Together, names, tenant};
use semel_testkit::Faulty;
use semel_testkit::faulty::{Fault, Gate, Verb};
use support::{Answer, Body, answer};

type Store = Faulty<Memory>;

/// How a transaction ends.
#[derive(Clone)]
enum End {
    /// Committed, with the completion.
    Commits,
    /// The same, at this gate.
    CommitsAt(Gate),
    /// Committed, and the answer is lost.
    CommitsUnheard,
    /// Rolled back, and the answer is lost.
    FailsUnheard,
    /// Rolled back.
    Fails(fn() -> Error),
    /// Rolled back, although there was something to complete with.
    RollsBack,
    Panics,
    Never,
}

/// A transaction that writes one row, in the database of the store.
struct Fake {
    store: Store,
    rows: Arc<AtomicUsize>,
    /// Set when the transaction is over, one way or the other.
    over: Arc<AtomicBool>,
    end: End,
    /// The answer that it finds itself, if it does.
    finds: Option<semel_core::Response>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

fn unavailable() -> Error {
    let reason = "planned".into();
    Error::Unavailable {
        reason,
        source: None,
    }
}

fn corrupt() -> Error {
    let reason = "planned".into();
    Error::Corrupt { reason }
}

fn ambiguous() -> Error {
    let reason = "planned".into();
    Error::Ambiguous {
        reason,
        source: None,
    }
}

impl Fake {
    async fn commit(&self, fence: Fence, completion: Completion) -> Finished {
        let held = self.store.inner().complete(fence, completion).await;
        let held = held.unwrap();
        if held == Held::Applied {
            self.rows.fetch_add(1, Ordering::SeqCst);
        }
        Finished::Held(held)
    }
}

impl Transaction for Fake {
    fn finish(mut self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing {
        Box::pin(async move {
            if let End::CommitsAt(gate) = &self.end {
                gate.pass().await;
            }
            let completion = match conclude(self.finds.take()) {
                Some(Word::Complete(completion)) => completion,
                Some(Word::Advance(_)) => panic!("the layer completes"),
                None => return Ok(Finished::RolledBack),
            };
            match &self.end {
                End::Commits | End::CommitsAt(_) => Ok(self.commit(fence, completion).await),
                End::CommitsUnheard => {
                    self.commit(fence, completion).await;
                    Err(ambiguous())
                }
                End::FailsUnheard => Err(ambiguous()),
                End::Fails(how) => Err(how()),
                End::RollsBack => Ok(Finished::RolledBack),
                End::Panics => panic!("on purpose"),
                End::Never => std::future::pending().await,
            }
        })
    }
}

struct World {
    store: Store,
    layer: Layer<Store>,
    rows: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    /// What the layer asked of the store.
    verbs: Arc<Mutex<Vec<Verb>>>,
}

impl World {
    fn new() -> Self {
        let store = Faulty::new(Memory::default());
        let layer = Layer::new(store.clone())
            .tenant(tenant::header("X-Account"))
            .route("POST /", |route| route.operation("pay").max_response(1000))
            .route("POST /open", |route| route.key(KeyRule::Ignored));
        let world = Self {
            store,
            layer,
            rows: Arc::default(),
            over: Arc::default(),
            verbs: Arc::default(),
        };
        let verbs = Arc::clone(&world.verbs);
        world.store.when(move |verb, _| {
            verbs.lock().unwrap().push(verb);
            None
        });
        world
    }

    fn transaction(&self, end: &End) -> Fake {
        Fake {
            store: self.store.clone(),
            rows: Arc::clone(&self.rows),
            over: Arc::clone(&self.over),
            end: end.clone(),
            finds: None,
        }
    }

    /// A handler that leaves a transaction and an answer.
    async fn pay(&self, end: End, foreign: bool, response: fn() -> Response<Body>) -> Answer {
        self.run(move |world, operation| {
            let together = Together::new(operation, world.transaction(&end), response());
            carried(together, foreign)
        })
        .await
    }

    /// A handler whose transaction finds the answer.
    async fn pay_inside(&self, end: End, found: semel_core::Response) -> Answer {
        self.run(move |world, operation| {
            let mut transaction = world.transaction(&end);
            transaction.finds = Some(found.clone());
            Together::<Body>::answered_inside(operation, transaction).into_response()
        })
        .await
    }

    async fn run(
        &self,
        handler: impl Fn(&World, Operation) -> Response<Body> + Send + Sync + 'static,
    ) -> Answer {
        let (handler, world) = (Arc::new(handler), self.clone());
        let handler = move |operation: Option<Operation>| {
            let response = handler(&world, operation.unwrap());
            async move { response }
        };
        support::send(&self.layer, "/", "k1", handler).await
    }

    async fn record(&self) -> Record {
        let page = self.store.inner().list(Query::default()).await.unwrap();
        let id = page.operations[0].fence.id;
        self.store.inner().find(id).await.unwrap().unwrap()
    }

    /// Where the record stands, why, and how many rows there are.
    async fn stands(&self) -> (Status, String, usize) {
        let record = self.record().await;
        let why = record.last_error.map(|code| code.as_str().to_owned());
        let rows = self.rows.load(Ordering::SeqCst);
        (record.state.status(), why.unwrap_or_default(), rows)
    }

    /// Takes the record away from the attempt that runs, and gives it to the next.
    async fn take_over(&self) -> Fence {
        let record = self.record().await;
        let store = self.store.inner();
        store.release(record.fence(), "test".into()).await.unwrap();
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

    fn asked(&self, verb: Verb) -> usize {
        let verbs = self.verbs.lock().unwrap();
        verbs.iter().filter(|asked| **asked == verb).count()
    }
}

impl Clone for World {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            layer: self.layer.clone(),
            rows: Arc::clone(&self.rows),
            over: Arc::clone(&self.over),
            verbs: Arc::clone(&self.verbs),
        }
    }
}

fn carried(together: Together<Body>, foreign: bool) -> Response<Body> {
    if foreign {
        return together.with_foreign_effects().into_response();
    }
    together.into_response()
}

fn created() -> Response<Body> {
    answer(201, "paid")
}

fn found(status: u16, body: &str) -> semel_core::Response {
    semel_core::Response {
        status,
        headers: vec![
            ("etag".into(), "\"1\"".into()),
            ("x-cost".into(), "7".into()),
        ],
        body: Some(body.to_owned().into()),
        schema_version: 0,
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_answered_and_replayed() {
    // By the layer's answer, by one that was found inside, and where only the record tells.
    for way in 0..4 {
        let world = World::new();
        let first = match way {
            0 => world.pay(End::Commits, false, created).await,
            1 => world.pay_inside(End::Commits, found(201, "paid")).await,
            2 => world.pay(End::CommitsUnheard, false, created).await,
            _ => world.pay(End::CommitsUnheard, true, created).await,
        };
        assert_eq!((first.status.as_u16(), first.text.as_str()), (201, "paid"));
        assert!(!first.is_replay());
        assert_eq!(first.headers["etag"], "\"1\"");
        assert!(first.headers.contains_key("idempotency-key-expires"));
        assert_eq!(first.headers.contains_key("x-cost"), way == 1);
        assert_eq!(world.stands().await, (Status::Completed, String::new(), 1));
        // Never outside of the transaction.
        assert_eq!(world.asked(Verb::Complete), 0, "{way}");
        let again = world.pay(End::Panics, false, created).await;
        assert!(again.is_replay() && again.text == "paid");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_committed_was_not_executed() {
    for (end, why) in [
        (End::Fails(unavailable), "transaction_rolled_back"),
        (End::Fails(corrupt), "transaction_rolled_back"),
        (End::RollsBack, "transaction_rolled_back"),
        (End::FailsUnheard, "commit_unanswered"),
        (End::Panics, "commit_unanswered"),
        (End::Never, "commit_unanswered"),
    ] {
        let world = World::new();
        // The time that a commit may take is not the client's.
        let told = if matches!(end, End::Never) {
            (503, "idempotency_outcome_pending")
        } else {
            (503, "operation_not_executed")
        };
        let first = world.pay(end.clone(), false, created).await;
        first.refuses(told.0, told.1);
        while world.record().await.state.status() == Status::InProgress {
            // sleeps because the clock is tokio's own, and stands still otherwise
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let released = (Status::FailedRetryable, why.to_owned(), 0);
        assert_eq!(world.stands().await, released);
        assert_eq!(world.asked(Verb::Complete), 0);
        let again = world.pay(End::Commits, false, created).await;
        assert_eq!((again.status.as_u16(), again.is_replay()), (201, false));
        assert_eq!(world.stands().await.2, 1);

        // What was done elsewhere is not undone by that.
        let world = World::new();
        let first = world.pay(end, true, created).await;
        if told.1 == "operation_not_executed" {
            first.refuses(504, "idempotency_outcome_unknown");
            assert_eq!(world.stands().await, (Status::Unknown, why.to_owned(), 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_word_that_is_lost_is_written_again() {
    for fault in [Fault::FailBefore, Fault::FailAfter] {
        for foreign in [false, true] {
            let world = World::new();
            let verb = if foreign {
                Verb::MarkUnknown
            } else {
                Verb::Release
            };
            world.store.next(verb, fault.clone());
            let answer = world.pay(End::FailsUnheard, foreign, created).await;
            if foreign {
                answer.refuses(504, "idempotency_outcome_unknown");
            } else {
                answer.refuses(503, "operation_not_executed");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_completes_nothing_commits_nothing() {
    fn busy() -> Response<Body> {
        answer(503, "busy")
    }
    fn refused() -> Response<Body> {
        let mut response = answer(201, "paid");
        let outcome = Outcome::not_executed("changed_its_mind");
        response.extensions_mut().insert(outcome);
        response
    }
    let world = World::new();
    // Rolled back before anybody is told.
    let over = Arc::clone(&world.over);
    world.store.when(move |verb, _| {
        assert!(verb != Verb::MarkUnknown || over.load(Ordering::SeqCst));
        None
    });
    assert_eq!(world.pay(End::Commits, false, busy).await.text, "busy");
    let unknown = (Status::Unknown, "status_503".to_owned(), 0);
    assert_eq!(world.stands().await, unknown);
    let world = World::new();
    world.pay(End::Commits, false, refused).await;
    let released = (Status::FailedRetryable, "changed_its_mind".to_owned(), 0);
    assert_eq!(world.stands().await, released);
    // The same where the answer is found inside.
    let world = World::new();
    let answer = world.pay_inside(End::Commits, found(503, "busy")).await;
    assert_eq!(answer.text, "busy");
    assert_eq!(world.stands().await, unknown);
    let world = World::new();
    let mut forget = found(201, "paid");
    forget
        .headers
        .push(("semel-outcome".into(), "not-executed".into()));
    let answer = world.pay_inside(End::Commits, forget).await;
    assert!(!answer.headers.contains_key("semel-outcome"));
    assert_eq!(world.stands().await.0, Status::FailedRetryable);
    // What cannot be a response is none.
    let world = World::new();
    let answer = world.pay_inside(End::Commits, found(7, "")).await;
    answer.refuses(503, "operation_not_executed");
    assert_eq!(world.stands().await.2, 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_too_large_to_store_reaches_its_caller() {
    let world = World::new();
    let large = "x".repeat(1001);
    let first = world.pay_inside(End::Commits, found(201, &large)).await;
    assert_eq!(first.text, large);
    let State::Completed(completed) = world.record().await.state else {
        panic!("not completed");
    };
    assert_eq!(completed.response.body, None);
}

/// Counts what is fenced.
#[derive(Default)]
struct Fences(Arc<AtomicU64>);

impl Recorder for Fences {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if key.name() == names::FENCED {
            return Counter::from_arc(Arc::clone(&self.0));
        }
        Counter::noop()
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// What became of the record while its attempt was at work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    /// Completed under this attempt, by other hands.
    Completed,
    /// Somebody decided that it did not happen.
    Released,
    /// The next attempt runs, or is over.
    TakenOver,
    TakenOverAndCompleted,
}

#[tokio::test(start_paused = true)]
async fn only_another_attempt_is_a_fence() {
    for taken in [
        Meanwhile::Completed,
        Meanwhile::Released,
        Meanwhile::TakenOver,
        Meanwhile::TakenOverAndCompleted,
    ] {
        for end in [Some(End::Commits), Some(End::FailsUnheard), None] {
            let fences = Fences::default();
            let _recording = metrics::set_default_local_recorder(&fences);
            let world = World::new();
            let inside = world.clone();
            let handler = move |operation: Option<Operation>| {
                let (world, end, operation) = (inside.clone(), end.clone(), operation.unwrap());
                async move {
                    let fence = match taken {
                        Meanwhile::Completed | Meanwhile::Released => operation.fence(),
                        Meanwhile::TakenOver | Meanwhile::TakenOverAndCompleted => {
                            world.take_over().await
                        }
                    };
                    if taken == Meanwhile::Released {
                        let store = world.store.inner();
                        store.release(fence, "test".into()).await.unwrap();
                    } else if taken != Meanwhile::TakenOver {
                        let completion = Completion {
                            response: found(202, "by other hands"),
                            resource: None,
                        };
                        world
                            .store
                            .inner()
                            .complete(fence, completion)
                            .await
                            .unwrap();
                    }
                    match &end {
                        Some(end) => {
                            let transaction = world.transaction(end);
                            Together::new(operation, transaction, created()).into_response()
                        }
                        None => created(),
                    }
                }
            };
            let first = support::send(&world.layer, "/", "k1", handler).await;
            assert_eq!(world.rows.load(Ordering::SeqCst), 0);
            let counted = fences.0.load(Ordering::SeqCst);
            if taken == Meanwhile::Completed {
                assert_eq!(
                    (first.status.as_u16(), &*first.text),
                    (202, "by other hands")
                );
                assert!(!first.is_replay());
                assert_eq!(counted, 0);
            } else {
                first.refuses(409, "idempotency_outcome_unknown");
                assert_eq!(counted, 1);
            }
        }
    }
}

/// An application that completed its record itself may be busy for a while yet. That its lease
/// cannot be renewed any more is nothing that anybody should look at.
#[tokio::test(start_paused = true)]
async fn a_heart_that_is_no_longer_needed_is_no_fence() {
    let fences = Fences::default();
    let _recording = metrics::set_default_local_recorder(&fences);
    let world = World::new();
    let inside = world.clone();
    let handler = move |operation: Option<Operation>| {
        let world = inside.clone();
        async move {
            let completion = Completion {
                response: found(202, "by other hands"),
                resource: None,
            };
            let fence = operation.unwrap().fence();
            world
                .store
                .inner()
                .complete(fence, completion)
                .await
                .unwrap();
            // sleeps because the clock is tokio's own, and stands still otherwise
            tokio::time::sleep(Duration::from_secs(45)).await;
            created()
        }
    };
    let first = support::send(&world.layer, "/", "k1", handler).await;
    assert_eq!(first.text, "by other hands");
    assert_eq!(world.asked(Verb::Heartbeat), 1);
    assert_eq!(fences.0.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_kept_while_it_is_committed() {
    let world = World::new();
    let gate = Gate::closed();
    let first = world
        .pay(End::CommitsAt(gate.clone()), false, created)
        .await;
    // The client's patience ended after five seconds, and a beat comes every ten.
    first.refuses(503, "idempotency_outcome_pending");
    assert_eq!(world.asked(Verb::Heartbeat), 0);
    // sleeps because the clock is tokio's own, and stands still otherwise
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.asked(Verb::Heartbeat), 3);
    gate.open();
    world.layer.drain(Duration::from_secs(1)).await;
    assert_eq!(world.stands().await, (Status::Completed, String::new(), 1));
}

#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_a_commit_for_ever() {
    let world = World::new();
    let gate = Gate::closed();
    world
        .pay(End::CommitsAt(gate.clone()), false, created)
        .await;
    assert_eq!(world.layer.drain(Duration::ZERO).await.abandoned, 1);
    let released = (Status::FailedRetryable, "commit_unanswered".to_owned(), 0);
    assert_eq!(world.stands().await, released);
}

/// Its rows are gone, whatever the answer says.
#[tokio::test(start_paused = true)]
async fn a_transaction_that_is_lost_on_the_way_is_noticed() {
    for way in 0..3 {
        let world = World::new();
        let answer = world.run(move |world, operation| {
            let of = match way {
                // Of another operation.
                1 => Operation::new(Fence {
                    id: OperationId::generate(),
                    attempt: 1,
                }),
                _ => operation,
            };
            let together = Together::new(of, world.transaction(&End::Commits), created());
            let mut response = together.into_response();
            match way {
                0 => response.extensions_mut().clear(),
                // A copy of the extensions is no second transaction.
                2 => drop(response.extensions().clone()),
                _ => {}
            }
            response
        });
        let answer = answer.await;
        assert!(world.over.load(Ordering::SeqCst));
        if way == 2 {
            assert_eq!(answer.status, 201);
            continue;
        }
        answer.refuses(504, "idempotency_outcome_unknown");
        let lost = (Status::Unknown, "transaction_lost".to_owned(), 0);
        assert_eq!(world.stands().await, lost);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_guard_there_is_nothing_to_complete() {
    let world = World::new();
    let inside = world.clone();
    let handler = move |operation: Option<Operation>| {
        assert_eq!(operation, None);
        let operation = Operation::new(Fence {
            id: OperationId::generate(),
            attempt: 1,
        });
        let transaction = inside.transaction(&End::Commits);
        let response = Together::new(operation, transaction, created()).into_response();
        async move { response }
    };
    let answer = support::send(&world.layer, "/open", "", handler).await;
    answer.refuses(503, "operation_not_executed");
    assert!(world.over.load(Ordering::SeqCst));
    assert_eq!(world.rows.load(Ordering::SeqCst), 0);
}
