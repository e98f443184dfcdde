//! An attempt that executed nothing is returned, however long the store was away: the next request
//! executes, and nothing is left unknown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel_core::store::Query;
use semel_core::{Memory, Policy, Status, Store as _};
use semel_http::{Layer, Route, names, tenant};
use semel_testkit::faulty::{Fault, Gate, Verb};
use semel_testkit::{Faulty, ManualClock};

use crate::support::{Answer, CounterRecorder, answer, send};

/// Longer than a grant is looked for.
const LONG: Duration = Duration::from_secs(30);

struct Fixture {
    clock: ManualClock,
    store: Faulty<Memory>,
    layer: Layer<Faulty<Memory>>,
    executions: Arc<AtomicUsize>,
}

impl Fixture {
    fn new(change: fn(Route) -> Route) -> Self {
        let clock = ManualClock::default();
        let store = Faulty::new(Memory::new(Arc::new(clock.clone())));
        let layer = Layer::new(store.clone())
            .tenant(tenant::only_one())
            .route("POST /payments", |route| change(route.operation("pay")));
        Self {
            clock,
            store,
            layer,
            executions: Arc::default(),
        }
    }

    /// A request whose handler answers with this status.
    async fn pay(&self, status: u16) -> Answer {
        let executions = Arc::clone(&self.executions);
        let handler = move |_| {
            executions.fetch_add(1, Ordering::SeqCst);
            async move { answer(status, "paid") }
        };
        send(&self.layer, "/payments", "k", handler).await
    }

    /// A record whose attempts so far executed nothing, if there were any.
    async fn released(attempts: u32, change: fn(Route) -> Route) -> Self {
        let fixture = Self::new(change);
        for attempt in 1..=attempts {
            // "Too early": nothing was executed.
            assert_eq!(fixture.pay(425).await.status, 425);
            assert_eq!(
                fixture.record().await,
                Some((Status::FailedRetryable, attempt))
            );
        }
        fixture.executions.store(0, Ordering::SeqCst);
        fixture
    }

    async fn record(&self) -> Option<(Status, u32)> {
        let page = self.store.inner().list(Query::default()).await.unwrap();
        let record = page.operations.first()?;
        Some((record.status, record.fence.attempt))
    }

    /// The lease runs out, and the sweep marks the record unknown.
    async fn lose_lease(&self) {
        self.clock.advance(Policy::default().lease);
        assert_eq!(self.store.inner().sweep(10).await.unwrap().len(), 1);
    }

    /// Waits for what the layer does after its responses.
    async fn settle(&self) {
        assert_eq!(self.layer.drain(LONG).await.abandoned, 0);
    }

    fn executions(&self) -> usize {
        self.executions.load(Ordering::SeqCst)
    }
}

