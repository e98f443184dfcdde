//! What a store does, and what it says when it cannot.
//!
//! A store performs the [`transition`](crate::transition) functions atomically and durably.
//! The three traits divide it by who calls: the request path needs a [`Store`], the workers
//! [`Maintain`] it, people [`Inspect`] it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::transition::{Completion, Decision, Held, Reserve, Resolution, Resolve};
use crate::{
    Backoff, Clock, Code, Fence, Identity, Key, OperationId, Record, RecoveryPoint, State, Status,
    Timestamp,
};

/// Most records that one call of [`Maintain`] touches or one [`Page`] holds, whatever the
/// caller asks for: a batch must not hold up the requests behind it.
pub const MAX_BATCH: usize = 1000;

/// Why a store could not do what it was asked.
///
/// The variants answer the one question that matters then: may it have been written?
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was written. Nothing may execute; asking again later is safe.
    #[error("the store is unavailable and wrote nothing: {reason}")]
    Unavailable {
        /// What is wrong, and the way out.
        reason: Box<str>,
        /// The driver's own error.
        #[source]
        source: Option<Source>,
    },
    /// It may or may not have been written. Find out by writing again, never by reading: a
    /// delayed write may still land after the read.
    #[error("the store did not say whether it wrote: {reason}")]
    Ambiguous {
        /// What is wrong, and the way out.
        reason: Box<str>,
        /// The driver's own error.
        #[source]
        source: Option<Source>,
    },
    /// What is stored cannot be trusted, so nothing was decided or written.
    #[error("the store holds something that cannot be right: {reason}")]
    Corrupt {
        /// What was found where.
        reason: Box<str>,
    },
}

/// The error of a driver, kept as the source of ours.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// A store's answer.
pub type Result<T> = std::result::Result<T, Error>;

/// Counts the erasures in a store, by whichever process.
///
/// A completed answer never changes, except that it may be erased. So a copy of one is good as
/// long as the epoch is the one that was read *before* the store was asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// Resolves when the attempt that is watched has ended, as far as the store hears. It may
/// resolve early, or never: look again then, and now and then.
pub type Hearing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The request path: asking to execute, and saying how it ended.
///
/// # Cancellation
/// Dropping the future of any of these does not take the call back: it may or may not be
/// performed, exactly as if the process had died. Whoever needs the answer keeps waiting.
pub trait Store: Send + Sync + 'static {
    /// Asks to execute. See [`transition::reserve`](fn@crate::transition::reserve).
    ///
    /// # Errors
    /// On any error nothing may execute.
    fn reserve(&self, request: Reserve) -> impl Future<Output = Result<Decision>> + Send;

    /// The answer to `reserve`, where it can be had at once: without waiting, and without
    /// writing. It grants nothing, ever; `None` says nothing, and `reserve` is asked. A store
    /// that has a record at hand spares a retry the way through its queues.
    fn glance(&self, _request: &Reserve) -> Option<Decision> {
        None
    }

    /// The clock by which the store judges leases and windows: whoever keeps a copy of an
    /// answer lets go of it when this clock says so.
    fn clock(&self) -> Arc<dyn Clock>;

    /// The present [`Epoch`]; `None` while the store cannot tell, and copies are of no use.
    fn epoch(&self) -> Option<Epoch>;

    /// Asks to be told when an attempt ends, in whatever process. By the time this returns the
    /// store listens, so whoever looks after that misses nothing. `None` where the store cannot
    /// hear; then one has to look for oneself, now and then.
    fn watch(&self, _fence: Fence) -> impl Future<Output = Option<Hearing>> + Send {
        std::future::ready(None)
    }

    /// Says how it ended. See [`transition::complete`](crate::transition::complete).
    ///
    /// # Errors
    /// After [`Error::Ambiguous`] the same call is made again until it is known.
    fn complete(
        &self,
        fence: Fence,
        completion: Completion,
    ) -> impl Future<Output = Result<Held>> + Send;

    /// Says that nothing happened. See [`transition::release`](crate::transition::release).
    ///
    /// # Errors
    /// After an error the lease runs out, and the record becomes unknown: safe, if slow.
    fn release(&self, fence: Fence, code: Code) -> impl Future<Output = Result<Held>> + Send;

    /// Says that nothing happened and nothing is to be remembered; a later attempt is
    /// released instead. See [`transition::evict`](crate::transition::evict).
    ///
    /// # Errors
    /// As [`release`](Store::release).
    fn evict(&self, fence: Fence, code: Code) -> impl Future<Output = Result<Held>> + Send;

    /// Says that it may have happened. See
    /// [`transition::mark_unknown`](crate::transition::mark_unknown).
    ///
    /// # Errors
    /// As [`release`](Store::release).
    fn mark_unknown(&self, fence: Fence, code: Code) -> impl Future<Output = Result<Held>> + Send;

    /// Says that the owner is alive. See
    /// [`transition::heartbeat`](crate::transition::heartbeat).
    ///
    /// # Errors
    /// The lease is as it was, or renewed.
    fn heartbeat(&self, fence: Fence, lease: Duration)
    -> impl Future<Output = Result<Held>> + Send;

    /// Says that a phase committed. See
    /// [`transition::advance`](crate::transition::advance).
    ///
    /// # Errors
    /// After [`Error::Ambiguous`] the same call is made again until it is known.
    fn advance(
        &self,
        fence: Fence,
        point: RecoveryPoint,
    ) -> impl Future<Output = Result<Held>> + Send;
}

