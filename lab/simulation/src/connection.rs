//! The connection from a process to the store, on which calls are lost, late and slow.

use std::sync::Arc;

use bytes::Bytes;
use semel_core::store::{Backend, ErasureEpoch, Error, Reply, Request, Result, Verb};
use semel_core::transition::Grant;
use semel_core::{Clock, Completion, Decision, Fence, OperationId, RecoveryPoint, Reserve};
use tokio::time::{Instant, sleep};

use crate::Sabotage;
use crate::process::Process;
use crate::reorder::reorder;
use crate::scenario::{CallOutcome, Scenario, lock};
use crate::store::SharedStore;

/// One process's connection to the store. The seed decides the outcome of every call.
#[derive(Clone)]
pub(crate) struct StoreConnection {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) process: Arc<Process>,
    pub(crate) shared: Arc<SharedStore>,
}

impl StoreConnection {
    /// Sends a request to the store, and reorders its task.
    async fn send(&self, request: Request) -> Result<Reply> {
        reorder(&self.scenario, self.deliver(request)).await
    }

    async fn deliver(&self, request: Request) -> Result<Reply> {
        let verb = request.verb();
        let shared = Arc::clone(&self.shared);
        let perform = async move { shared.call(request).await };
        self.process.step().await;
        let outcome = self.scenario.draw_call_outcome();
        let who = &self.process.name;
        let record = |what: &str| {
            self.scenario
                .record_event(format_args!("{who}: {verb}: {what}"));
        };
        let answer = match outcome {
            CallOutcome::Fine { before, after } => {
                sleep(before).await;
                self.process.step().await;
                let answer = perform.await;
                sleep(after).await;
                answer
            }
            CallOutcome::Fails { before } => {
                sleep(before).await;
                record("fails before it is performed");
                Err(unavailable())
            }
            CallOutcome::Lost { before } => {
                sleep(before).await;
                self.process.step().await;
                record("is performed, and its answer lost");
                perform.await.and_then(|_| Err(ambiguous()))
            }
            CallOutcome::Late { before, by } => {
                record("will land late");
                let landing = reorder(&self.scenario, async move {
                    sleep(by).await;
                    drop(perform.await);
                });
                drop(tokio::spawn(landing));
                sleep(before).await;
                Err(ambiguous())
            }
            CallOutcome::Slow { by, then } => {
                record("is slow");
                let performing = reorder(&self.scenario, async move {
                    sleep(by).await;
                    let answer = perform.await;
                    sleep(then).await;
                    answer
                });
                tokio::spawn(performing)
                    .await
                    .unwrap_or_else(|_| Err(ambiguous()))
            }
        };
        self.process.step().await;
        answer
    }

    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        let sent_at = Instant::now();
        let (id, lease) = (self.scenario.assign_id(request.id), request.policy.lease);
        let request = Reserve { id, ..request };
        match self.send(Request::Reserve { request }).await {
            // The guard is removed: an error grants an attempt.
            Err(_) if self.scenario.sabotage == Sabotage::FailsOpen => {
                Ok(Decision::Execute(Grant {
                    fence: Fence { id, attempt: 1 },
                    locked_until: self.scenario.clock.now().saturating_add(lease),
                    recovery: None,
                }))
            }
            Ok(Reply::Decision(decision)) => {
                if let Decision::Execute(grant) | Decision::Resume(grant) = &decision {
                    lock(&self.scenario.witness).delivered(grant, sent_at.elapsed());
                }
                Ok(decision)
            }
            Ok(other) => Err(Error::WrongReply {
                verb: Verb::Reserve,
                reply: other.kind(),
            }),
            Err(error) => Err(error),
        }
    }

    /// Replaces the real id by the simulated one, which the store has.
    fn with_simulated_id(&self, fence: Fence) -> Fence {
        Fence {
            id: self.scenario.simulated_id(fence.id),
            ..fence
        }
    }
}

fn unavailable() -> Error {
    Error::Unavailable {
        reason: "injected by the seed".into(),
        source: None,
    }
}

fn ambiguous() -> Error {
    Error::Ambiguous {
        reason: "injected by the seed".into(),
        source: None,
    }
}

impl Backend for StoreConnection {
    async fn call(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Reserve { request } => self.reserve(request).await.map(Into::into),
            mut request @ (Request::Complete { .. }
            | Request::Release { .. }
            | Request::Evict { .. }
            | Request::MarkUnknown { .. }
            | Request::Heartbeat { .. }
            | Request::Advance { .. }
            | Request::DeadLetter { .. }) => {
                if let Request::Complete { fence, .. }
                | Request::Release { fence, .. }
                | Request::Evict { fence, .. }
                | Request::MarkUnknown { fence, .. }
                | Request::Heartbeat { fence, .. }
                | Request::Advance { fence, .. }
                | Request::DeadLetter { fence, .. } = &mut request
                {
                    *fence = self.with_simulated_id(*fence);
                }
                self.send(request).await
            }
            request @ (Request::Sweep { .. }
            | Request::ClaimAbandoned { .. }
            | Request::ClaimDue { .. }
            | Request::Resolve { .. }
            | Request::Expire { .. }
            | Request::DropBodies { .. }
            | Request::Purge { .. }
            | Request::Erase { .. }
            | Request::AuditReveal { .. }
            | Request::Find { .. }
            | Request::FindIdentity { .. }
            | Request::History { .. }
            | Request::CountUnfinished { .. }
            | Request::List { .. }) => self.send(request).await,
            // No process of the simulation depends on these being slow or lost.
            request @ (Request::Watch { .. }
            | Request::FindResource { .. }
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
            | Request::ForgetMisuses { .. }) => self.shared.call(request).await,
        }
    }

    /// Every request passes through `call`.
    fn try_decide(&self, _: &Reserve) -> Option<Decision> {
        None
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.shared.clock()
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        self.shared.erasure_epoch()
    }

    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion> {
        self.shared.prepare(id, completion)
    }

    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        self.shared.prepare_point(id, point)
    }

    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        self.shared.decrypt_evidence(id, evidence)
    }
}
