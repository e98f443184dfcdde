//! The reference store: the transition functions under one lock.
//!
//! It keeps nothing beyond the process, so it is for tests and for learning. It has no rules of its
//! own: every change of a record is a call of [`transition::apply`].

mod due;
mod inbox;
mod inspect;
mod outbox;
mod statistics;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use self::due::{body_expires_at, expires_at, purge_at, reconcile_at, resume_at, sweep_at};
use crate::contract::Published;
use crate::history::{self, Entry};
use crate::identity::IdentityHash;
use crate::store::{Backend, ErasureEpoch, Error, MAX_BATCH, Reply, Request, Result};
use crate::transition::{self, Answer, Completion, Decision, Event, Reserve};
use crate::{Clock, Identity, OperationId, Record, RecoveryPoint, SystemClock, Timestamp};

/// A store in memory. Clones share it.
#[derive(Clone, Debug)]
pub struct Memory {
    clock: Arc<dyn Clock>,
    records: Arc<Mutex<Records>>,
}

/// All that is stored. Records are in the order of their ids, which is by age.
#[derive(Debug, Default)]
struct Records {
    by_id: BTreeMap<OperationId, Record>,
    ids: HashMap<IdentityHash, OperationId>,
    histories: HashMap<OperationId, Vec<Entry>>,
    erasures: u64,
    inbox: inbox::Messages,
    outbox: outbox::Events,
    statistics: statistics::Statistics,
    contracts: Published,
}

impl Memory {
    /// An empty store that judges leases by `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            records: Arc::default(),
        }
    }

    /// A panic elsewhere cannot leave a record half changed: each change is one assignment.
    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

impl Records {
    fn find(&self, identity: &Identity) -> Result<Option<&Record>> {
        let Some(record) = self
            .ids
            .get(&identity.hash())
            .and_then(|id| self.by_id.get(id))
        else {
            return Ok(None);
        };
        if record.identity.names_same_record(identity) {
            Ok(Some(record))
        } else {
            Err(Error::Corrupt {
                reason: "two identities have one hash".into(),
            })
        }
    }

    /// Changes a record and its history. Nothing else does.
    fn apply(
        &mut self,
        id: Option<OperationId>,
        event: &Event,
        now: Timestamp,
    ) -> (Answer, Option<Record>) {
        let before = id.and_then(|id| self.by_id.remove(&id));
        if let Some(before) = &before {
            self.ids.remove(&before.identity.hash());
        }
        let after = transition::apply(before.clone(), event.clone(), now);
        if let Some(record) = &after.record {
            let entries = self.histories.entry(record.id).or_default();
            history::append_note(entries, before.as_ref(), event, &after, now);
        }
        let transition::Transition { record, answer } = after;
        if matches!((event, &answer), (Event::Erase(_), Answer::Applied(true))) {
            self.erasures += 1;
        }
        if let Some(gone) = before.map(|before| before.id)
            && record.as_ref().map(|record| record.id) != Some(gone)
        {
            self.histories.remove(&gone);
        }
        if let Some(record) = &record {
            self.ids.insert(record.identity.hash(), record.id);
            self.by_id.insert(record.id, record.clone());
        }
        (answer, record)
    }
}

