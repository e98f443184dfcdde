//! The reference store: the transition functions under one lock.
//!
//! It forgets everything with the process, so it is for tests and for learning. What makes
//! it worth having is that it cannot differ from [`transition`]: it has no rules of its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::identity::IdentityHash;
use crate::store::{Epoch, Error, MAX_BATCH, Page, Query, Result, Summary};
use crate::transition::{
    self, Completion, Decision, Held, Reserve, Resolution, Resolve, Transition,
};
use crate::{
    Backoff, Clock, Code, Fence, Identity, Inspect, Maintain, OperationId, Record, RecoveryPoint,
    State, Store, SystemClock, Timestamp,
};

/// A store in memory. Clones share it.
#[derive(Clone, Debug)]
pub struct Memory {
    clock: Arc<dyn Clock>,
    records: Arc<Mutex<Records>>,
}

/// Records by name, which is by age, and the way from an identity to a name.
#[derive(Debug, Default)]
struct Records {
    by_id: BTreeMap<OperationId, Record>,
    ids: HashMap<IdentityHash, OperationId>,
    erasures: u64,
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

    /// Applies `change` to the record of that name, or to its absence.
    fn change<A>(
        &self,
        id: OperationId,
        change: impl FnOnce(Option<Record>, Timestamp) -> Transition<A>,
    ) -> A {
        let mut records = self.lock();
        let now = self.clock.now();
        let before = records.take(id);
        let after = change(before, now);
        records.put(after.record);
        after.answer
    }

    /// Applies `change` to up to `limit` records for which it is due, in order of `due`.
    fn change_due<T>(
        &self,
        limit: usize,
        due: impl Fn(&State) -> Option<Timestamp>,
        admits: impl Fn(&Record) -> bool,
        change: impl Fn(Option<Record>, Timestamp) -> Transition<bool>,
        told: impl Fn(OperationId, Option<&Record>) -> Option<T>,
    ) -> Vec<T> {
        let mut records = self.lock();
        let now = self.clock.now();
        let mut candidates: Vec<_> = records
            .by_id
            .values()
            .filter(|record| admits(record))
            .filter_map(|record| Some((due(&record.state)?, record.id)))
            .filter(|(at, _)| *at <= now)
            .collect();
        candidates.sort_unstable();
        let mut done = Vec::new();
        for (_, id) in candidates {
            if done.len() == limit.min(MAX_BATCH) {
                break;
            }
            let before = records.take(id);
            let after = change(before, now);
            if after.answer {
                done.extend(told(id, after.record.as_ref()));
            }
            records.put(after.record);
        }
        done
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

    fn take(&mut self, id: OperationId) -> Option<Record> {
        let record = self.by_id.remove(&id)?;
        self.ids.remove(&record.identity.hash());
        Some(record)
    }

    fn put(&mut self, record: Option<Record>) {
        if let Some(record) = record {
            self.ids.insert(record.identity.hash(), record.id);
            self.by_id.insert(record.id, record);
        }
    }
}

impl Store for Memory {
    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        let mut records = self.lock();
        let now = self.clock.now();
        let before = match records.find(&request.identity)?.map(|record| record.id) {
            Some(id) => records.take(id),
            None => None,
        };
        let after = transition::reserve(before, request, now);
        records.put(after.record);
        Ok(after.answer)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    fn epoch(&self) -> Option<Epoch> {
        Some(Epoch(self.lock().erasures))
    }

    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Held> {
        Ok(self.change(fence.id, |record, now| {
            transition::complete(record, fence, completion, now)
        }))
    }

    async fn release(&self, fence: Fence, code: Code) -> Result<Held> {
        Ok(self.change(fence.id, |record, now| {
            transition::release(record, fence, code, now)
        }))
    }

    async fn evict(&self, fence: Fence, code: Code) -> Result<Held> {
        Ok(self.change(fence.id, |record, now| {
            transition::evict(record, fence, code, now)
        }))
    }

    async fn mark_unknown(&self, fence: Fence, code: Code) -> Result<Held> {
        Ok(self.change(fence.id, |record, now| {
            transition::mark_unknown(record, fence, code, now)
        }))
    }

    async fn heartbeat(&self, fence: Fence, lease: Duration) -> Result<Held> {
        Ok(self.change(fence.id, |record, now| {
            transition::heartbeat(record, fence, lease, now)
        }))
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        Ok(self.change(fence.id, |record, now| {
            transition::advance(record, fence, point, now)
        }))
    }
}

impl Maintain for Memory {
    async fn sweep(&self, limit: usize) -> Result<Vec<Fence>> {
        let due = |state: &State| match state {
            State::InProgress(lease) => Some(lease.locked_until),
            State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => None,
        };
        Ok(self.change_due(
            limit,
            due,
            |_| true,
            transition::sweep,
            |_, record| record.map(Record::fence),
        ))
    }

    async fn claim_due(
        &self,
        operation: Option<&str>,
        backoff: Backoff,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let due = |state: &State| match state {
            State::Unknown(unresolved) => Some(unresolved.reconcile_after),
            State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Expired { .. } => None,
        };
        Ok(self.change_due(
            limit,
            due,
            |record| operation.is_none_or(|wanted| wanted == record.identity.operation()),
            |record, now| transition::claim_due(record, backoff, now),
            |_, record| record.cloned(),
        ))
    }

    async fn resolve(&self, verdict: Resolve) -> Result<Resolution> {
        Ok(self.change(verdict.fence.id, |record, now| {
            transition::resolve(record, verdict, now)
        }))
    }

    async fn dead_letter(&self, fence: Fence, code: Code) -> Result<Resolution> {
        Ok(self.change(fence.id, |record, now| {
            transition::dead_letter(record, fence, code, now)
        }))
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        let due = |state: &State| match state {
            State::Completed(completed) => Some(completed.expires_at),
            State::FailedRetryable { expires_at } => Some(*expires_at),
            State::InProgress(_) | State::Unknown(_) | State::Expired { .. } => None,
        };
        let done = self.change_due(limit, due, |_| true, transition::expire, |id, _| Some(id));
        Ok(done.len())
    }

    async fn drop_bodies(&self, limit: usize) -> Result<usize> {
        let due = |state: &State| match state {
            State::Completed(completed) => completed.body_expires_at,
            State::InProgress(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => None,
        };
        let done = self.change_due(
            limit,
            due,
            |_| true,
            transition::drop_body,
            |id, _| Some(id),
        );
        Ok(done.len())
    }

    async fn purge(&self, limit: usize) -> Result<usize> {
        let due = |state: &State| match state {
            State::Expired { purge_at } => Some(*purge_at),
            State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_) => None,
        };
        let done = self.change_due(limit, due, |_| true, transition::purge, |id, _| Some(id));
        Ok(done.len())
    }

    async fn erase(&self, id: OperationId) -> Result<bool> {
        let erased = self.change(id, transition::erase);
        self.lock().erasures += u64::from(erased);
        Ok(erased)
    }
}

impl Inspect for Memory {
    async fn find(&self, id: OperationId) -> Result<Option<Record>> {
        Ok(self.lock().by_id.get(&id).cloned())
    }

    async fn find_identity(&self, identity: &Identity) -> Result<Option<Record>> {
        Ok(self.lock().find(identity)?.cloned())
    }

    async fn list(&self, query: Query) -> Result<Page> {
        let size = query.page_size();
        let fitting = self
            .lock()
            .by_id
            .values()
            .rev()
            .map(Summary::from)
            .filter(|operation| query.admits(operation))
            .take(size + 1)
            .collect();
        Ok(Page::of(fitting, size))
    }
}
