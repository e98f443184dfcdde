//! However a handler's transaction ends, record, rows and response agree.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{self, Answer, Body, CounterRecorder, answer};
use http::Response;
use semel_core::store::{Error, Query};
use semel_core::transaction::{Conclude, Finished, Finishing, TransactionWrite};
use semel_core::{
    Completion, Decision, Fence, Held, Memory, OperationId, Record, Reserve, State, Status,
    Store as _, Transaction,
};
use semel_http::{CommitWith, KeyRule, Layer, Operation, Outcome, names, tenant};
use semel_testkit::Faulty;
use semel_testkit::faulty::{Fault, Gate, Verb};

type Store = Faulty<Memory>;

/// How a transaction ends.
#[derive(Clone)]
enum TransactionEnd {
    /// Committed, with the completion.
    Commits,
    /// The same, at this gate.
    CommitsAt(Gate),
    /// Committed, and the reply is lost.
    CommitsUnanswered,
    /// Rolled back, and the reply is lost.
    FailsUnanswered,
    /// Rolled back.
    Fails(fn() -> Error),
    /// Rolled back, although the layer passed a completion.
    RollsBack,
    Panics,
    Never,
}

/// A transaction that writes one row, in the database of the store.
struct FakeTransaction {
    store: Store,
    rows: Arc<AtomicUsize>,
    /// Set when the transaction has ended.
    over: Arc<AtomicBool>,
    end: TransactionEnd,
    /// The response that the transaction produces, if any.
    produces: Option<semel_core::Response>,
}

impl Drop for FakeTransaction {
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

impl FakeTransaction {
    async fn commit(&self, fence: Fence, completion: Completion) -> Finished {
        let held = self.store.inner().complete(fence, completion).await;
        let held = held.unwrap();
        if held == Held::Applied {
            self.rows.fetch_add(1, Ordering::SeqCst);
        }
        Finished::Held(held)
    }
}

impl Transaction for FakeTransaction {
    fn finish(mut self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing {
        Box::pin(async move {
            if let TransactionEnd::CommitsAt(gate) = &self.end {
                gate.pass().await;
            }
            let completion = match conclude(self.produces.take()) {
                Some(TransactionWrite::Complete(completion)) => completion,
                Some(TransactionWrite::Advance(_)) => panic!("the layer completes"),
                None => return Ok(Finished::RolledBack),
            };
            match &self.end {
                TransactionEnd::Commits | TransactionEnd::CommitsAt(_) => {
                    Ok(self.commit(fence, completion).await)
                }
                TransactionEnd::CommitsUnanswered => {
                    self.commit(fence, completion).await;
                    Err(ambiguous())
                }
                TransactionEnd::FailsUnanswered => Err(ambiguous()),
                TransactionEnd::Fails(error) => Err(error()),
                TransactionEnd::RollsBack => Ok(Finished::RolledBack),
                TransactionEnd::Panics => panic!("on purpose"),
                TransactionEnd::Never => std::future::pending().await,
            }
        })
    }
}

struct Fixture {
    store: Store,
    layer: Layer<Store>,
    rows: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    /// The calls of the layer to the store.
    verbs: Arc<Mutex<Vec<Verb>>>,
}

impl Fixture {
    fn new() -> Self {
        let store = Faulty::new(Memory::default());
        let layer = Layer::new(store.clone())
            .tenant(tenant::header("X-Account"))
            .route("POST /", |route| route.operation("pay").max_response(1000))
            .route("POST /open", |route| route.key(KeyRule::Ignored));
        let fixture = Self {
            store,
            layer,
            rows: Arc::default(),
            over: Arc::default(),
            verbs: Arc::default(),
        };
        let verbs = Arc::clone(&fixture.verbs);
        fixture.store.when(move |verb, _| {
            verbs.lock().unwrap().push(verb);
            None
        });
        fixture
    }

    fn transaction(&self, end: &TransactionEnd) -> FakeTransaction {
        FakeTransaction {
            store: self.store.clone(),
            rows: Arc::clone(&self.rows),
            over: Arc::clone(&self.over),
            end: end.clone(),
            produces: None,
        }
    }

    /// A handler that returns a transaction and a response.
    async fn pay(
        &self,
        end: TransactionEnd,
        foreign: bool,
        response: fn() -> Response<Body>,
    ) -> Answer {
        self.run(move |fixture, operation| {
            let commit = CommitWith::new(operation, fixture.transaction(&end), response());
            into_response(commit, foreign)
        })
        .await
    }

    /// A handler whose transaction produces the response.
    async fn pay_in_transaction(&self, end: TransactionEnd, found: semel_core::Response) -> Answer {
        self.run(move |fixture, operation| {
            let mut transaction = fixture.transaction(&end);
            transaction.produces = Some(found.clone());
            CommitWith::<Body>::response_from_transaction(operation, transaction).into_response()
        })
        .await
    }

