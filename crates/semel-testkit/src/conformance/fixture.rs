//! The store under test, with helper functions for the cases.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::store::{OperationFilter, Page, Query};
use semel_core::transition::{Fenced, Grant, InProgress, Replay, Unknown};
use semel_core::{
    Actor, Backoff, Clock, Code, Completion, Decision, Fence, Fingerprint, Held, Identity, Key,
    OperationId, Policy, Record, RecoveryPoint, Reserve, Resolution, Resolve, Resource, Response,
    State, Status, Timestamp, Unresolved, Verdict, Windows,
};
use tokio::task::JoinSet;

use super::{ManualClock, Scale, Subject};

/// A store under test, its clock, and the resources that must outlive it.
pub struct Fixture<S> {
    /// The store. Dropped before its resources.
    pub store: Arc<S>,
    /// The store's clock.
    pub clock: ManualClock,
    /// The size of the races.
    pub scale: Scale,
    pub(super) resources: Option<Box<dyn Any + Send + Sync>>,
}

impl<S> Fixture<S> {
    /// An empty store and its clock.
    pub fn new(store: S, clock: ManualClock) -> Self {
        Self {
            store: Arc::new(store),
            clock,
            scale: Scale::default(),
            resources: None,
        }
    }

    /// Keeps `resources` (a temporary directory, a server) as long as the store.
    pub fn on(self, resources: impl Any + Send + Sync) -> Self {
        Self {
            resources: Some(Box::new(resources)),
            ..self
        }
    }

    pub(super) fn at(self, scale: Scale) -> Self {
        Self { scale, ..self }
    }
}

