//! The world around one key: clients, owners, the network, a reconciler, a clock, and
//! between them the record.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use semel_core::{Fence, OperationId, Record, State, Status, Timestamp};

use crate::watch::Broken;

/// Everything that is true at one moment. Nothing in here is known to all.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub(crate) struct World {
    /// The store's clock.
    pub(crate) tick: u8,
    /// What the store remembers.
    pub(crate) record: Stored,
    /// All executions that were ever granted, in order.
    pub(crate) attempts: Vec<Attempt>,
    /// Which attempts had their foreign effect: the truth, whatever the record says.
    pub(crate) ledger: Vec<Fence>,
    /// What each operation was completed with: the status stands for the response.
    pub(crate) answers: Vec<(OperationId, u16)>,
    /// Operations that were evicted: the store was told that nothing happened.
    pub(crate) evicted: Vec<OperationId>,
    /// Invariants that some step did not keep.
    pub(crate) broken: Broken,
}

/// The record, hashable.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stored(pub(crate) Option<Arc<Record>>);

/// One granted execution, and what was found out about it.
///
/// Whatever an owner or a reconciler may have sent by now can be delivered at any time, any
/// number of times, or never: that is delay, retry after an ambiguous answer, and loss in
/// one. So there are no queues in this world, only what it would be true to say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    pub(crate) fence: Fence,
    pub(crate) course: Course,
    /// Whether a reconciler sent the verdict that it happened.
    pub(crate) found_done: bool,
    /// Whether a reconciler, or a person, sent the verdict that it did not happen.
    pub(crate) found_nothing: bool,
}

/// How far an owner came.
///
/// A paused owner is one that does nothing while others do. One that died after its call
/// does nothing for good; nobody can tell the two apart, and every silence is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Course {
    /// It has not made the foreign call, and still may.
    Holding,
    /// The call is on its way: it lands later or never, whether or not its sender lives.
    Calling,
    /// The call had its effect, and the owner may have sent `complete`.
    Landed,
    /// It did not call, never will, and may have sent `release` or `evict` to say so.
    GaveUp,
    /// It died before it called, and a person may find that out.
    Died,
}

/// The two requests that come with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// What the key was used for.
    Same,
    /// Something else.
    Other,
}

/// What can happen next. The numbers say which attempt.
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

/// What travels to the store about an attempt: its owner's writes, and verdicts on it.
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

impl World {
    /// The instant that the store's clock shows.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(i64::from(self.tick) * 1_000_000)
    }

    /// The name that the next new record gets: never used before.
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
            course: Course::Holding,
            found_done: false,
            found_nothing: false,
        }
    }

    /// Whether somebody vouched that this attempt did not execute.
    pub(crate) fn proven_not_executed(&self) -> bool {
        self.course == Course::GaveUp || self.found_nothing
    }
}

impl Hash for Stored {
    /// Two records are one state of the search where no step can tell them apart. So the
    /// words for people (owner, error code, who resolved) and the instants that nothing is
    /// decided by (created, updated, completed, dead-lettered since) are left out. The
    /// identity, the windows, how long a resume is waited for, and the resource are the same
    /// everywhere. (The removed prune
    /// guard does judge by age, but there a violation is looked for, not its absence.)
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