impl Records {
    /// Performs one request at one instant.
    #[allow(clippy::too_many_lines, reason = "one arm for each verb")]
    fn perform(&mut self, request: Request, now: Timestamp) -> Result<Reply> {
        Ok(match request {
            Request::Reserve { request } => {
                let id = self.find(&request.identity)?.map(|record| record.id);
                self.apply(id, &Event::Reserve(request), now).0.into()
            }
            Request::Complete { fence, completion } => {
                self.change(fence.id, &Event::Complete(fence, completion), now)
            }
            Request::Release { fence, code } => {
                self.change(fence.id, &Event::Release(fence, code), now)
            }
            Request::Evict { fence, code } => {
                self.change(fence.id, &Event::Evict(fence, code), now)
            }
            Request::MarkUnknown {
                fence,
                code,
                resource,
            } => self.change(fence.id, &Event::MarkUnknown(fence, code, resource), now),
            Request::Heartbeat { fence, lease } => {
                self.change(fence.id, &Event::Heartbeat(fence, lease), now)
            }
            Request::Advance { fence, point } => {
                self.change(fence.id, &Event::Advance(fence, point), now)
            }
            Request::Watch { .. } => Reply::Watch(None),

            Request::Sweep { limit } => {
                let swept = self.apply_due(limit, &Event::Sweep, now, sweep_at);
                Reply::Fences(swept.iter().map(Record::fence).collect())
            }
            Request::ClaimAbandoned {
                operation,
                owner,
                lease,
                limit,
            } => {
                let due = |record: &Record| resume_at(record, &operation);
                let claim = Event::ClaimAbandoned(owner, lease);
                self.apply_due(limit, &claim, now, due).into()
            }
            Request::ClaimDue {
                filter,
                backoff,
                limit,
            } => {
                let due = |record: &Record| {
                    reconcile_at(record).filter(|_| filter.admits(record.identity.operation()))
                };
                self.apply_due(limit, &Event::ClaimDue(backoff), now, due)
                    .into()
            }
            Request::Resolve { verdict } => {
                self.change(verdict.fence.id, &Event::Resolve(verdict), now)
            }
            Request::DeadLetter { fence, code } => {
                self.change(fence.id, &Event::DeadLetter(fence, code), now)
            }
            Request::Expire { limit } => self
                .count_due(limit, &Event::Expire, now, expires_at)
                .into(),
            Request::DropBodies { limit } => self
                .count_due(limit, &Event::DropBody, now, body_expires_at)
                .into(),
            Request::Purge { limit } => self.count_due(limit, &Event::Purge, now, purge_at).into(),
            Request::Erase { id, by } => self.change(id, &Event::Erase(by), now),
            Request::AuditReveal { id, by } => self.change(id, &Event::Reveal(by), now),

            Request::Find { id } => self.by_id.get(&id).cloned().into(),
            Request::FindIdentity { identity } => self.find(&identity)?.cloned().into(),
            Request::FindResource { resource_id } => self.find_resource(&resource_id).into(),
            Request::History { id } => self.histories.get(&id).cloned().unwrap_or_default().into(),
            Request::CountUnfinished {} => self.count_unfinished().into(),
            Request::List { query } => self.list(&query).into(),

            Request::Contracts {} => self.contracts.clone().into(),
            Request::PublishContracts {
                revision,
                contracts,
            } => {
                let is_current = self.contracts.revision == revision;
                if is_current {
                    self.contracts = Published {
                        revision: revision + 1,
                        contracts,
                    };
                }
                is_current.into()
            }
            Request::CountRecords { filter } => self.count_records(&filter, now).into(),

            Request::ReceiveMessage { message, handling } => {
                self.receive_message(message, handling, now).into()
            }
            Request::SettleMessage { source, id } => {
                self.settle_message(source, id);
                Reply::Done
            }
            Request::ClaimParked { backoff, limit } => {
                self.claim_parked(backoff, limit, now).into()
            }
            Request::ForgetMessages { limit } => self.forget_messages(limit, now).into(),

            Request::ClaimEvents {
                relay,
                lease,
                limit,
            } => self.claim_events(relay, lease, limit, now).into(),
            Request::MarkSent { events } => {
                self.mark_sent(events);
                Reply::Done
            }
            Request::HoldBack { event, backoff, .. } => {
                self.hold_back(event, backoff, now);
                Reply::Done
            }
            Request::DeadLetterEvent { event, reason } => {
                self.dead_letter_event(event, &reason, now);
                Reply::Done
            }
            Request::DeadEvents { limit } => self.dead_events(limit).into(),
            Request::ReviveEvent { event } => self.revive_event(event).into(),
            Request::OutboxBacklog {} => self.outbox_backlog().into(),
            Request::ReleaseRelay { relay } => {
                self.release_relay(&relay);
                Reply::Done
            }

            Request::AddCounts { activity, misuses } => {
                self.add_counts(activity, misuses);
                Reply::Done
            }
            Request::Activity { since } => self.activity(since).into(),
            Request::Misuses { limit } => self.misuses(limit).into(),
            Request::ScanRecords { after, limit } => self.scan_records(after, limit).into(),
            Request::RecordCallers { callers } => self.record_callers(callers).into(),
            Request::AcquireScanLease { owner, lease } => {
                self.acquire_scan_lease(owner, lease, now).into()
            }
            Request::PublishRecordCounts { counts } => {
                self.publish_record_counts(counts);
                Reply::Done
            }
            Request::RecordCounts {} => self.record_counts().into(),
            Request::FindKey { key } => self.find_key(&key)?.into(),
            Request::ForgetActivity { before, limit } => self.forget_activity(before, limit).into(),
            Request::ForgetMisuses { before, limit } => self.forget_misuses(before, limit).into(),
        })
    }

    /// Applies an event to the record with that id, or to its absence.
    fn change(&mut self, id: OperationId, event: &Event, now: Timestamp) -> Reply {
        self.apply(Some(id), event, now).0.into()
    }

    /// Applies an event to up to `limit` records for which it is due, in order of `due`, and
    /// returns those that are left of them.
    fn apply_due(
        &mut self,
        limit: usize,
        event: &Event,
        now: Timestamp,
        due: impl Fn(&Record) -> Option<Timestamp>,
    ) -> Vec<Record> {
        let changed = self.change_due(limit, event, now, due);
        changed.into_iter().flatten().collect()
    }

    /// As [`apply_due`](Records::apply_due), and returns the number of records.
    fn count_due(
        &mut self,
        limit: usize,
        event: &Event,
        now: Timestamp,
        due: impl Fn(&Record) -> Option<Timestamp>,
    ) -> usize {
        self.change_due(limit, event, now, due).len()
    }

    fn change_due(
        &mut self,
        limit: usize,
        event: &Event,
        now: Timestamp,
        due: impl Fn(&Record) -> Option<Timestamp>,
    ) -> Vec<Option<Record>> {
        let mut candidates: Vec<_> = self
            .by_id
            .values()
            .filter_map(|record| Some((due(record)?, record.id)))
            .filter(|(at, _)| *at <= now)
            .collect();
        candidates.sort_unstable();
        let mut changed = Vec::new();
        for (_, id) in candidates {
            if changed.len() == limit.min(MAX_BATCH) {
                break;
            }
            if let (Answer::Applied(true), record) = self.apply(Some(id), event, now) {
                changed.push(record);
            }
        }
        changed
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Decision(decision) => decision.into(),
            Answer::Held(held) => held.into(),
            Answer::Resolution(resolution) => resolution.into(),
            Answer::Applied(applied) => applied.into(),
        }
    }
}

impl Backend for Memory {
    async fn call(&self, request: Request) -> Result<Reply> {
        let mut records = self.lock();
        let now = self.clock.now();
        records.perform(request, now)
    }

    fn try_decide(&self, _: &Reserve) -> Option<Decision> {
        None
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        Some(ErasureEpoch(self.lock().erasures))
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
