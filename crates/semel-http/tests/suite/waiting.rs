//! A store that supports notifications wakes a request that waits for an execution in another
//! process. The clock is tokio's and paused: a wait that took no time was woken.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{self, Answer, answer};
use bytes::Bytes;
use http_body_util::Full;
use semel_core::contract::RegionList;
use semel_core::store::{AttemptEnded, Backend, ErasureEpoch, Reply, Request, Result};
use semel_core::transaction::{Conclude, Finished, Finishing, TransactionWrite};
use semel_core::{
    Clock, Completion, Decision, Fence, Identity, Memory, OperationId, RecoveryPoint, Reserve,
    Store as _, Transaction,
};
use semel_http::{CommitWith, Home, Homes, InFlight, Layer, Operation, tenant};
use semel_testkit::faulty::Gate;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::Instant;

/// How a store reports the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notifications {
    Delivered,
    Unsupported,
    Lost,
    /// Sent at once, although the attempt still runs.
    Spurious,
    /// `watch` does not return.
    Hanging,
    /// The attempt ends during `watch`, and is not reported.
    Missed,
}

/// A watched attempt, and the channel of its watcher.
type Listener = (Fence, oneshot::Sender<()>);

/// A store that two processes share.
#[derive(Clone)]
struct SharedStore {
    memory: Memory,
    notifications: Notifications,
    listeners: Arc<Mutex<Vec<Listener>>>,
    watched: Arc<AtomicUsize>,
    reservations: Arc<AtomicUsize>,
}

impl SharedStore {
    fn new(notifications: Notifications) -> Self {
        Self {
            memory: Memory::default(),
            notifications,
            listeners: Arc::default(),
            watched: Arc::default(),
            reservations: Arc::default(),
        }
    }

    fn notify(&self, ended_fence: Fence) {
        let mut listeners = self.listeners.lock().unwrap();
        let (ended, rest): (Vec<_>, Vec<_>) = listeners
            .drain(..)
            .partition(|(fence, _)| *fence == ended_fence);
        *listeners = rest;
        for (_, listener) in ended {
            let _ = listener.send(());
        }
    }

    /// Lets other tasks run until a condition holds. The clock is paused, so this counts.
    async fn until(&self, holds: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if holds(self) {
                return;
            }
            yield_now().await;
        }
        panic!("the condition never held");
    }
}

impl SharedStore {
    async fn subscribe(&self, fence: Fence) -> Option<AttemptEnded> {
        self.watched.fetch_add(1, Ordering::SeqCst);
        match self.notifications {
            Notifications::Delivered => {
                let (sender, receiver) = oneshot::channel();
                self.listeners.lock().unwrap().push((fence, sender));
                Some(Box::pin(async { drop(receiver.await) }))
            }
            Notifications::Unsupported => None,
            Notifications::Lost => Some(Box::pin(std::future::pending())),
            Notifications::Spurious => Some(Box::pin(std::future::ready(()))),
            Notifications::Hanging => std::future::pending().await,
            Notifications::Missed => {
                let completion = done("done");
                self.memory.complete(fence, completion).await.unwrap();
                Some(Box::pin(std::future::pending()))
            }
        }
    }
}

impl Backend for SharedStore {
    async fn call(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Watch { fence } => Ok(self.subscribe(fence).await.into()),
            request @ Request::Reserve { .. } => {
                self.reservations.fetch_add(1, Ordering::SeqCst);
                self.memory.call(request).await
            }
            request @ Request::Complete { fence, .. } => {
                let held = self.memory.call(request).await;
                self.notify(fence);
                held
            }
            request @ (Request::Release { .. }
            | Request::Evict { .. }
            | Request::MarkUnknown { .. }
            | Request::Heartbeat { .. }
            | Request::Advance { .. }
            | Request::Sweep { .. }
            | Request::ClaimAbandoned { .. }
            | Request::ClaimDue { .. }
            | Request::Resolve { .. }
            | Request::DeadLetter { .. }
            | Request::Expire { .. }
            | Request::DropBodies { .. }
            | Request::Purge { .. }
            | Request::Erase { .. }
            | Request::AuditReveal { .. }
            | Request::Find { .. }
            | Request::FindIdentity { .. }
            | Request::FindResource { .. }
            | Request::History { .. }
            | Request::CountUnfinished { .. }
            | Request::List { .. }
            | Request::Contracts {}
            | Request::PublishContracts { .. }
            | Request::CountRecords { .. }
            | Request::ReceiveMessage { .. }
            | Request::SettleMessage { .. }
            | Request::ClaimParked { .. }
            | Request::ForgetMessages { .. }
            | Request::ClaimEvents { .. }
            | Request::MarkSent { .. }
            | Request::HoldBack { .. }
            | Request::DeadLetterEvent { .. }
            | Request::DeadEvents { .. }
            | Request::ReviveEvent { .. }
            | Request::OutboxBacklog { .. }
            | Request::ReleaseRelay { .. }
            | Request::AddCounts { .. }
            | Request::Activity { .. }
            | Request::Misuses { .. }
            | Request::ScanRecords { .. }
            | Request::RecordCallers { .. }
            | Request::AcquireScanLease { .. }
            | Request::PublishRecordCounts { .. }
            | Request::RecordCounts { .. }
            | Request::FindKey { .. }
            | Request::ForgetActivity { .. }
            | Request::ForgetMisuses { .. }) => self.memory.call(request).await,
        }
    }

    /// Every request passes through `call`.
    fn try_decide(&self, _: &Reserve) -> Option<Decision> {
        None
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        self.memory.erasure_epoch()
    }

    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion> {
        self.memory.prepare(id, completion)
    }

    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        self.memory.prepare_point(id, point)
    }

    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        self.memory.decrypt_evidence(id, evidence)
    }
}

