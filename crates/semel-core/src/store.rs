//! What a store does, and what it says when it cannot.
//!
//! A store performs the [`transition`](crate::transition) functions atomically and durably.
//! The three traits divide it by who calls: the request path needs a [`Store`], the workers
//! [`Maintain`] it, people [`Inspect`] it.

mod error;
mod listing;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use error::{Error, Result, Source};
pub use listing::{MAX_WALK, Page, Query, Summary};

use crate::history::Entry;
use crate::transition::{Completion, Decision, Held, Reserve, Resolution, Resolve};
use crate::{
    Backoff, By, Clock, Code, Fence, Identity, OperationId, Owner, Record, RecoveryPoint, Resource,
    Timestamp,
};

/// Most records that one call of [`Maintain`] touches or one [`Page`] holds, whatever the
/// caller asks for: a batch must not hold up the requests behind it.
pub const MAX_BATCH: usize = 1000;

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

    /// Says that it may have happened, and what was created if it did, where that has a name.
    /// See [`transition::mark_unknown`](crate::transition::mark_unknown).
    ///
    /// # Errors
    /// As [`release`](Store::release).
    fn mark_unknown(
        &self,
        fence: Fence,
        code: Code,
        resource: Option<Resource>,
    ) -> impl Future<Output = Result<Held>> + Send;

    /// A completion as this store keeps it, for a [`Transaction`](crate::Transaction) that
    /// writes it elsewhere than through [`complete`](Store::complete).
    ///
    /// # Errors
    /// As [`complete`](Store::complete); nothing was written.
    fn prepare(&self, _id: OperationId, completion: Completion) -> Result<Completion> {
        Ok(completion)
    }

    /// A recovery point as this store keeps it, for the same purpose: see
    /// [`prepare`](Store::prepare).
    ///
    /// # Errors
    /// As [`advance`](Store::advance); nothing was written.
    fn prepare_point(&self, _id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        Ok(point)
    }

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
    /// After [`Error::Ambiguous`] the same call is made again until it is known. Even then the
    /// first may land later, and take the point back to itself: until another attempt has the
    /// fence, nothing is done that the point must not forget.
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
    /// Turns up to `limit` executions whose lease is over, and which nobody resumes, into unknowns,
    /// and names them.
    fn sweep(&self, limit: usize) -> impl Future<Output = Result<Vec<Fence>>> + Send;

    /// Hands up to `limit` executions of one command, whose owners fell silent and which are made to
    /// be resumed, to `owner` as their next attempts, longest silent first.
    fn claim_abandoned(
        &self,
        operation: &str,
        owner: Owner,
        lease: Duration,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Record>>> + Send;

    /// Hands up to `limit` due unknowns to this caller, longest due first, and schedules
    /// the next look at each.
    fn claim_due(
        &self,
        which: Which,
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
    /// Evidence in the history goes, too; that there was some stays.
    fn erase(&self, id: OperationId, by: By) -> impl Future<Output = Result<bool>> + Send;

    /// Tells in the history that a person is about to be shown the stored response; says whether
    /// the operation is completed, since nothing else has one. What is not told is not shown.
    fn revealed(&self, id: OperationId, by: By) -> impl Future<Output = Result<bool>> + Send;
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

    /// The newest record of an operation that created the resource of that id, or was about to.
    fn find_resource(
        &self,
        resource_id: &str,
    ) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// What happened to the operation of that name besides an ordinary execution, oldest first.
    fn history(&self, id: OperationId) -> impl Future<Output = Result<Vec<Entry>>> + Send;

    /// Evidence of a history as it can be read. A history is verified as it is stored.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn reveal(&self, _id: OperationId, evidence: Bytes) -> Result<Bytes> {
        Ok(evidence)
    }

    /// What is under way or unresolved, by command. Its cost grows with what is listed, not with
    /// all that is remembered.
    fn standing(&self) -> impl Future<Output = Result<Vec<Standing>>> + Send;

    /// Operations that fit the query, newest first. No more than [`Query::walk`] are looked at, so
    /// a page may have room left, or be empty, and yet have a next.
    fn list(&self, query: Query) -> impl Future<Output = Result<Page>> + Send;
}

/// Which commands a worker asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// All there are.
    All,
    /// One.
    Only(Box<str>),
    /// All others.
    AllBut(Arc<[Box<str>]>),
}

/// How one command's unfinished operations stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The command.
    pub operation: Box<str>,
    /// Those that are under way.
    pub in_progress: Tally,
    /// Those whose outcome nobody knows, waiting for a person or not.
    pub unknown: Tally,
    /// Those of them that wait for a person.
    pub dead_lettered: Tally,
}

/// How many, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many there are.
    pub count: u64,
    /// When the key of the oldest was first used.
    pub oldest: Option<Timestamp>,
}

impl Which {
    /// Whether the command is asked for.
    pub fn admits(&self, operation: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(wanted) => **wanted == *operation,
            Self::AllBut(others) => others.iter().all(|other| **other != *operation),
        }
    }
}

impl Tally {
    /// One more.
    pub fn add(&mut self, created_at: Timestamp) {
        self.count += 1;
        self.oldest = Some(
            self.oldest
                .map_or(created_at, |oldest| oldest.min(created_at)),
        );
    }
}
