//! The store's interface: which connection performs which verb.

use std::sync::Arc;

use bytes::Bytes;
use semel_core::store::{AttemptEnded, Backend, ErasureEpoch, Reply, Request, Result};
use semel_core::{Actor, Clock, Completion, Decision, Fence, OperationId, RecoveryPoint, Reserve};

use crate::Postgres;
use crate::command::Command;
use crate::contracts::{CountRecords, PublishContracts, ReadContracts};
use crate::holder::Verb;
use crate::maintenance::{
    ApplyVerdict, AuditReveal, ClaimAbandoned, ClaimDue, DeadLetter, DropBodies, Erase, Expire,
    Purge, Sweep, Watch,
};
use crate::reader::{CountUnfinished, Find, FindIdentity, FindResource, History, List};
use crate::statistics::{self, ActivityColumns, MisuseColumns};
use crate::{inbox, outbox};

impl Postgres {
    /// A write of an attempt's holder.
    async fn write(&self, fence: Fence, verb: Verb) -> Result<Reply> {
        self.inner.write(fence, verb).await.map(Into::into)
    }

    /// A command for one row.
    async fn run<C: Command<Answer: Into<Reply>>>(&self, command: C) -> Result<Reply> {
        let answer = self.inner.send(&self.inner.command_queue, command).await;
        answer.map(Into::into)
    }

    /// A command that reads or changes many rows.
    async fn run_batch<C: Command<Answer: Into<Reply>>>(&self, command: C) -> Result<Reply> {
        let answer = self.inner.send(&self.inner.batch_queue, command).await;
        answer.map(Into::into)
    }

    async fn watch(&self, fence: Fence) -> Option<AttemptEnded> {
        let hub = &self.inner.notify_hub;
        if hub.is_disconnected() {
            return None;
        }
        let (ended, first) = hub.wait_for(fence.id);
        if first {
            // If it fails, the notification may be missing; the caller polls as well.
            let watch = self.inner.send(&self.inner.command_queue, Watch(fence));
            watch.await.ok()?;
        }
        Some(ended)
    }

    async fn erase(&self, id: OperationId, by: Actor) -> Result<bool> {
        let epoch = self
            .inner
            .send(&self.inner.command_queue, Erase(id, by))
            .await?;
        if let Some(epoch) = epoch {
            // Valid here at once; other processes are notified.
            self.inner.notify_hub.erased(epoch);
        }
        Ok(epoch.is_some())
    }
}

impl Backend for Postgres {
    #[allow(clippy::too_many_lines, reason = "one arm for each verb")]
    async fn call(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Reserve { request } => self.inner.reserve(request).await.map(Into::into),
            Request::Complete { fence, completion } => {
                self.write(fence, Verb::Complete(completion)).await
            }
            Request::Release { fence, code } => self.write(fence, Verb::Release(code)).await,
            Request::Evict { fence, code } => self.write(fence, Verb::Evict(code)).await,
            Request::MarkUnknown {
                fence,
                code,
                resource,
            } => self.write(fence, Verb::MarkUnknown(code, resource)).await,
            Request::Heartbeat { fence, lease } => self.write(fence, Verb::Heartbeat(lease)).await,
            Request::Advance { fence, point } => self.write(fence, Verb::Advance(point)).await,
            Request::Watch { fence } => Ok(self.watch(fence).await.into()),

            Request::Sweep { limit } => self.run_batch(Sweep(limit)).await,
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
                self.run_batch(claim).await
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
                self.run_batch(claim).await
            }
            Request::Resolve { verdict } => self.run(ApplyVerdict(verdict)).await,
            Request::DeadLetter { fence, code } => self.run(DeadLetter(fence, code)).await,
            Request::Expire { limit } => self.run_batch(Expire(limit)).await,
            Request::DropBodies { limit } => self.run_batch(DropBodies(limit)).await,
            Request::Purge { limit } => self.run_batch(Purge(limit)).await,
            Request::Erase { id, by } => self.erase(id, by).await.map(Into::into),
            Request::AuditReveal { id, by } => self.run(AuditReveal(id, by)).await,

