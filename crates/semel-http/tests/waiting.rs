//! Who waits for an execution in another process is woken by the store, if it hears. Time is
//! tokio's, and stands still while anything can be done: what took none was woken.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code says what is wrong by panicking"
)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::store::{Epoch, Hearing, Result};
use semel_core::transaction::{Conclude, Finished, Finishing, Word};
use semel_core::{
    Clock, Code, Completion, Decision, Fence, Held, Inspect as _, Memory, OperationId,
    RecoveryPoint, Reserve, Resource, Store, Transaction,
};
use semel_http::{InFlight, Layer, Operation, Together, tenant};
use semel_testkit::faulty::Gate;
use support::{Answer, answer};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::Instant;

/// How well a store hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ears {
    Hears,
    /// It says that it cannot.
    Deaf,
    /// It listens, and what it should hear is lost.
    Loses,
    /// It says that an attempt ended whenever it is asked.
    Imagines,
    /// It does not answer when it is asked to listen.
    Hangs,
    /// The attempt ends while it begins to listen, and is not heard.
    Misses,
}

/// Who wants to be told, and of what.
type Listener = (Fence, oneshot::Sender<()>);

/// A store that two processes share.
#[derive(Clone)]
struct Shared {
    memory: Memory,
    ears: Ears,
    listeners: Arc<Mutex<Vec<Listener>>>,
    watched: Arc<AtomicUsize>,
    looks: Arc<AtomicUsize>,
}

impl Shared {
    fn new(ears: Ears) -> Self {
        Self {
            memory: Memory::default(),
            ears,
            listeners: Arc::default(),
            watched: Arc::default(),
            looks: Arc::default(),
        }
    }

    fn tell(&self, ended: Fence) {
        let mut listeners = self.listeners.lock().unwrap();
        let (told, rest) = listeners.drain(..).partition(|(fence, _)| *fence == ended);
        *listeners = rest;
        let told: Vec<_> = told;
        for (_, listener) in told {
            let _ = listener.send(());
        }
    }

    /// Lets the others run until something is so. Time stands still meanwhile, so this counts.
    async fn until(&self, so: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if so(self) {
                return;
            }
            yield_now().await;
        }
        panic!("it never came to this");
    }
}