/// What happens out of band. Every call does a bounded amount of work, says how much it
/// found, and may be made by many processes at once.
///
/// # Errors
/// An error leaves some or none of the batch done; the next call finds the rest.
pub trait Maintain: Send + Sync + 'static {
    /// Turns up to `limit` executions whose lease is over into unknowns, and names them.
    fn sweep(&self, limit: usize) -> impl Future<Output = Result<Vec<Fence>>> + Send;

    /// Hands up to `limit` due unknowns to this caller, longest due first, and schedules
    /// the next look at each. Where `operation` is given, only that one's.
    fn claim_due(
        &self,
        operation: Option<&str>,
        backoff: Backoff,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Record>>> + Send;

    /// Passes a verdict on an unknown operation.
    fn resolve(&self, verdict: Resolve) -> impl Future<Output = Result<Resolution>> + Send;

    /// Sets an unknown operation aside for a person.
    fn dead_letter(
        &self,
        fence: Fence,
        code: Code,
    ) -> impl Future<Output = Result<Resolution>> + Send;

    /// Ends up to `limit` replay windows that are over; says how many.
    fn expire(&self, limit: usize) -> impl Future<Output = Result<usize>> + Send;

    /// Removes up to `limit` bodies whose time is over; says how many.
    fn drop_bodies(&self, limit: usize) -> impl Future<Output = Result<usize>> + Send;

    /// Removes up to `limit` tombstones whose time is over; says how many.
    fn purge(&self, limit: usize) -> impl Future<Output = Result<usize>> + Send;

    /// Removes the stored response's body and headers, and the data of phases; says whether
    /// the operation is completed, since nothing else is erased.
    fn erase(&self, id: OperationId) -> impl Future<Output = Result<bool>> + Send;
}

/// Looking without touching.
///
/// # Errors
/// Only that the store could not answer.
pub trait Inspect: Send + Sync + 'static {
    /// The record of that name.
    fn find(&self, id: OperationId) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// The record of that identity.
    fn find_identity(
        &self,
        identity: &Identity,
    ) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// Operations that fit the query, newest first.
    fn list(&self, query: Query) -> impl Future<Output = Result<Page>> + Send;
}

/// Which operations to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Only those in this state.
    pub status: Option<Status>,
    /// Only this tenant's.
    pub tenant: Option<Box<str>>,
    /// Only this command.
    pub operation: Option<Box<str>>,
    /// Only under this key.
    pub key: Option<Key>,
    /// Only those that wait for a person, or only those that do not.
    pub dead_lettered: Option<bool>,
    /// Only those older than this one: the [`Page::next`] of the page before.
    pub before: Option<OperationId>,
    /// How many at most; [`MAX_BATCH`] bounds it. 0 asks for [`MAX_BATCH`].
    pub limit: usize,
}

/// Some operations, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The operations.
    pub operations: Vec<Summary>,
    /// Where the next page begins; `None` where this is the last.
    pub next: Option<OperationId>,
}

/// An operation without its response: what a list shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The operation and its latest attempt.
    pub fence: Fence,
    /// Tenant, command and key.
    pub identity: Identity,
    /// Where it stands.
    pub status: Status,
    /// Since when it waits for a person.
    pub dead_lettered_at: Option<Timestamp>,
    /// Why it is where it is.
    pub last_error: Option<Code>,
    /// When the key was first used.
    pub created_at: Timestamp,
    /// When anything last changed.
    pub updated_at: Timestamp,
}

impl Error {
    /// Whether the call may have been performed although it failed.
    pub fn may_have_written(&self) -> bool {
        match self {
            Self::Ambiguous { .. } => true,
            Self::Unavailable { .. } | Self::Corrupt { .. } => false,
        }
    }
}

impl Query {
    /// Whether an operation belongs to the list.
    pub fn admits(&self, operation: &Summary) -> bool {
        fn is<T: PartialEq + ?Sized>(wanted: Option<&T>, found: &T) -> bool {
            wanted.is_none_or(|wanted| wanted == found)
        }
        is(self.status.as_ref(), &operation.status)
            && is(self.tenant.as_deref(), operation.identity.tenant())
            && is(self.operation.as_deref(), operation.identity.operation())
            && is(self.key.as_ref(), operation.identity.key())
            && is(
                self.dead_lettered.as_ref(),
                &operation.dead_lettered_at.is_some(),
            )
            && self.before.is_none_or(|before| operation.fence.id < before)
    }

    /// The number of operations on one page.
    pub fn page_size(&self) -> usize {
        match self.limit {
            0 => MAX_BATCH,
            limit => limit.min(MAX_BATCH),
        }
    }
}

impl Page {
    /// A page of `size` out of operations of which one more was looked for than fits.
    pub fn of(mut operations: Vec<Summary>, size: usize) -> Self {
        let more = operations.len() > size;
        operations.truncate(size);
        let next = operations.last().filter(|_| more).map(|last| last.fence.id);
        Self { operations, next }
    }
}

impl From<&Record> for Summary {
    fn from(record: &Record) -> Self {
        Self {
            fence: record.fence(),
            identity: record.identity.clone(),
            status: record.state.status(),
            dead_lettered_at: match &record.state {
                State::Unknown(unresolved) => unresolved.dead_lettered_at,
                State::InProgress(_)
                | State::Completed(_)
                | State::FailedRetryable { .. }
                | State::Expired { .. } => None,
            },
            last_error: record.last_error.clone(),
            created_at: record.created_at,
            updated_at: record.updated_at,
        }
    }
}