    async fn run(
        &self,
        handler: impl Fn(&Fixture, Operation) -> Response<Body> + Send + Sync + 'static,
    ) -> Answer {
        let (handler, fixture) = (Arc::new(handler), self.clone());
        let handler = move |operation: Option<Operation>| {
            let response = handler(&fixture, operation.unwrap());
            async move { response }
        };
        support::send(&self.layer, "/", "k1", handler).await
    }

    async fn record(&self) -> Record {
        let page = self.store.inner().list(Query::default()).await.unwrap();
        let id = page.operations[0].fence.id;
        self.store.inner().find(id).await.unwrap().unwrap()
    }

    /// The status of the record, its last error, and the number of rows.
    async fn state(&self) -> (Status, String, usize) {
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

    fn calls(&self, verb: Verb) -> usize {
        let verbs = self.verbs.lock().unwrap();
        verbs.iter().filter(|called| **called == verb).count()
    }
}

impl Clone for Fixture {
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

fn into_response(commit: CommitWith<Body>, foreign: bool) -> Response<Body> {
    if foreign {
        return commit.with_foreign_effects().into_response();
    }
    commit.into_response()
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
    // With the response of the handler, with that of the transaction, and with the stored one.
    for case in 0..4 {
        let fixture = Fixture::new();
        let first = match case {
            0 => fixture.pay(TransactionEnd::Commits, false, created).await,
            1 => {
                fixture
                    .pay_in_transaction(TransactionEnd::Commits, found(201, "paid"))
                    .await
            }
            2 => {
                fixture
                    .pay(TransactionEnd::CommitsUnanswered, false, created)
                    .await
            }
            _ => {
                fixture
                    .pay(TransactionEnd::CommitsUnanswered, true, created)
                    .await
            }
        };
        assert_eq!((first.status.as_u16(), first.text.as_str()), (201, "paid"));
        assert!(!first.is_replay());
        assert_eq!(first.headers["etag"], "\"1\"");
        assert!(first.headers.contains_key("idempotency-key-expires"));
        assert_eq!(first.headers.contains_key("x-cost"), case == 1);
        assert_eq!(fixture.state().await, (Status::Completed, String::new(), 1));
        // The layer did not complete the record outside of the transaction.
        assert_eq!(fixture.calls(Verb::Complete), 0, "{case}");
        let again = fixture.pay(TransactionEnd::Panics, false, created).await;
        assert!(again.is_replay() && again.text == "paid");
    }
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_is_not_committed_releases_the_key() {
    for (end, why) in [
        (
            TransactionEnd::Fails(unavailable),
            "transaction_rolled_back",
        ),
        (TransactionEnd::Fails(corrupt), "transaction_rolled_back"),
        (TransactionEnd::RollsBack, "transaction_rolled_back"),
        (TransactionEnd::FailsUnanswered, "commit_unanswered"),
        (TransactionEnd::Panics, "commit_unanswered"),
        (TransactionEnd::Never, "commit_unanswered"),
    ] {
        let fixture = Fixture::new();
        // The client does not wait as long as a commit may take.
        let expected = if matches!(end, TransactionEnd::Never) {
            (503, "idempotency_outcome_pending")
        } else {
            (503, "operation_not_executed")
        };
        let first = fixture.pay(end.clone(), false, created).await;
        first.refuses(expected.0, expected.1);
        while fixture.record().await.state.status() == Status::InProgress {
            // sleeps because the clock is tokio's, and a sleep advances it
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let released = (Status::FailedRetryable, why.to_owned(), 0);
        assert_eq!(fixture.state().await, released);
        assert_eq!(fixture.calls(Verb::Complete), 0);
        let again = fixture.pay(TransactionEnd::Commits, false, created).await;
        assert_eq!((again.status.as_u16(), again.is_replay()), (201, false));
        assert_eq!(fixture.state().await.2, 1);

        // With a downstream effect the outcome is unknown.
        let fixture = Fixture::new();
        let first = fixture.pay(end, true, created).await;
        if expected.1 == "operation_not_executed" {
            first.refuses(504, "idempotency_outcome_unknown");
            assert_eq!(fixture.state().await, (Status::Unknown, why.to_owned(), 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_final_write_is_repeated() {
    for fault in [Fault::FailBefore, Fault::FailAfter] {
        for foreign in [false, true] {
            let fixture = Fixture::new();
            let verb = if foreign {
                Verb::MarkUnknown
            } else {
                Verb::Release
            };
            fixture.store.next(verb, fault.clone());
            let answer = fixture
                .pay(TransactionEnd::FailsUnanswered, foreign, created)
                .await;
            if foreign {
                answer.refuses(504, "idempotency_outcome_unknown");
            } else {
                answer.refuses(503, "operation_not_executed");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_does_not_complete_rolls_back() {
    fn busy() -> Response<Body> {
        answer(503, "busy")
    }
    fn refused() -> Response<Body> {
        let mut response = answer(201, "paid");
        let outcome = Outcome::not_executed("changed_its_mind");
        response.extensions_mut().insert(outcome);
        response
    }
    let fixture = Fixture::new();
    // Rolled back before the record is written.
    let over = Arc::clone(&fixture.over);
    fixture.store.when(move |verb, _| {
        assert!(verb != Verb::MarkUnknown || over.load(Ordering::SeqCst));
        None
    });
    assert_eq!(
        fixture.pay(TransactionEnd::Commits, false, busy).await.text,
        "busy"
    );
    let unknown = (Status::Unknown, "status_503".to_owned(), 0);
    assert_eq!(fixture.state().await, unknown);
    let fixture = Fixture::new();
    fixture.pay(TransactionEnd::Commits, false, refused).await;
    let released = (Status::FailedRetryable, "changed_its_mind".to_owned(), 0);
    assert_eq!(fixture.state().await, released);
    // The same if the transaction produces the response.
    let fixture = Fixture::new();
    let answer = fixture
        .pay_in_transaction(TransactionEnd::Commits, found(503, "busy"))
        .await;
    assert_eq!(answer.text, "busy");
    assert_eq!(fixture.state().await, unknown);
    let fixture = Fixture::new();
    let mut forget = found(201, "paid");
    forget
        .headers
        .push(("semel-outcome".into(), "not-executed".into()));
    let answer = fixture
        .pay_in_transaction(TransactionEnd::Commits, forget)
        .await;
    assert!(!answer.headers.contains_key("semel-outcome"));
    assert_eq!(fixture.state().await.0, Status::FailedRetryable);
    // An invalid response rolls back.
    let fixture = Fixture::new();
    let answer = fixture
        .pay_in_transaction(TransactionEnd::Commits, found(7, ""))
        .await;
    answer.refuses(503, "operation_not_executed");
    assert_eq!(fixture.state().await.2, 0);
}

#[tokio::test(start_paused = true)]
async fn a_response_too_large_to_store_reaches_its_caller() {
    let fixture = Fixture::new();
    let large = "x".repeat(1001);
    let first = fixture
        .pay_in_transaction(TransactionEnd::Commits, found(201, &large))
        .await;
    assert_eq!(first.text, large);
    let State::Completed(completed) = fixture.record().await.state else {
        panic!("not completed");
    };
    assert_eq!(completed.response.body, None);
}

/// What happened to the record while its attempt executed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConcurrentChange {
    /// Completed under this attempt by another writer.
    Completed,
    /// Released by an operator.
    Released,
    /// The next attempt is running or has ended.
    TakenOver,
    TakenOverAndCompleted,
}

#[tokio::test(start_paused = true)]
async fn only_another_attempt_counts_as_fenced() {
    for taken in [
        ConcurrentChange::Completed,
        ConcurrentChange::Released,
        ConcurrentChange::TakenOver,
        ConcurrentChange::TakenOverAndCompleted,
    ] {
        for end in [
            Some(TransactionEnd::Commits),
            Some(TransactionEnd::FailsUnanswered),
            None,
        ] {
            let is_rolled_back = matches!(end, Some(TransactionEnd::FailsUnanswered));
            let fences = CounterRecorder::default();
            let _recording = metrics::set_default_local_recorder(&fences);
            let fixture = Fixture::new();
            let shared = fixture.clone();
            let handler = move |operation: Option<Operation>| {
                let (fixture, end, operation) = (shared.clone(), end.clone(), operation.unwrap());
                async move {
                    let fence = match taken {
                        ConcurrentChange::Completed | ConcurrentChange::Released => {
                            operation.fence()
                        }
                        ConcurrentChange::TakenOver | ConcurrentChange::TakenOverAndCompleted => {
                            fixture.take_over().await
                        }
                    };
                    if taken == ConcurrentChange::Released {
                        let store = fixture.store.inner();
                        store.release(fence, "test".into()).await.unwrap();
                    } else if taken != ConcurrentChange::TakenOver {
                        let completion = Completion {
                            response: found(202, "by another writer"),
                            resource: None,
                        };
                        fixture
                            .store
                            .inner()
                            .complete(fence, completion)
                            .await
                            .unwrap();
                    }
                    match &end {
                        Some(end) => {
                            let transaction = fixture.transaction(end);
                            CommitWith::new(operation, transaction, created()).into_response()
                        }
                        None => created(),
                    }
                }
            };
            let first = support::send(&fixture.layer, "/", "k1", handler).await;
            assert_eq!(fixture.rows.load(Ordering::SeqCst), 0);
            let counted = fences.count(names::FENCED);
            let unreturned = fences.count(names::UNRETURNED);
            if taken == ConcurrentChange::Completed {
                assert_eq!(
                    (first.status.as_u16(), &*first.text),
                    (202, "by another writer")
                );
                assert!(!first.is_replay());
                assert_eq!((counted, unreturned), (0, 0));
            } else {
                first.refuses(409, "idempotency_outcome_unknown");
                // A transaction that was rolled back has no outcome.
                let expected = if is_rolled_back { (0, 1) } else { (1, 0) };
                assert_eq!((counted, unreturned), expected);
            }
        }
    }
}

/// An application that completed its record itself may still be running. A heartbeat that fails
/// then is not an incident.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_after_completion_does_not_count_as_fenced() {
    let fences = CounterRecorder::default();
    let _recording = metrics::set_default_local_recorder(&fences);
    let fixture = Fixture::new();
    let shared = fixture.clone();
    let handler = move |operation: Option<Operation>| {
        let fixture = shared.clone();
        async move {
            let completion = Completion {
                response: found(202, "by another writer"),
                resource: None,
            };
            let fence = operation.unwrap().fence();
            fixture
                .store
                .inner()
                .complete(fence, completion)
                .await
                .unwrap();
            // sleeps because the clock is tokio's, and a sleep advances it
            tokio::time::sleep(Duration::from_secs(45)).await;
            created()
        }
    };
    let first = support::send(&fixture.layer, "/", "k1", handler).await;
    assert_eq!(first.text, "by another writer");
    assert_eq!(fixture.calls(Verb::Heartbeat), 1);
    assert_eq!(fences.count(names::FENCED), 0);
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_during_a_commit() {
    let fixture = Fixture::new();
    let gate = Gate::closed();
    let first = fixture
        .pay(TransactionEnd::CommitsAt(gate.clone()), false, created)
        .await;
    // The client waits for five seconds, and a heartbeat comes every ten.
    first.refuses(503, "idempotency_outcome_pending");
    assert_eq!(fixture.calls(Verb::Heartbeat), 0);
    // sleeps because the clock is tokio's, and a sleep advances it
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(fixture.calls(Verb::Heartbeat), 3);
    gate.open();
    fixture.layer.drain(Duration::from_secs(1)).await;
    assert_eq!(fixture.state().await, (Status::Completed, String::new(), 1));
}

#[tokio::test(start_paused = true)]
async fn a_drain_gives_up_on_a_commit_that_hangs() {
    let fixture = Fixture::new();
    let gate = Gate::closed();
    fixture
        .pay(TransactionEnd::CommitsAt(gate.clone()), false, created)
        .await;
    assert_eq!(fixture.layer.drain(Duration::ZERO).await.abandoned, 1);
    let released = (Status::FailedRetryable, "commit_unanswered".to_owned(), 0);
    assert_eq!(fixture.state().await, released);
}

/// The rows are rolled back, whatever the status of the response is.
#[tokio::test(start_paused = true)]
async fn a_transaction_that_a_middleware_drops_is_an_unknown_outcome() {
    for case in 0..3 {
        let fixture = Fixture::new();
        let answer = fixture.run(move |fixture, operation| {
            let of = match case {
                // A transaction of another operation.
                1 => Operation::new(Fence {
                    id: OperationId::generate(),
                    attempt: 1,
                }),
                _ => operation,
            };
            let commit =
                CommitWith::new(of, fixture.transaction(&TransactionEnd::Commits), created());
            let mut response = commit.into_response();
            match case {
                0 => response.extensions_mut().clear(),
                // A copy of the extensions is not a second transaction.
                2 => drop(response.extensions().clone()),
                _ => {}
            }
            response
        });
        let answer = answer.await;
        assert!(fixture.over.load(Ordering::SeqCst));
        if case == 2 {
            assert_eq!(answer.status, 201);
            continue;
        }
        answer.refuses(504, "idempotency_outcome_unknown");
        let lost = (Status::Unknown, "transaction_lost".to_owned(), 0);
        assert_eq!(fixture.state().await, lost);
    }
}

#[tokio::test(start_paused = true)]
async fn a_transaction_on_an_unguarded_route_is_rolled_back() {
    let fixture = Fixture::new();
    let shared = fixture.clone();
    let handler = move |operation: Option<Operation>| {
        assert_eq!(operation, None);
        let operation = Operation::new(Fence {
            id: OperationId::generate(),
            attempt: 1,
        });
        let transaction = shared.transaction(&TransactionEnd::Commits);
        let response = CommitWith::new(operation, transaction, created()).into_response();
        async move { response }
    };
    let answer = support::send(&fixture.layer, "/open", "", handler).await;
    answer.refuses(503, "operation_not_executed");
    assert!(fixture.over.load(Ordering::SeqCst));
    assert_eq!(fixture.rows.load(Ordering::SeqCst), 0);
}
