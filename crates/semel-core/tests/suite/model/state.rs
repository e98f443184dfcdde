//! The state of the model: the record of one key, and the clients, owners, network, reconciler and
//! clock around it.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use semel_core::{Fence, OperationId, Record, State, Status, Timestamp};

use super::invariants::Violations;

/// One state of the search.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub(crate) struct ModelState {
    /// The store's clock.
    pub(crate) tick: u8,
    /// The record in the store.
    pub(crate) record: StoredRecord,
    /// All attempts that were granted, in order.
    pub(crate) attempts: Vec<Attempt>,
    /// The attempts whose downstream call had its effect, whatever the record says.
    pub(crate) ledger: Vec<Fence>,
    /// The answer of each completed operation; the status identifies the response.
    pub(crate) answers: Vec<(OperationId, u16)>,
    /// Operations whose owner evicted them because the call was not made.
    pub(crate) evicted: Vec<OperationId>,
    /// Invariants that some step violated.
    pub(crate) violations: Violations,
}

/// The record, with a hash for the search.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StoredRecord(pub(crate) Option<Arc<Record>>);

/// One granted attempt, and the verdicts on it.
///
/// A message that an owner or a reconciler may have sent can be delivered at any time, any number
/// of times, or never. This covers delay, retry after an ambiguous answer, and loss, so the model
/// needs no queues: it only tracks which messages would be true.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    pub(crate) fence: Fence,
    pub(crate) progress: OwnerProgress,
    /// Whether a reconciler sent the verdict that the attempt executed.
    pub(crate) found_done: bool,
    /// Whether a reconciler or an operator sent the verdict that it did not execute.
    pub(crate) found_nothing: bool,
}

/// How far the owner of an attempt got.
///
/// A paused owner takes no steps while others do. An owner that died after its call takes none at
/// all; the store cannot distinguish the two, and the search covers both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OwnerProgress {
    /// The owner has not made the downstream call, and still may.
    Holding,
    /// The call is in flight: it arrives later or never, whether or not its sender lives.
    Calling,
    /// The call had its effect, and the owner may have sent `complete`.
    Landed,
    /// The owner did not call, never will, and may have sent `release` or `evict`.
    GaveUp,
    /// The owner died before the call, and an operator may find that out.
    Died,
}

/// The two request bodies that clients send with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// The payload of the first request.
    Same,
    /// A different payload.
    Other,
}

/// A step of the search. The number is the index of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Tick,
    Request(Payload),
    Call(usize),
    Land(usize),
    GiveUp(usize),
    Die(usize),
    Investigate(usize),
    Deliver(usize, Message),
    Sweep,
    ClaimAbandoned,
    ClaimDue,
    Expire,
    DropBody,
    Purge,
}

/// A message to the store about an attempt: a write of its owner, or a verdict on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Complete,
    Release,
    Evict,
    MarkUnknown,
    Heartbeat,
    Advance,
    VerdictCompleted,
    VerdictNotExecuted,
    VerdictStillUnknown,
    DeadLetter,
}

impl ModelState {
    /// The time of the store's clock.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(i64::from(self.tick) * 1_000_000)
    }

    /// The id of the next new record, which was never used before.
    pub(crate) fn next_id(&self) -> OperationId {
        let begun = self.attempts.iter().filter(|a| a.fence.attempt == 1);
        let mut bytes = [0; 16];
        bytes[15] = u8::try_from(begun.count() + 1).expect("few attempts");
        OperationId::from_bytes(bytes)
    }

    /// Whether the record is unknown at this attempt.
    pub(crate) fn is_unknown(&self, fence: Fence) -> bool {
        self.record.0.as_ref().is_some_and(|record| {
            record.fence() == fence && record.state.status() == Status::Unknown
        })
    }

    /// Whether the effect of this operation happened.
    pub(crate) fn happened(&self, id: OperationId) -> bool {
        self.ledger.iter().any(|fence| fence.id == id)
    }

    /// Whether a later execution was granted.
    pub(crate) fn superseded(&self, fence: Fence) -> bool {
        let key = |fence: Fence| (fence.id, fence.attempt);
        self.attempts.iter().any(|a| key(a.fence) > key(fence))
    }
}

impl Attempt {
    pub(crate) fn new(fence: Fence) -> Self {
        Self {
            fence,
            progress: OwnerProgress::Holding,
            found_done: false,
            found_nothing: false,
        }
    }

    /// Whether the owner or a verdict states that this attempt did not execute.
    pub(crate) fn proven_not_executed(&self) -> bool {
        self.progress == OwnerProgress::GaveUp || self.found_nothing
    }
}

impl Hash for StoredRecord {
    /// Two records are one state of the search if no step distinguishes them. So this leaves out
    /// the informational fields (owner, error code, who resolved) and the times that decide nothing
    /// (created, updated, completed, dead-lettered since). The identity, the windows, the resume
    /// timeout and the resource are the same in every state. (The removed prune guard does depend
    /// on the age, but that search looks for a violation, not for its absence.)
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Some(record) = &self.0 else {
            return false.hash(hasher);
        };
        record.id.hash(hasher);
        record.fingerprint.hash(hasher);
        record.attempt.hash(hasher);
        record
            .recovery
            .as_ref()
            .map(|point| &point.name)
            .hash(hasher);
        record.state.status().hash(hasher);
        match &record.state {
            State::InProgress(lease) => lease.locked_until.hash(hasher),
            State::Completed(completed) => {
                completed.response.status.hash(hasher);
                completed.response.body.hash(hasher);
                completed.expires_at.hash(hasher);
                completed.body_expires_at.hash(hasher);
            }
            State::FailedRetryable { expires_at } => expires_at.hash(hasher),
            State::Unknown(unresolved) => {
                unresolved.reconcile_after.hash(hasher);
                unresolved.reconcile_attempts.hash(hasher);
                unresolved.dead_lettered_at.is_some().hash(hasher);
            }
            State::Expired { purge_at } => purge_at.hash(hasher),
        }
    }
}