fn done(body: &'static str) -> Completion {
    let response = semel_core::Response {
        status: 201,
        headers: vec![],
        body: Some(body.into()),
        schema_version: 0,
    };
    Completion {
        response,
        resource: None,
    }
}

/// Another process: it shares only the store.
fn process(store: &SharedStore, wait_max: Duration) -> Layer<SharedStore> {
    Layer::new(store.clone())
        .tenant(tenant::header("X-Account"))
        .route("POST /", |route| {
            route.in_flight(InFlight::Wait { max: wait_max })
        })
}

/// One process executes until the gate opens, and a client of the other waits for it.
async fn waiting(store: &SharedStore, wait_max: Duration) -> (Gate, JoinHandle<Answer>) {
    let processes = [process(store, wait_max), process(store, wait_max)];
    waiting_at(store, processes, || answer(201, "done")).await
}

/// The same with these processes, where the first execution ends with this answer.
async fn waiting_at(
    store: &SharedStore,
    [first, second]: [Layer<SharedStore>; 2],
    ending: fn() -> http::Response<Full<Bytes>>,
) -> (Gate, JoinHandle<Answer>) {
    let gate = Gate::closed();
    let held = gate.clone();
    tokio::spawn(async move {
        let handler = move |_| {
            let held = held.clone();
            async move {
                held.pass().await;
                ending()
            }
        };
        support::send(&first, "/", "k1", handler).await
    });
    gate.reached().await;
    let waiter = tokio::spawn(async move {
        support::send(&second, "/", "k1", |_| async { answer(500, "twice") }).await
    });
    // One by the first request, one by the waiter, and one after the waiter subscribed.
    let reservations = if store.notifications == Notifications::Hanging {
        2
    } else {
        3
    };
    store
        .until(|store| {
            store.watched.load(Ordering::SeqCst) == 1
                && store.reservations.load(Ordering::SeqCst) >= reservations
        })
        .await;
    (gate, waiter)
}

const LONG: Duration = Duration::from_mins(5);

/// One region of several. Its list of regions may be withdrawn.
#[derive(Default)]
struct OneRegion {
    is_withdrawn: AtomicBool,
}

impl Homes for OneRegion {
    fn find(&self, _: &Identity) -> Home {
        if self.is_withdrawn.load(Ordering::SeqCst) {
            Home::Undecided("The list was withdrawn.".into())
        } else {
            Home::Here
        }
    }

    fn list(&self) -> RegionList {
        RegionList {
            version: 1,
            names: vec!["eu".into()],
            tenant_homes: None,
        }
    }

    fn timeout(&self) -> Duration {
        LONG
    }
}

