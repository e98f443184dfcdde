//! The reference store: the transition functions under one lock.
//!
//! It forgets everything with the process, so it is for tests and for learning. What makes
//! it worth having is that it cannot differ from [`transition`]: it has no rules of its own.

mod figures;
mod inbox;
mod inspect;
mod outbox;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::history::{self, Entry};
use crate::identity::IdentityHash;
use crate::store::{Epoch, Error, MAX_BATCH, Result, Which};
use crate::transition::{
    self, Answer, Completion, Decision, Event, Held, Reserve, Resolution, Resolve,
};
use crate::{
    Backoff, By, Clock, Code, Fence, Identity, Maintain, OperationId, Owner, Record, RecoveryPoint,
    Resource, State, Store, SystemClock, Timestamp,
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
    histories: HashMap<OperationId, Vec<Entry>>,
    erasures: u64,
    inbox: inbox::Messages,
    outbox: outbox::Events,
    figures: figures::Counted,
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

    /// Applies an event to the record of that name, or to its absence.
    fn apply(&self, id: OperationId, event: &Event) -> Answer {
        let mut records = self.lock();
        let now = self.clock.now();
        records.apply(Some(id), event, now).0
    }

    fn held(&self, fence: Fence, event: &Event) -> Result<Held> {
        match self.apply(fence.id, event) {
            Answer::Held(held) => Ok(held),
            Answer::Decision(_) | Answer::Resolution(_) | Answer::Applied(_) => Err(mixed_up()),
        }
    }

    fn resolution(&self, fence: Fence, event: &Event) -> Result<Resolution> {
        match self.apply(fence.id, event) {
            Answer::Resolution(resolution) => Ok(resolution),
            Answer::Decision(_) | Answer::Held(_) | Answer::Applied(_) => Err(mixed_up()),
        }
    }

    /// Applies an event to up to `limit` records for which it is due, in order of `due`.
    fn apply_due(
        &self,
        limit: usize,
        event: &Event,
        due: impl Fn(&Record) -> Option<Timestamp>,
    ) -> Vec<(OperationId, Option<Record>)> {
        let mut records = self.lock();
        let now = self.clock.now();
        let mut candidates: Vec<_> = records
            .by_id
            .values()
            .filter_map(|record| Some((due(record)?, record.id)))
            .filter(|(at, _)| *at <= now)
            .collect();
        candidates.sort_unstable();
        let mut done = Vec::new();
        for (_, id) in candidates {
            if done.len() == limit.min(MAX_BATCH) {
                break;
            }
            if let (Answer::Applied(true), record) = records.apply(Some(id), event, now) {
                done.push((id, record));
            }
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

    /// The one way in which a record changes, and its history with it.
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
            history::tell(entries, before.as_ref(), event, &after, now);
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

/// An answer to another question, which cannot be.
fn mixed_up() -> Error {
    Error::Corrupt {
        reason: "the state machine answered another question".into(),
    }
}

impl Store for Memory {
    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        let mut records = self.lock();
        let now = self.clock.now();
        let id = records.find(&request.identity)?.map(|record| record.id);
        match records.apply(id, &Event::Reserve(request), now).0 {
            Answer::Decision(decision) => Ok(decision),
            Answer::Held(_) | Answer::Resolution(_) | Answer::Applied(_) => Err(mixed_up()),
        }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    fn epoch(&self) -> Option<Epoch> {
        Some(Epoch(self.lock().erasures))
    }

    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Held> {
        self.held(fence, &Event::Complete(fence, completion))
    }

    async fn release(&self, fence: Fence, code: Code) -> Result<Held> {
        self.held(fence, &Event::Release(fence, code))
    }

    async fn evict(&self, fence: Fence, code: Code) -> Result<Held> {
        self.held(fence, &Event::Evict(fence, code))
    }

    async fn mark_unknown(
        &self,
        fence: Fence,
        code: Code,
        resource: Option<Resource>,
    ) -> Result<Held> {
        self.held(fence, &Event::MarkUnknown(fence, code, resource))
    }

    async fn heartbeat(&self, fence: Fence, lease: Duration) -> Result<Held> {
        self.held(fence, &Event::Heartbeat(fence, lease))
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        self.held(fence, &Event::Advance(fence, point))
    }
}

impl Maintain for Memory {
    async fn sweep(&self, limit: usize) -> Result<Vec<Fence>> {
        let swept = self.apply_due(limit, &Event::Sweep, |record| match &record.state {
            State::InProgress(lease) => Some(lease.sweep_at()),
            State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => None,
        });
        let records = swept.into_iter().filter_map(|(_, record)| record);
        Ok(records.map(|record| record.fence()).collect())
    }

    async fn claim_abandoned(
        &self,
        operation: &str,
        owner: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let due = |record: &Record| match &record.state {
            State::InProgress(lease) if *operation == *record.identity.operation() => {
                lease.resume_at()
            }
            State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => None,
        };
        let claimed = self.apply_due(limit, &Event::ClaimAbandoned(owner, lease), due);
        Ok(claimed
            .into_iter()
            .filter_map(|(_, record)| record)
            .collect())
    }

    async fn claim_due(&self, which: Which, backoff: Backoff, limit: usize) -> Result<Vec<Record>> {
        let due = |record: &Record| match &record.state {
            State::Unknown(unresolved) => which
                .admits(record.identity.operation())
                .then_some(unresolved.reconcile_after),
            State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Expired { .. } => None,
        };
        let claimed = self.apply_due(limit, &Event::ClaimDue(backoff), due);
        Ok(claimed
            .into_iter()
            .filter_map(|(_, record)| record)
            .collect())
    }

    async fn resolve(&self, verdict: Resolve) -> Result<Resolution> {
        self.resolution(verdict.fence, &Event::Resolve(verdict))
    }

    async fn dead_letter(&self, fence: Fence, code: Code) -> Result<Resolution> {
        self.resolution(fence, &Event::DeadLetter(fence, code))
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        let expired = self.apply_due(limit, &Event::Expire, |record| match &record.state {
            State::Completed(completed) => Some(completed.expires_at),
            State::FailedRetryable { expires_at } => Some(*expires_at),
            State::InProgress(_) | State::Unknown(_) | State::Expired { .. } => None,
        });
        Ok(expired.len())
    }

    async fn drop_bodies(&self, limit: usize) -> Result<usize> {
        let dropped = self.apply_due(limit, &Event::DropBody, |record| match &record.state {
            State::Completed(completed) => completed.body_expires_at,
            State::InProgress(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => None,
        });
        Ok(dropped.len())
    }

    async fn purge(&self, limit: usize) -> Result<usize> {
        let purged = self.apply_due(limit, &Event::Purge, |record| match &record.state {
            State::Expired { purge_at } => Some(*purge_at),
            State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_) => None,
        });
        Ok(purged.len())
    }

    async fn erase(&self, id: OperationId, by: By) -> Result<bool> {
        Ok(self.apply(id, &Event::Erase(by)) == Answer::Applied(true))
    }

    async fn revealed(&self, id: OperationId, by: By) -> Result<bool> {
        Ok(self.apply(id, &Event::Reveal(by)) == Answer::Applied(true))
    }
}