/// Runs calls concurrently and returns their results in order. Panics if one of them panics.
pub async fn together<S, I, T, F>(
    store: &Arc<S>,
    inputs: Vec<I>,
    call: impl Fn(Arc<S>, I) -> F,
) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let count = inputs.len();
    for (place, input) in inputs.into_iter().enumerate() {
        let call = call(Arc::clone(store), input);
        tasks.spawn(async move { (place, call.await) });
    }
    let mut answers: Vec<Option<T>> = (0..count).map(|_| None).collect();
    while let Some(answer) = tasks.join_next().await {
        match answer {
            Ok((place, answer)) => answers[place] = Some(answer),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    answers.into_iter().flatten().collect()
}

/// The windows of most cases, far enough apart to distinguish them.
pub(crate) const WINDOWS: Windows = Windows {
    replay: Duration::from_hours(24),
    body: Duration::from_hours(24),
    tombstone: Some(Duration::from_hours(30 * 24)),
};

/// The lease of most cases.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// The smallest step of time.
pub(crate) const TICK: Duration = Duration::from_micros(1);

/// How reconciliation backs off in most cases.
pub(crate) const BACKOFF: Backoff = Backoff {
    every: Duration::from_secs(5),
    max_every: Duration::from_mins(10),
};

/// The policy of most cases.
pub(crate) fn policy() -> Policy {
    Policy {
        lease: LEASE,
        windows: WINDOWS,
        ..Policy::default()
    }
}

/// A policy with other windows.
pub(crate) fn kept_for(windows: Windows) -> Policy {
    Policy {
        windows,
        ..policy()
    }
}

pub(crate) fn key(key: &str) -> Key {
    Key::new(key).expect("a key")
}

pub(crate) fn identity(tenant: &str, operation: &str, name: &str) -> Identity {
    Identity::new(tenant, operation, key(name)).expect("an identity")
}

/// The fingerprint of the current version whose digest is all `byte`.
pub(crate) fn fingerprint(byte: u8) -> Fingerprint {
    Fingerprint::from_parts(1, [byte; 32])
}

/// A request under a key, with everything else as usual.
pub(crate) fn request(key: &str) -> Reserve {
    request_for(identity("tenant-1", "create_payment", key))
}

/// A request for an identity, with everything else as usual.
pub(crate) fn request_for(identity: Identity) -> Reserve {
    Reserve {
        id: OperationId::generate(),
        identity,
        fingerprints: fingerprint(1).into(),
        owner: "host-1/42".into(),
        policy: policy(),
    }
}

/// The same request as a retry.
pub(crate) fn again(request: &Reserve) -> Reserve {
    Reserve {
        id: OperationId::generate(),
        ..request.clone()
    }
}

/// The same key with another body.
pub(crate) fn misused(request: &Reserve) -> Reserve {
    Reserve {
        fingerprints: fingerprint(2).into(),
        ..again(request)
    }
}

pub(crate) fn with_policy(request: &Reserve, policy: Policy) -> Reserve {
    Reserve {
        policy,
        ..again(request)
    }
}

pub(crate) fn response(body: &str) -> Response {
    Response {
        status: 201,
        headers: vec![
            ("content-type".into(), Bytes::from_static(b"text/plain")),
            ("link".into(), Bytes::from_static(b"</a>")),
            ("link".into(), Bytes::from_static(b"</b>")),
        ],
        body: Some(Bytes::copy_from_slice(body.as_bytes())),
        schema_version: 3,
    }
}

pub(crate) fn completion(body: &str) -> Completion {
    Completion {
        response: response(body),
        resource: Some(Resource {
            kind: "payment".into(),
            id: "pay_789".into(),
        }),
    }
}

pub(crate) fn point(name: &str, data: &[u8]) -> RecoveryPoint {
    RecoveryPoint {
        name: name.into(),
        data: Bytes::copy_from_slice(data),
    }
}

/// An operator who erases.
pub(crate) fn by() -> Actor {
    Actor::person("op@example.com", "the customer asked")
}

pub(crate) fn verdict(fence: Fence, verdict: Verdict) -> Resolve {
    Resolve {
        fence,
        verdict,
        by: "reconciler".into(),
        evidence: Some(Bytes::from_static(b"404\0\xff")),
    }
}

pub(crate) fn not_executed(fence: Fence) -> Resolve {
    verdict(fence, Verdict::NotExecuted("never_created".into()))
}

pub(crate) fn fenced_by(record: &Record) -> Held {
    Held::Fenced(Fenced::by(Some(record)))
}

pub(crate) fn refused_by(record: &Record) -> Resolution {
    Resolution::Fenced(Fenced::by(Some(record)))
}

pub(crate) fn unresolved(record: &Record) -> Unresolved {
    match &record.state {
        State::Unknown(unresolved) => *unresolved,
        other @ (State::InProgress(_)
        | State::Completed(_)
        | State::FailedRetryable { .. }
        | State::Expired { .. }) => panic!("not unknown: {other:?}"),
    }
}

/// The verbs of the store; a store error fails the case.
impl<S: Subject> Fixture<S> {
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) async fn reserve(&self, request: Reserve) -> Decision {
        self.store.reserve(request).await.expect("reserve")
    }

    /// Reserves; the decision must be to execute.
    pub(crate) async fn execute(&self, request: Reserve) -> Grant {
        match self.reserve(request).await {
            Decision::Execute(grant) => grant,
            other => panic!("must execute, but: {other:?}"),
        }
    }

    pub(crate) async fn resume(&self, request: Reserve) -> Grant {
        match self.reserve(request).await {
            Decision::Resume(grant) => grant,
            other => panic!("must resume, but: {other:?}"),
        }
    }

    pub(crate) async fn replay(&self, request: Reserve) -> Replay {
        match self.reserve(request).await {
            Decision::Replay(replay) => replay,
            other => panic!("must replay, but: {other:?}"),
        }
    }

    pub(crate) async fn in_progress(&self, request: Reserve) -> InProgress {
        match self.reserve(request).await {
            Decision::InProgress(running) => running,
            other => panic!("must be in progress, but: {other:?}"),
        }
    }

    pub(crate) async fn unknown(&self, request: Reserve) -> Unknown {
        match self.reserve(request).await {
            Decision::Unknown(unknown) => unknown,
            other => panic!("must be unknown, but: {other:?}"),
        }
    }

    pub(crate) async fn complete(&self, fence: Fence, completion: Completion) -> Held {
        self.store
            .complete(fence, completion)
            .await
            .expect("complete")
    }

    pub(crate) async fn release(&self, fence: Fence) -> Held {
        self.store
            .release(fence, "not_sent".into())
            .await
            .expect("release")
    }

    pub(crate) async fn evict(&self, fence: Fence) -> Held {
        self.store
            .evict(fence, "refused".into())
            .await
            .expect("evict")
    }

    pub(crate) async fn mark_unknown(&self, fence: Fence) -> Held {
        self.store
            .mark_unknown(fence, "timeout".into(), None)
            .await
            .expect("mark_unknown")
    }

    pub(crate) async fn heartbeat(&self, fence: Fence, lease: Duration) -> Held {
        self.store.heartbeat(fence, lease).await.expect("heartbeat")
    }

    pub(crate) async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Held {
        self.store.advance(fence, point).await.expect("advance")
    }

    pub(crate) async fn sweep(&self, limit: usize) -> Vec<Fence> {
        self.store.sweep(limit).await.expect("sweep")
    }

    pub(crate) async fn claim_due(&self, limit: usize) -> Vec<Record> {
        self.store
            .claim_due(OperationFilter::All, BACKOFF, limit)
            .await
            .expect("claim_due")
    }

    pub(crate) async fn resolve(&self, verdict: Resolve) -> Resolution {
        self.store.resolve(verdict).await.expect("resolve")
    }

    pub(crate) async fn dead_letter(&self, fence: Fence, code: Code) -> Resolution {
        let dead_lettered = self.store.dead_letter(fence, code).await;
        dead_lettered.expect("dead_letter")
    }

    pub(crate) async fn expire(&self, limit: usize) -> usize {
        self.store.expire(limit).await.expect("expire")
    }

    pub(crate) async fn drop_bodies(&self, limit: usize) -> usize {
        self.store.drop_bodies(limit).await.expect("drop_bodies")
    }

    pub(crate) async fn purge(&self, limit: usize) -> usize {
        self.store.purge(limit).await.expect("purge")
    }

    pub(crate) async fn erase(&self, id: OperationId) -> bool {
        self.store.erase(id, by()).await.expect("erase")
    }

    pub(crate) async fn find(&self, id: OperationId) -> Option<Record> {
        self.store.find(id).await.expect("find")
    }

    pub(crate) async fn find_identity(&self, identity: &Identity) -> Option<Record> {
        let found = self.store.find_identity(identity).await;
        found.expect("find_identity")
    }

    /// The record, which must exist.
    pub(crate) async fn record(&self, id: OperationId) -> Record {
        self.find(id).await.expect("the record is gone")
    }

    pub(crate) async fn status(&self, id: OperationId) -> Option<Status> {
        self.find(id).await.map(|record| record.state.status())
    }

    pub(crate) async fn list(&self, query: Query) -> Page {
        self.store.list(query).await.expect("list")
    }

    /// A record that is completed with `body`.
    pub(crate) async fn completed(&self, request: Reserve, body: &str) -> Grant {
        let grant = self.execute(request).await;
        assert_eq!(
            self.complete(grant.fence, completion(body)).await,
            Held::Applied
        );
        grant
    }

    /// A record that is unknown and due.
    pub(crate) async fn lost(&self, request: Reserve) -> Grant {
        let grant = self.execute(request).await;
        assert_eq!(self.mark_unknown(grant.fence).await, Held::Applied);
        grant
    }

    /// A record that was released.
    pub(crate) async fn released(&self, request: Reserve) -> Grant {
        let grant = self.execute(request).await;
        assert_eq!(self.release(grant.fence).await, Held::Applied);
        grant
    }
}