impl Store for Shared {
    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }

    fn epoch(&self) -> Option<Epoch> {
        self.memory.epoch()
    }

    async fn watch(&self, fence: Fence) -> Option<Hearing> {
        self.watched.fetch_add(1, Ordering::SeqCst);
        match self.ears {
            Ears::Hears => {
                let (tell, told) = oneshot::channel();
                self.listeners.lock().unwrap().push((fence, tell));
                Some(Box::pin(async { drop(told.await) }))
            }
            Ears::Deaf => None,
            Ears::Loses => Some(Box::pin(std::future::pending())),
            Ears::Imagines => Some(Box::pin(std::future::ready(()))),
            Ears::Hangs => std::future::pending().await,
            Ears::Misses => {
                let completion = done("done");
                self.memory.complete(fence, completion).await.unwrap();
                Some(Box::pin(std::future::pending()))
            }
        }
    }

    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.memory.reserve(request).await
    }

    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Held> {
        let held = self.memory.complete(fence, completion).await;
        self.tell(fence);
        held
    }

    async fn release(&self, fence: Fence, code: Code) -> Result<Held> {
        self.memory.release(fence, code).await
    }

    async fn evict(&self, fence: Fence, code: Code) -> Result<Held> {
        self.memory.evict(fence, code).await
    }

    async fn mark_unknown(
        &self,
        fence: Fence,
        code: Code,
        resource: Option<Resource>,
    ) -> Result<Held> {
        self.memory.mark_unknown(fence, code, resource).await
    }

    async fn heartbeat(&self, fence: Fence, lease: Duration) -> Result<Held> {
        self.memory.heartbeat(fence, lease).await
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        self.memory.advance(fence, point).await
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

/// A process of its own: it shares the store, and nothing else.
fn process(store: &Shared, wait_max: Duration) -> Layer<Shared> {
    Layer::new(store.clone())
        .tenant(tenant::header("X-Account"))
        .route("POST /", |route| {
            route.in_flight(InFlight::Wait { max: wait_max })
        })
}

/// One process executes until the gate opens, and a client of the other waits for it.
async fn waiting(store: &Shared, wait_max: Duration) -> (Gate, JoinHandle<Answer>) {
    let gate = Gate::closed();
    let (first, second) = (process(store, wait_max), process(store, wait_max));
    let held = gate.clone();
    tokio::spawn(async move {
        let handler = move |_| {
            let held = held.clone();
            async move {
                held.pass().await;
                answer(201, "done")
            }
        };
        support::send(&first, "/", "k1", handler).await
    });
    gate.reached().await;
    let waiter = tokio::spawn(async move {
        support::send(&second, "/", "k1", |_| async { answer(500, "twice") }).await
    });
    // The first's own question, the waiter's, and the one after it asked to be told.
    let looks = if store.ears == Ears::Hangs { 2 } else { 3 };
    store
        .until(|store| {
            store.watched.load(Ordering::SeqCst) == 1 && store.looks.load(Ordering::SeqCst) >= looks
        })
        .await;
    (gate, waiter)
}

const LONG: Duration = Duration::from_mins(5);

#[tokio::test(start_paused = true)]
async fn what_the_store_hears_wakes_a_waiter() {
    for (ears, least, most) in [
        (Ears::Hears, 0, 0),
        (Ears::Misses, 0, 0),
        // Looking for itself.
        (Ears::Deaf, 250, 260),
        (Ears::Imagines, 250, 260),
        (Ears::Loses, 1000, 1010),
        (Ears::Hangs, 250, 260),
    ] {
        let store = Shared::new(ears);
        let (gate, waiter) = waiting(&store, LONG).await;
        let began = Instant::now();
        gate.open();
        let answer = waiter.await.unwrap();
        let took = began.elapsed().as_millis();
        assert!((least..=most).contains(&took), "{ears:?} took {took} ms");
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, true));
        assert_eq!(answer.text, "done");
        // It was asked to listen once, and looked no more often than that took.
        assert_eq!(store.watched.load(Ordering::SeqCst), 1, "{ears:?}");
        assert!(store.looks.load(Ordering::SeqCst) <= 5, "{ears:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_whatever_the_store_does() {
    for ears in [
        Ears::Hears,
        Ears::Deaf,
        Ears::Imagines,
        Ears::Loses,
        Ears::Hangs,
    ] {
        for wait_max in [100, 700] {
            let store = Shared::new(ears);
            let began = Instant::now();
            let (_gate, waiter) = waiting(&store, Duration::from_millis(wait_max)).await;
            waiter
                .await
                .unwrap()
                .refuses(409, "idempotency_key_in_progress");
            let took = u64::try_from(began.elapsed().as_millis()).unwrap();
            let expected = wait_max..=wait_max + 10;
            assert!(expected.contains(&took), "{ears:?} took {took} ms");
        }
    }
}

/// The next attempt is another one to be told about.
#[tokio::test(start_paused = true)]
async fn a_waiter_listens_for_the_next_attempt_too() {
    let store = Shared::new(Ears::Hears);
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
    store.tell(first);
    store
        .until(|store| store.watched.load(Ordering::SeqCst) == 2)
        .await;
    let completion = done("by the third");
    store.complete(grant.fence, completion).await.unwrap();
    assert_eq!(waiter.await.unwrap().text, "by the third");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// A transaction that only completes.
struct Completes(Shared);

impl Transaction for Completes {
    fn finish(self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing {
        Box::pin(async move {
            let Some(Word::Complete(completion)) = conclude(None) else {
                panic!("the layer completes");
            };
            let held = self.0.memory.complete(fence, completion).await?;
            Ok(Finished::Held(held))
        })
    }
}

/// Without the store's help, whichever way it ended.
#[tokio::test(start_paused = true)]
async fn an_end_in_the_same_process_wakes_a_waiter() {
    for together in [false, true] {
        let store = Shared::new(Ears::Deaf);
        let (layer, gate) = (process(&store, LONG), Gate::closed());
        let (held, inside) = (gate.clone(), store.clone());
        let handler = move |operation: Option<Operation>| {
            let (held, store) = (held.clone(), inside.clone());
            async move {
                held.pass().await;
                let done = answer(201, "done");
                if together {
                    let transaction = Completes(store);
                    return Together::new(operation.unwrap(), transaction, done).into_response();
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
            .until(|store| store.looks.load(Ordering::SeqCst) == 3)
            .await;
        let began = Instant::now();
        gate.open();
        for client in clients {
            assert_eq!(client.await.unwrap().text, "done");
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "{together}");
    }
}