            Request::Find { id } => self.run(Find(id)).await,
            Request::FindIdentity { identity } => {
                let hash = (self.inner.identity_hash)(&identity);
                self.run(FindIdentity(hash, identity)).await
            }
            Request::FindResource { resource_id } => self.run(FindResource(resource_id)).await,
            Request::History { id } => self.run(History(id)).await,
            Request::CountUnfinished {} => self.run_batch(CountUnfinished).await,
            Request::List { query } => self.run_batch(List(query)).await,

            Request::Contracts {} => self.run(ReadContracts).await,
            Request::PublishContracts {
                revision,
                contracts,
            } => {
                let publish = PublishContracts(revision, contracts);
                self.run(publish).await
            }
            Request::CountRecords { filter } => self.run_batch(CountRecords(filter)).await,

            Request::ReceiveMessage { message, handling } => {
                self.run(inbox::Receive(message, handling)).await
            }
            Request::SettleMessage { source, id } => self.run(inbox::Settle(source, id)).await,
            Request::ClaimParked { backoff, limit } => {
                self.run_batch(inbox::ClaimParked(backoff, limit)).await
            }
            Request::ForgetMessages { limit } => self.run_batch(inbox::Forget(limit)).await,

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
                self.run_batch(claim).await
            }
            Request::MarkSent { events } => self.run_batch(outbox::MarkSent::new(events)).await,
            Request::HoldBack {
                event,
                reason,
                backoff,
            } => {
                let hold = outbox::HoldBack {
                    event,
                    reason: outbox::storable_reason(&reason),
                    backoff,
                };
                self.run(hold).await
            }
            Request::DeadLetterEvent { event, reason } => {
                let reason = outbox::storable_reason(&reason);
                self.run(outbox::DeadLetterEvent(event, reason)).await
            }
            Request::DeadEvents { limit } => self.run_batch(outbox::DeadEvents(limit)).await,
            Request::ReviveEvent { event } => self.run(outbox::Revive(event)).await,
            Request::OutboxBacklog {} => self.run_batch(outbox::OutboxBacklog).await,
            Request::ReleaseRelay { relay } => self.run(outbox::ReleaseRelay(relay)).await,

            Request::AddCounts { activity, misuses } => {
                let (activity, misuses) = (
                    ActivityColumns::sums(activity),
                    MisuseColumns::sums(misuses),
                );
                self.run_batch(statistics::AddCounts(activity, misuses))
                    .await
            }
            Request::Activity { since } => self.run_batch(statistics::ActivitySince(since)).await,
            Request::Misuses { limit } => self.run_batch(statistics::LatestMisuses(limit)).await,
            Request::ScanRecords { after, limit } => {
                self.run_batch(statistics::ScanRecords(after, limit)).await
            }
            Request::RecordCallers { callers } => {
                self.run_batch(statistics::RecordCallers::new(callers))
                    .await
            }
            Request::AcquireScanLease { owner, lease } => {
                self.run_batch(statistics::AcquireScanLease(owner, lease))
                    .await
            }
            Request::PublishRecordCounts { counts } => {
                self.run_batch(statistics::PublishRecordCounts(counts))
                    .await
            }
            Request::RecordCounts {} => self.run_batch(statistics::LatestRecordCounts).await,
            Request::FindKey { key } => {
                let find = statistics::FindKey(key, self.inner.identity_hash);
                self.run_batch(find).await
            }
            Request::ForgetActivity { before, limit } => {
                self.run_batch(statistics::Forget::Activity(before, limit))
                    .await
            }
            Request::ForgetMisuses { before, limit } => {
                self.run_batch(statistics::Forget::Misuses(before, limit))
                    .await
            }
        }
    }

    /// Every answer needs a round trip.
    fn try_decide(&self, _: &Reserve) -> Option<Decision> {
        None
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.time.clock()
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        self.inner.notify_hub.erasure_epoch()
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
