//! A store that publishes the transitions of its records to listeners in this process.

use std::sync::Arc;

use bytes::Bytes;
use semel_core::store::{Backend, ErasureEpoch, Reply, Request, Result};
use semel_core::{
    Clock, Completion, Decision, Fence, Held, OperationId, RecoveryPoint, Reserve, Resolution,
    Status, Store as _, Timestamp, Verdict,
};
use tokio::sync::broadcast;

use crate::activity::Counts;
use crate::rollback::StoreWatch;

/// How many transitions a slow listener may be behind. One that falls further behind misses some,
/// and is notified of that.
const BEHIND: usize = 1024;

/// One transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The operation and its attempt.
    pub fence: Fence,
    /// The status after it; `None` where the record is deleted.
    pub status: Option<Status>,
    /// The store's verb that caused it.
    pub verb: &'static str,
    /// When, by the store's clock.
    pub at: Timestamp,
}

/// The transitions in this process. Other processes publish their own.
#[derive(Clone, Debug)]
pub struct Events(broadcast::Sender<Transition>);

impl Default for Events {
    fn default() -> Self {
        Self(broadcast::Sender::new(BEHIND))
    }
}

impl Events {
    /// All transitions from now on.
    pub fn listen(&self) -> broadcast::Receiver<Transition> {
        self.0.subscribe()
    }
}

/// A store that publishes its transitions.
#[derive(Clone, Debug)]
pub struct Observed<S> {
    inner: S,
    events: Events,
    counts: Counts,
    watch: StoreWatch,
}

impl<S: Backend> Observed<S> {
    /// Publishes transitions to `events`, and counts misuses of keys in `counts`. Grants nothing
    /// while `watch` distrusts the store.
    pub fn new(inner: S, events: Events, counts: Counts, watch: StoreWatch) -> Self {
        Self {
            inner,
            events,
            counts,
            watch,
        }
    }

    fn publish(&self, fence: Fence, status: Option<Status>, verb: &'static str) {
        // Without a listener this costs nothing.
        if self.events.0.receiver_count() > 0 {
            let at = self.inner.clock().now();
            let _ = self.events.0.send(Transition {
                fence,
                status,
                verb,
                at,
            });
        }
    }

    fn decided(&self, decision: &Decision) {
        match decision {
            Decision::Execute(grant) | Decision::Resume(grant) => {
                self.publish(grant.fence, Some(Status::InProgress), "reserve");
            }
            Decision::KeyMisuse { id } => self.counts.misused(*id, self.inner.clock().now()),
            Decision::Replay(_)
            | Decision::InProgress(_)
            | Decision::Unknown(_)
            | Decision::OtherRules { .. }
            | Decision::Expired(_) => {}
        }
    }

    /// Publishes the transition that a holder's write made.
    async fn hold(&self, fence: Fence, status: Option<Status>, request: Request) -> Result<Reply> {
        let verb = request.verb().as_str();
        let reply = self.inner.call(request).await?;
        if let Reply::Held(Held::Applied) = &reply {
            self.publish(fence, status, verb);
        } else if let Reply::Held(Held::Fenced(fenced)) = &reply {
            self.publish(fence, fenced.found.map(|(status, _)| status), "fenced");
        }
        Ok(reply)
    }

    /// Publishes the transition that a verdict made.
    async fn settle(&self, fence: Fence, status: Status, request: Request) -> Result<Reply> {
        let verb = request.verb().as_str();
        let reply = self.inner.call(request).await?;
        if let Reply::Resolution(Resolution::Applied) = &reply {
            self.publish(fence, Some(status), verb);
        }
        Ok(reply)
    }
}

impl<S: Backend> Backend for Observed<S> {
    async fn call(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Reserve { request } => {
                self.watch.check()?;
                let decision = self.inner.reserve(request).await?;
                self.decided(&decision);
                Ok(decision.into())
            }
            request @ Request::Complete { fence, .. } => {
                let reply = self.hold(fence, Some(Status::Completed), request).await?;
                if let Reply::Held(Held::Applied) = &reply {
                    self.watch.completed(fence.id);
                }
                Ok(reply)
            }
            request @ Request::Release { fence, .. } => {
                let status = Some(Status::FailedRetryable);
                self.hold(fence, status, request).await
            }
            request @ Request::Evict { fence, .. } => self.hold(fence, None, request).await,
            request @ Request::MarkUnknown { fence, .. } => {
                self.hold(fence, Some(Status::Unknown), request).await
            }
            request @ Request::Advance { fence, .. } => {
                self.hold(fence, Some(Status::InProgress), request).await
            }
            Request::Sweep { limit } => {
                let swept = self.inner.sweep(limit).await?;
                for fence in &swept {
                    self.publish(*fence, Some(Status::Unknown), "sweep");
                }
                Ok(swept.into())
            }
            Request::ClaimAbandoned {
                operation,
                owner,
                lease,
                limit,
            } => {
                let claimed = self.inner.claim_abandoned(&operation, owner, lease, limit);
                let claimed = claimed.await?;
                for record in &claimed {
                    self.publish(record.fence(), Some(Status::InProgress), "claim_abandoned");
                }
                Ok(claimed.into())
            }
            Request::Resolve { verdict } => {
                let (fence, status) = (verdict.fence, verdict_status(&verdict.verdict));
                self.settle(fence, status, Request::Resolve { verdict })
                    .await
            }
            request @ Request::DeadLetter { fence, .. } => {
                self.settle(fence, Status::Unknown, request).await
            }
            request @ (Request::Heartbeat { .. }
            | Request::Watch { .. }
            | Request::ClaimDue { .. }
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
            | Request::ForgetMisuses { .. }) => self.inner.call(request).await,
        }
    }

    fn try_decide(&self, request: &Reserve) -> Option<Decision> {
        self.watch.check().ok()?;
        let decision = self.inner.try_decide(request)?;
        self.decided(&decision);
        Some(decision)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        self.inner.erasure_epoch()
    }

    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion> {
        self.inner.prepare(id, completion)
    }

    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        self.inner.prepare_point(id, point)
    }

    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        self.inner.decrypt_evidence(id, evidence)
    }
}

/// The status after a verdict.
fn verdict_status(verdict: &Verdict) -> Status {
    match verdict {
        Verdict::Completed(_) => Status::Completed,
        Verdict::NotExecuted(_) => Status::FailedRetryable,
        Verdict::StillUnknown(..) => Status::Unknown,
    }
}