/// Its home was here when it began to wait, and may be elsewhere when the other attempt ends.
#[tokio::test(start_paused = true)]
async fn a_waiter_asks_again_where_its_home_is() {
    let store = SharedStore::new(Notifications::Delivered);
    let region = Arc::new(OneRegion::default());
    let layer = || process(&store, LONG).homes(Arc::clone(&region) as Arc<dyn Homes>);
    let (gate, waiter) = waiting_at(&store, [layer(), layer()], || answer(429, "evicted")).await;
    region.is_withdrawn.store(true, Ordering::SeqCst);
    gate.open();
    let refused = waiter.await.unwrap();
    assert_eq!(refused.status, 503, "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_notification_of_the_store_wakes_a_waiter() {
    for (notifications, least, most) in [
        (Notifications::Delivered, 0, 0),
        (Notifications::Missed, 0, 0),
        // Polling.
        (Notifications::Unsupported, 250, 260),
        (Notifications::Spurious, 250, 260),
        (Notifications::Lost, 1000, 1010),
        (Notifications::Hanging, 250, 260),
    ] {
        let store = SharedStore::new(notifications);
        let (gate, waiter) = waiting(&store, LONG).await;
        let began = Instant::now();
        gate.open();
        let answer = waiter.await.unwrap();
        let took = began.elapsed().as_millis();
        assert!(
            (least..=most).contains(&took),
            "{notifications:?} took {took} ms"
        );
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, true));
        assert_eq!(answer.text, "done");
        // The waiter subscribed once, and did not poll.
        assert_eq!(store.watched.load(Ordering::SeqCst), 1, "{notifications:?}");
        assert!(
            store.reservations.load(Ordering::SeqCst) <= 5,
            "{notifications:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_whatever_the_store_does() {
    for notifications in [
        Notifications::Delivered,
        Notifications::Unsupported,
        Notifications::Spurious,
        Notifications::Lost,
        Notifications::Hanging,
    ] {
        for wait_max in [100, 700] {
            let store = SharedStore::new(notifications);
            let began = Instant::now();
            let (_gate, waiter) = waiting(&store, Duration::from_millis(wait_max)).await;
            waiter
                .await
                .unwrap()
                .refuses(409, "idempotency_key_in_progress");
            let took = u64::try_from(began.elapsed().as_millis()).unwrap();
            let expected = wait_max..=wait_max + 10;
            assert!(expected.contains(&took), "{notifications:?} took {took} ms");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_subscribes_to_the_next_attempt_too() {
    let store = SharedStore::new(Notifications::Delivered);
    let (_gate, waiter) = waiting(&store, LONG).await;
    let began = Instant::now();
    let memory = &store.memory;
    let page = memory.list(semel_core::store::Query::default()).await;
    let first = page.unwrap().operations[0].fence;
    let record = memory.find(first.id).await.unwrap().unwrap();
    memory.release(first, "test".into()).await.unwrap();
    let again = memory.reserve(Reserve {
        id: OperationId::generate(),
        identity: record.identity,
        fingerprints: record.fingerprint.into(),
        owner: "a third process".into(),
        policy: semel_core::Policy::default(),
    });
    let Decision::Execute(grant) = again.await.unwrap() else {
        panic!("not granted");
    };
    store.notify(first);
    store
        .until(|store| store.watched.load(Ordering::SeqCst) == 2)
        .await;
    let completion = done("by the third");
    store.complete(grant.fence, completion).await.unwrap();
    assert_eq!(waiter.await.unwrap().text, "by the third");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// A transaction that writes only the completion.
struct CompletionTransaction(SharedStore);

impl Transaction for CompletionTransaction {
    fn finish(self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing {
        Box::pin(async move {
            let Some(TransactionWrite::Complete(completion)) = conclude(None) else {
                panic!("the layer completes");
            };
            let held = self.0.memory.complete(fence, completion).await?;
            Ok(Finished::Held(held))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_in_the_same_process_wakes_a_waiter() {
    for in_transaction in [false, true] {
        let store = SharedStore::new(Notifications::Unsupported);
        let (layer, gate) = (process(&store, LONG), Gate::closed());
        let (held, shared) = (gate.clone(), store.clone());
        let handler = move |operation: Option<Operation>| {
            let (held, store) = (held.clone(), shared.clone());
            async move {
                held.pass().await;
                let done = answer(201, "done");
                if in_transaction {
                    let transaction = CompletionTransaction(store);
                    return CommitWith::new(operation.unwrap(), transaction, done).into_response();
                }
                done
            }
        };
        let clients: Vec<_> = (0..2)
            .map(|_| {
                let (layer, handler) = (layer.clone(), handler.clone());
                tokio::spawn(async move { support::send(&layer, "/", "k1", handler).await })
            })
            .collect();
        store
            .until(|store| store.reservations.load(Ordering::SeqCst) == 3)
            .await;
        let began = Instant::now();
        gate.open();
        for client in clients {
            assert_eq!(client.await.unwrap().text, "done");
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "{in_transaction}");
    }
}
