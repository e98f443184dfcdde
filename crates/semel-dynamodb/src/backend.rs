//! The store's interface: which function performs which verb.

use std::sync::Arc;

use bytes::Bytes;
use semel_core::store::{Backend, ErasureEpoch, Error, Reply, Request, Result, Verb};
use semel_core::transition::Answer;
use semel_core::{Clock, Completion, Decision, Event, Fence, OperationId, RecoveryPoint, Reserve};

use crate::Dynamo;

impl Dynamo {
    async fn write_held(&self, fence: Fence, event: Event) -> Result<Reply> {
        self.inner.write_held(fence, event).await.map(reply)
    }

    async fn write_id(&self, id: OperationId, event: Event) -> Result<Reply> {
        self.inner.write_id(id, event).await.map(reply)
    }
}

fn reply(answer: Answer) -> Reply {
    match answer {
        Answer::Decision(decision) => decision.into(),
        Answer::Held(held) => held.into(),
        Answer::Resolution(resolution) => resolution.into(),
        Answer::Applied(applied) => applied.into(),
    }
}

impl Backend for Dynamo {
    #[allow(clippy::too_many_lines, reason = "one arm for each verb")]
    async fn call(&self, request: Request) -> Result<Reply> {
        let (store, verb) = (&self.inner, request.verb());
        match request {
            Request::Reserve { request } => store.reserve(request).await.map(Reply::from),
            Request::Complete { fence, completion } => {
                self.write_held(fence, Event::Complete(fence, completion))
                    .await
            }
            Request::Release { fence, code } => {
                self.write_held(fence, Event::Release(fence, code)).await
            }
            Request::Evict { fence, code } => {
                self.write_held(fence, Event::Evict(fence, code)).await
            }
            Request::MarkUnknown {
                fence,
                code,
                resource,
            } => {
                let event = Event::MarkUnknown(fence, code, resource);
                self.write_held(fence, event).await
            }
            Request::Heartbeat { fence, lease } => {
                let lease = lease.saturating_add(store.margin);
                self.write_held(fence, Event::Heartbeat(fence, lease)).await
            }
            Request::Advance { fence, point } => {
                self.write_held(fence, Event::Advance(fence, point)).await
            }
            // Nothing notifies; the caller polls.
            Request::Watch { .. } => Ok(Reply::Watch(None)),

            Request::Sweep { limit } => store.sweep(limit).await.map(Reply::from),
            Request::ClaimAbandoned {
                operation,
                owner,
                lease,
                limit,
            } => {
                let claimed = store.claim_abandoned(operation, owner, lease, limit);
                claimed.await.map(Reply::from)
            }
            Request::ClaimDue {
                filter,
                backoff,
                limit,
            } => store
                .claim_due(filter, backoff, limit)
                .await
                .map(Reply::from),
            Request::Resolve { verdict } => {
                self.write_id(verdict.fence.id, Event::Resolve(verdict))
                    .await
            }
            Request::DeadLetter { fence, code } => {
                self.write_id(fence.id, Event::DeadLetter(fence, code))
                    .await
            }
            Request::Expire { limit } => store.expire(limit).await.map(Reply::from),
            Request::DropBodies { limit } => store.drop_bodies(limit).await.map(Reply::from),
            Request::Purge { limit } => store.purge(limit).await.map(Reply::from),
            Request::Erase { id, by } => store.erase(id, by).await.map(Reply::from),
            Request::AuditReveal { id, by } => self.write_id(id, Event::Reveal(by)).await,

            Request::Find { id } => store.find(id).await.map(Reply::from),
            Request::FindIdentity { identity } => {
                store.find_identity(&identity).await.map(Reply::from)
            }
            Request::FindResource { resource_id } => {
                store.find_resource(&resource_id).await.map(Reply::from)
            }
            Request::History { id } => store.history(id).await.map(Reply::from),
            Request::CountUnfinished {} => store.count_unfinished().await.map(Reply::from),
            Request::List { query } => store.list(query).await.map(Reply::from),

            Request::Contracts {} => store.contracts().await.map(Reply::from),
            Request::PublishContracts {
                revision,
                contracts,
            } => {
                let published = store.publish_contracts(revision, &contracts);
                published.await.map(Reply::from)
            }
            Request::CountRecords { filter } => store.count_records(filter).await.map(Reply::from),

            Request::ReceiveMessage { message, handling } => store
                .receive_message(message, handling)
                .await
                .map(Reply::from),
            Request::SettleMessage { source, id } => {
                store.settle_message(&source, &id).await.map(Reply::from)
            }
            Request::ClaimParked { backoff, limit } => {
                store.claim_parked(backoff, limit).await.map(Reply::from)
            }
            Request::ForgetMessages { limit } => {
                store.forget_messages(limit).await.map(Reply::from)
            }

            // An event must commit with the application's rows, and those are in a table of the
            // application: it publishes by its Streams.
            Request::ClaimEvents { .. }
            | Request::MarkSent { .. }
            | Request::HoldBack { .. }
            | Request::DeadLetterEvent { .. }
            | Request::DeadEvents { .. }
            | Request::ReviveEvent { .. }
            | Request::OutboxBacklog {}
            | Request::ReleaseRelay { .. } => Err(unsupported(verb)),

            Request::AddCounts { activity, misuses } => {
                store.add_counts(activity, misuses).await.map(Reply::from)
            }
            Request::Activity { since } => store.activity(since).await.map(Reply::from),
            Request::Misuses { limit } => store.misuses(limit).await.map(Reply::from),
            Request::ScanRecords { after, limit } => {
                store.scan_records(after, limit).await.map(Reply::from)
            }
            Request::RecordCallers { callers } => {
                store.record_callers(callers).await.map(Reply::from)
            }
            Request::AcquireScanLease { owner, lease } => store
                .acquire_scan_lease(owner, lease)
                .await
                .map(Reply::from),
            Request::PublishRecordCounts { counts } => {
                store.publish_record_counts(counts).await.map(Reply::from)
            }
            Request::RecordCounts {} => store.record_counts().await.map(Reply::from),
            Request::FindKey { key } => store.find_key(&key).await.map(Reply::from),
            Request::ForgetActivity { before, limit } => {
                store.forget_activity(before, limit).await.map(Reply::from)
            }
            Request::ForgetMisuses { before, limit } => {
                store.forget_misuses(before, limit).await.map(Reply::from)
            }
        }
    }

    /// Every answer needs a request to DynamoDB.
    fn try_decide(&self, _: &Reserve) -> Option<Decision> {
        None
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.inner.clock)
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        self.inner.erasures.epoch()
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

fn unsupported(verb: Verb) -> Error {
    Error::Unsupported { verb }
}