/// Gone, or released at its attempt.
fn returned(attempts_before: u32) -> Option<(Status, u32)> {
    (attempts_before > 0).then_some((Status::FailedRetryable, attempts_before + 1))
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_answer_was_lost_is_returned_at_any_attempt() {
    for before in 0..3 {
        let fixture = Fixture::released(before, |route| route).await;
        fixture.store.next(Verb::Reserve, Fault::FailAfter);
        let refused = fixture.pay(201).await;
        refused.refuses(503, "idempotency_store_unavailable");
        fixture.settle().await;
        assert_eq!(fixture.record().await, returned(before), "{before}");
        assert_eq!(fixture.executions(), 0, "{before}");
        assert_eq!(fixture.pay(201).await.status, 201, "{before}");
        assert_eq!(fixture.executions(), 1, "{before}");
    }
}

/// The store is away for longer than the lease, and its sweep is faster than the layer.
#[tokio::test(start_paused = true)]
async fn a_lost_grant_is_returned_although_it_became_unknown() {
    for before in 0..3 {
        let fixture = Fixture::released(before, |route| route).await;
        fixture.store.when(|verb, _| match verb {
            Verb::Reserve => Some(Fault::FailAfter),
            Verb::FindIdentity | Verb::Evict => Some(Fault::FailBefore),
            _ => None,
        });
        let refused = fixture.pay(201).await;
        refused.refuses(503, "idempotency_store_unavailable");
        fixture.lose_lease().await;
        fixture.store.heal();
        fixture.settle().await;
        // Others may have looked at it since: it is not deleted, not even at attempt 1.
        let released = Some((Status::FailedRetryable, before + 1));
        assert_eq!(fixture.record().await, released, "{before}");
        assert_eq!(fixture.pay(201).await.status, 201, "{before}");
        assert_eq!(fixture.executions(), 1, "{before}");
    }
}

/// The statement waited in a server that was frozen.
#[tokio::test(start_paused = true)]
async fn a_grant_that_lands_late_is_returned() {
    for before in 0..2 {
        let fixture = Fixture::released(before, |route| route).await;
        let gate = Gate::closed();
        let late = Fault::LandLate(gate.clone());
        fixture.store.next(Verb::Reserve, late);
        let refused = fixture.pay(201).await;
        refused.refuses(503, "idempotency_store_unavailable");
        // sleeps because the clock is tokio's, and a sleep advances it
        tokio::time::sleep(Duration::from_secs(3)).await;
        gate.open();
        gate.landed().await;
        fixture.settle().await;
        assert_eq!(fixture.record().await, returned(before), "{before}");
        assert_eq!(fixture.executions(), 0, "{before}");
    }
}

/// Two requests ask for the same attempt, in one process. One is granted it, and the other does not
/// know that it was not.
#[tokio::test(start_paused = true)]
async fn a_lost_request_does_not_return_the_grant_of_another_request() {
    for before in 0..2 {
        let fixture = Fixture::released(before, |route| route).await;
        let never = Fault::LandLate(Gate::closed());
        fixture.store.next(Verb::Reserve, never);
        let refused = fixture.pay(201).await;
        refused.refuses(503, "idempotency_store_unavailable");
        let gate = Gate::closed();
        let other = tokio::spawn({
            let (layer, gate) = (fixture.layer.clone(), gate.clone());
            async move {
                let handler = move |_| {
                    let gate = gate.clone();
                    async move {
                        gate.pass().await;
                        answer(201, "paid")
                    }
                };
                send(&layer, "/payments", "k", handler).await
            }
        });
        gate.reached().await;
        // sleeps because the clock is tokio's, and a sleep advances it
        tokio::time::sleep(LONG).await;
        let running = Some((Status::InProgress, before + 1));
        assert_eq!(fixture.record().await, running, "{before}");
        gate.open();
        assert_eq!(other.await.unwrap().status, 201, "{before}");
        assert!(fixture.pay(201).await.is_replay(), "{before}");
    }
}

/// The attempt before it may have executed, so a resume is not released: the next attempt resumes.
#[tokio::test(start_paused = true)]
async fn a_resume_whose_answer_was_lost_is_left_to_resume() {
    let fixture = Fixture::new(Route::phases);
    fixture.store.next(Verb::Reserve, Fault::FailAfter);
    let never = fixture.store.clone();
    never.when(|verb, _| (verb == Verb::FindIdentity).then_some(Fault::FailBefore));
    fixture
        .pay(201)
        .await
        .refuses(503, "idempotency_store_unavailable");
    fixture.clock.advance(Policy::default().lease);
    fixture.store.next(Verb::Reserve, Fault::FailAfter);
    fixture
        .pay(201)
        .await
        .refuses(503, "idempotency_store_unavailable");
    fixture.store.heal();
    fixture.settle().await;
    assert_eq!(fixture.record().await, Some((Status::InProgress, 2)));
    fixture.clock.advance(Policy::default().lease);
    assert_eq!(fixture.pay(201).await.status, 201);
    assert_eq!(fixture.record().await, Some((Status::Completed, 3)));
}

/// The lease ran out while the handler worked, and its outcome says that nothing happened.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_executed_nothing_is_released_from_unknown() {
    // Released, and evicted; and the same with a lost answer.
    for (status, verb) in [(425, Verb::Release), (401, Verb::Evict)] {
        for fault in [None, Some(Fault::FailBefore), Some(Fault::FailAfter)] {
            let counters = CounterRecorder::default();
            let _recording = metrics::set_default_local_recorder(&counters);
            let fixture = Arc::new(Fixture::new(|route| route));
            if let Some(fault) = fault.clone() {
                fixture.store.next(verb, fault);
            }
            let handler = {
                let fixture = Arc::clone(&fixture);
                move |_| {
                    let fixture = Arc::clone(&fixture);
                    async move {
                        fixture.lose_lease().await;
                        answer(status, "nothing happened")
                    }
                }
            };
            let first = send(&fixture.layer, "/payments", "k", handler).await;
            assert_eq!(first.status, status, "{fault:?}: {}", first.text);
            let released = Some((Status::FailedRetryable, 1));
            assert_eq!(fixture.record().await, released, "{status} {fault:?}");
            assert_eq!(counters.count(names::UNRETURNED), 0, "{status} {fault:?}");
            assert_eq!(fixture.pay(201).await.status, 201, "{status} {fault:?}");
        }
    }
}
