//! Shared fixtures: a store with a manual clock, records in every state, and scripted providers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use semel_core::history::{self, EntryKind};
use semel_core::{
    Actor, Completion, Decision, Fence, Fingerprint, Identity, Key, KeyScope, Memory, OperationId,
    Policy, Record, Reserve, Resource, Response, State, Status, Store as _, Unresolved, Windows,
};
use semel_testkit::faulty::Gate;
use semel_testkit::{Faulty, ManualClock};
use semel_worker::{Lookup, LookupResult, Reconcile, Reconcilers, Schedule, Worker};

pub const PAY: &str = "create_payment";
pub const SECOND: Duration = Duration::from_secs(1);
pub const LEASE: Duration = Duration::from_secs(30);

pub type Store = Faulty<Memory>;

/// A store and its clock.
#[derive(Clone)]
pub struct Fixture {
    pub clock: ManualClock,
    pub store: Store,
}

impl Fixture {
    pub fn new() -> Self {
        let clock = ManualClock::default();
        let store = Faulty::new(Memory::new(Arc::new(clock.clone())));
        Self { clock, store }
    }

    /// A worker that looks up payments with `provider`, and leaves refunds to an operator.
    pub fn worker_with(&self, schedule: Schedule, provider: impl Reconcile) -> Worker<Store> {
        let reconcilers = Reconcilers::new(self.store.clone());
        let reconcilers = reconcilers.poll_with(PAY, schedule, provider).unwrap();
        let reconcilers = reconcilers.leave_to_operator("refund").unwrap();
        Worker::new(self.store.clone()).reconcilers(reconcilers)
    }

    pub async fn decide(&self, identity: Identity) -> Decision {
        let policy = Policy::default();
        let request = Reserve {
            id: OperationId::generate(),
            identity,
            fingerprints: Fingerprint::of(&1).unwrap().into(),
            owner: "test".into(),
            policy: Policy {
                lease: LEASE,
                windows: Windows {
                    body: Duration::from_hours(1),
                    ..policy.windows
                },
                ..policy
            },
        };
        self.store.inner().reserve(request).await.unwrap()
    }

    /// A record in progress.
    pub async fn begin(&self, operation: &str, key: &str) -> Fence {
        self.begin_as(identity(operation, key)).await
    }

    pub async fn begin_as(&self, identity: Identity) -> Fence {
        match self.decide(identity).await {
            Decision::Execute(grant) => grant.fence,
            other => panic!("{other:?}"),
        }
    }

    /// A record whose outcome is unknown, due at once.
    pub async fn unknown(&self, operation: &str, key: &str) -> Fence {
        self.unknown_as(identity(operation, key)).await
    }

    pub async fn unknown_as(&self, identity: Identity) -> Fence {
        let fence = self.begin_as(identity).await;
        self.lose(fence).await;
        fence
    }

    pub async fn lose(&self, fence: Fence) {
        let resource = Resource {
            kind: "payment".into(),
            id: format!("pay_{}", fence.id).into(),
        };
        let store = self.store.inner();
        let held = store.mark_unknown(fence, "timeout".into(), Some(resource));
        held.await.unwrap();
    }

    pub async fn record(&self, fence: Fence) -> Record {
        self.store.inner().find(fence.id).await.unwrap().unwrap()
    }

    pub async fn status(&self, fence: Fence) -> Status {
        self.record(fence).await.state.status()
    }

    pub async fn unresolved(&self, fence: Fence) -> Unresolved {
        match self.record(fence).await.state {
            State::Unknown(unresolved) => unresolved,
            other => panic!("{other:?}"),
        }
    }

    pub async fn is_dead_letter(&self, fence: Fence) -> bool {
        self.unresolved(fence).await.dead_lettered_at.is_some()
    }

    /// The verified history: transition, actor, code and evidence.
    pub async fn history(&self, fence: Fence) -> Vec<(EntryKind, String, String, String)> {
        let entries = self.store.inner().history(fence.id).await.unwrap();
        history::verify(&self.record(fence).await, &entries).unwrap();
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        entries
            .into_iter()
            .map(|entry| {
                let note = entry.note;
                let seen = note.evidence.unwrap_or_default();
                (
                    note.what,
                    note.actor.into(),
                    text(note.code.as_ref().map(semel_core::Code::as_str)),
                    String::from_utf8(seen.to_vec()).unwrap(),
                )
            })
            .collect()
    }

    /// Advances both clocks in steps, and lets every task run at each.
    pub async fn pass(&self, time: Duration) {
        const STEP: Duration = Duration::from_millis(250);
        let mut passed = Duration::ZERO;
        while passed < time {
            self.clock.advance(STEP);
            tokio::time::advance(STEP).await;
            settle().await;
            passed += STEP;
        }
    }
}

/// Lets every task run until it waits for time.
pub async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

pub fn identity(operation: &str, key: &str) -> Identity {
    Identity::new("acme", operation, Key::new(key).unwrap()).unwrap()
}

pub fn in_tenant(operation: &str, key: &str) -> Identity {
    identity(operation, key).scoped(KeyScope::Tenant)
}

pub fn response(body: &'static str) -> Response {
    Response {
        status: 201,
        headers: vec![],
        body: Some(Bytes::from_static(body.as_bytes())),
        schema_version: 0,
    }
}

pub fn completion(body: &'static str) -> Completion {
    Completion {
        response: response(body),
        resource: None,
    }
}

pub fn paid() -> Lookup {
    LookupResult::Completed(completion("paid")).seen("it is paid")
}

pub fn absent() -> Lookup {
    LookupResult::Absent("not_found".into()).seen("404")
}

pub fn unclear() -> Lookup {
    LookupResult::unclear("provider_failed").seen("503")
}

pub fn operator() -> Actor {
    Actor::person("ops@example.com", "looked it up")
}

/// A provider that returns its answers in order, and then only unclear ones.
#[derive(Clone, Default)]
pub struct ScriptedProvider {
    answers: Arc<Mutex<VecDeque<Lookup>>>,
    lookups: Arc<Mutex<Vec<OperationId>>>,
}

impl ScriptedProvider {
    pub fn of(answers: impl IntoIterator<Item = Lookup>) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            lookups: Arc::default(),
        }
    }

    pub fn lookups(&self) -> Vec<OperationId> {
        self.lookups.lock().unwrap().clone()
    }
}

impl Reconcile for ScriptedProvider {
    async fn look_up(&self, record: &Record) -> Lookup {
        self.lookups.lock().unwrap().push(record.id);
        let next = self.answers.lock().unwrap().pop_front();
        next.unwrap_or_else(unclear)
    }
}

/// A provider that reports a payment once the gate is open.
#[derive(Clone)]
pub struct GatedProvider(pub Gate);

impl Reconcile for GatedProvider {
    async fn look_up(&self, _: &Record) -> Lookup {
        self.0.pass().await;
        paid()
    }
}

/// A provider client that panics in its first `bugs` lookups.
#[derive(Clone, Default)]
pub struct PanickingProvider {
    pub lookups: Arc<AtomicUsize>,
    pub bugs: usize,
}

impl Reconcile for PanickingProvider {
    async fn look_up(&self, _: &Record) -> Lookup {
        let before = self.lookups.fetch_add(1, Ordering::SeqCst);
        assert!(before >= self.bugs, "a bug of the application");
        paid()
    }
}
