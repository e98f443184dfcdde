//! The store interface over [`SharedStore`].

use std::sync::Arc;

use bytes::Bytes;
use semel_core::store::{Backend, ErasureEpoch, Reply, Request, Result};
use semel_core::{Clock, Completion, Decision, OperationId, RecoveryPoint, Reserve};

use super::SharedStore;
use crate::Sabotage;

impl Backend for SharedStore {
    async fn call(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Reserve { request } => self.reserve(request).await.map(Into::into),
            Request::Complete { fence, completion } => {
                self.complete(fence, completion).await.map(Into::into)
            }
            Request::Release { fence, code } => self.release(fence, code).await.map(Into::into),
            Request::Evict { fence, code } => self.evict(fence, code).await.map(Into::into),
            Request::MarkUnknown {
                fence,
                code,
                resource,
            } => {
                let held = self.mark_unknown(fence, code, resource).await;
                held.map(Into::into)
            }
            Request::Advance { fence, point } => self.advance(fence, point).await.map(Into::into),
            Request::Heartbeat { fence, lease } => {
                self.heartbeat(fence, lease).await.map(Into::into)
            }
            Request::Sweep { limit } => self.sweep(limit).await.map(Into::into),
            Request::ClaimDue { .. } if self.is_sabotaged(Sabotage::NeverReconciles) => {
                Ok(Reply::Records(Vec::new()))
            }
            Request::Resolve { verdict } => self.resolve(verdict).await.map(Into::into),
            Request::DeadLetter { fence, code } => {
                self.dead_letter(fence, code).await.map(Into::into)
            }
            Request::Expire { limit } => self.expire(limit).await.map(Into::into),
            request @ (Request::Watch { .. }
            | Request::ClaimAbandoned { .. }
            | Request::ClaimDue { .. }
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
