//! The store's interface: which thread performs which verb.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use semel_core::outbox::cut_reason;
use semel_core::store::{Backend, ErasureEpoch, Reply, Request, Result};
use semel_core::{Clock, Completion, Decision, OperationId, RecoveryPoint, Reserve};

use crate::Sqlite;
use crate::contracts::{CountRecords, PublishContracts, ReadContracts};
use crate::history::History;
use crate::holder::{Advance, Complete, Evict, Heartbeat, MarkUnknown, Release};
use crate::list::List;
use crate::maintenance::{
    ApplyVerdict, AuditReveal, ClaimAbandoned, ClaimDue, DeadLetter, DropBodies, Erase, Expire,
    Purge, Sweep,
};
use crate::reader::{Find, FindIdentity, FindResource, Lookup};
use crate::statistics::lookups;
use crate::unfinished::CountUnfinished;
use crate::writer::Command;
use crate::{inbox, outbox, statistics};

impl Sqlite {
    /// The writer thread performs the command; the answer comes when it is on the disk.
    async fn perform<C: Command<Answer: Into<Reply>>>(&self, command: C) -> Result<Reply> {
        self.inner.write(command).await.map(Into::into)
    }

    /// A reader thread looks up one record.
    async fn read<L: Lookup<Answer: Into<Reply>>>(&self, lookup: L) -> Result<Reply> {
        let answer = self.inner.look(&self.inner.looks, lookup).await;
        answer.map(Into::into)
    }

    /// The thread for lists performs the lookup.
    async fn read_list<L: Lookup<Answer: Into<Reply>>>(&self, lookup: L) -> Result<Reply> {
        let answer = self.inner.look(&self.inner.lists, lookup).await;
        answer.map(Into::into)
    }
}

impl Backend for Sqlite {
    #[allow(clippy::too_many_lines, reason = "one arm for each verb")]
    async fn call(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Reserve { request } => self.inner.reserve(request).await.map(Into::into),
            Request::Complete { fence, completion } => {
                self.perform(Complete(fence, completion)).await
            }
            Request::Release { fence, code } => self.perform(Release(fence, code)).await,
            Request::Evict { fence, code } => self.perform(Evict(fence, code)).await,
            Request::MarkUnknown {
                fence,
                code,
                resource,
            } => self.perform(MarkUnknown(fence, code, resource)).await,
            Request::Heartbeat { fence, lease } => self.perform(Heartbeat(fence, lease)).await,
            Request::Advance { fence, point } => self.perform(Advance(fence, point)).await,
            // There are no notifications between processes.
            Request::Watch { .. } => Ok(Reply::Watch(None)),

            Request::Sweep { limit } => self.perform(Sweep(limit)).await,
            Request::ClaimAbandoned {
                operation,
                owner,
                lease,
                limit,
            } => {
                let claim = ClaimAbandoned {
                    operation,
                    owner,
                    lease,
                    limit,
                };
                self.perform(claim).await
            }
            Request::ClaimDue {
                filter,
                backoff,
                limit,
            } => {
                let claim = ClaimDue {
                    which: filter,
                    backoff,
                    limit,
                };
                self.perform(claim).await
            }
            Request::Resolve { verdict } => self.perform(ApplyVerdict(verdict)).await,
            Request::DeadLetter { fence, code } => self.perform(DeadLetter(fence, code)).await,
            Request::Expire { limit } => self.perform(Expire(limit)).await,
            Request::DropBodies { limit } => self.perform(DropBodies(limit)).await,
            Request::Purge { limit } => self.perform(Purge(limit)).await,
            Request::Erase { id, by } => {
                let erased = self.perform(Erase(id, by)).await;
                // Counted even after an error: the erasure may have been written.
                self.inner.erasures.fetch_add(1, Ordering::SeqCst);
                erased
            }
            Request::AuditReveal { id, by } => self.perform(AuditReveal(id, by)).await,

            Request::Find { id } => self.read(Find(id)).await,
            Request::FindIdentity { identity } => {
                let hash = (self.inner.identity_hash)(&identity);
                self.read(FindIdentity(hash, identity)).await
            }
            Request::FindResource { resource_id } => self.read(FindResource(resource_id)).await,
            Request::History { id } => self.read(History(id)).await,
            Request::CountUnfinished {} => self.read_list(CountUnfinished).await,
            Request::List { query } => self.read_list(List(query)).await,

            Request::Contracts {} => self.read_list(ReadContracts).await,
            Request::PublishContracts {
                revision,
                contracts,
            } => {
                let publish = PublishContracts(revision, contracts);
                self.perform(publish).await
            }
            Request::CountRecords { filter } => {
                let now = self.inner.clock.now();
                self.read_list(CountRecords { filter, now }).await
            }

            Request::ReceiveMessage { message, handling } => {
                self.perform(inbox::Receive(message, handling)).await
            }
            Request::SettleMessage { source, id } => self.perform(inbox::Settle(source, id)).await,
            Request::ClaimParked { backoff, limit } => {
                self.perform(inbox::ClaimParked(backoff, limit)).await
            }
            Request::ForgetMessages { limit } => self.perform(inbox::Forget(limit)).await,

            Request::ClaimEvents {
                relay,
                lease,
                limit,
            } => {
                let claim = outbox::ClaimEvents {
                    relay,
                    lease,
                    limit,
                };
                self.perform(claim).await
            }
            Request::MarkSent { events } => self.perform(outbox::MarkSent(events)).await,
            Request::HoldBack {
                event,
                reason,
                backoff,
            } => {
                let reason = cut_reason(&reason).into();
                self.perform(outbox::HoldBack(event, reason, backoff)).await
            }
            Request::DeadLetterEvent { event, reason } => {
                let reason = cut_reason(&reason).into();
                self.perform(outbox::DeadLetterEvent(event, reason)).await
            }
            Request::DeadEvents { limit } => self.read_list(outbox::DeadEvents(limit)).await,
            Request::ReviveEvent { event } => self.perform(outbox::Revive(event)).await,
            Request::OutboxBacklog {} => self.read_list(outbox::OutboxBacklog).await,
            Request::ReleaseRelay { relay } => self.perform(outbox::ReleaseRelay(relay)).await,

            Request::AddCounts { activity, misuses } => {
                self.perform(statistics::AddCounts { activity, misuses })
                    .await
            }
            Request::Activity { since } => self.read_list(lookups::ActivitySince(since)).await,
            Request::Misuses { limit } => self.read_list(lookups::LatestMisuses(limit)).await,
            Request::ScanRecords { after, limit } => {
                self.read_list(lookups::ScanRecords { after, limit }).await
            }
            Request::RecordCallers { callers } => {
                self.perform(statistics::RecordCallers(callers)).await
            }
            Request::AcquireScanLease { owner, lease } => {
                self.perform(statistics::AcquireScanLease(owner, lease))
                    .await
            }
            Request::PublishRecordCounts { counts } => {
                self.perform(statistics::PublishRecordCounts(counts)).await
            }
            Request::RecordCounts {} => self.read_list(lookups::LatestRecordCounts).await,
            Request::FindKey { key } => {
                let identity_hash = self.inner.identity_hash;
                self.read_list(lookups::FindKey { key, identity_hash })
                    .await
            }
            Request::ForgetActivity { before, limit } => {
                self.perform(statistics::Forget::Activity(before, limit))
                    .await
            }
            Request::ForgetMisuses { before, limit } => {
                self.perform(statistics::Forget::Misuses(before, limit))
                    .await
            }
        }
    }

    fn try_decide(&self, request: &Reserve) -> Option<Decision> {
        self.inner.try_decide(request)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.inner.clock)
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        Some(ErasureEpoch(self.inner.erasures.load(Ordering::SeqCst)))
    }

    fn prepare(&self, _: OperationId, completion: Completion) -> Result<Completion> {
        Ok(completion)
    }

    fn prepare_point(&self, _: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        Ok(point)
    }

    fn decrypt_evidence(&self, _: OperationId, evidence: Bytes) -> Result<Bytes> {
        Ok(evidence)
    }
}
