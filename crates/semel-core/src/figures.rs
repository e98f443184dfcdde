//! Figures for people: how much there is, and how fast it comes.
//!
//! None of them is on the way of a request. How many operations there are is found by a *census*:
//! a worker walks all of them in short stretches, and publishes what it counted. What requests
//! were told is counted where they are answered, and added to what others counted, now and then.

use std::future::Future;
use std::time::Duration;

use crate::store::{Result, Summary};
use crate::{Key, KeyScope, OperationId, Owner, Status, Timestamp};

/// How long a stretch of [`Activity`] is.
pub const STRETCH: Duration = Duration::from_secs(10);

/// The most callers that are kept. A key is looked for under each.
pub const MAX_CALLERS: usize = 20_000;

/// The most tenants and commands that misuse is kept of; those whose last misuse is longest ago
/// make room. Whoever can make up tenants must not fill the store with them.
pub const MAX_MISUSES: usize = 10_000;

/// What is counted out of band, and kept for people.
///
/// # Errors
/// Only that the store could not answer. What was to be added may be lost or counted twice then:
/// nothing is decided by it.
pub trait Figures: Send + Sync + 'static {
    /// Adds what one process counted to what all have counted.
    fn count(
        &self,
        activity: Vec<Activity>,
        misuses: Vec<Misuse>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// What requests were told in stretches that begin at `since` or later, oldest first, and by
    /// command.
    fn activity(&self, since: Timestamp) -> impl Future<Output = Result<Vec<Activity>>> + Send;

    /// Who used keys for something else, the latest first.
    fn misuses(&self, limit: usize) -> impl Future<Output = Result<Vec<Misuse>>> + Send;

    /// Looks at up to `limit` operations with ids after `after`, in the order of their ids.
    fn survey(
        &self,
        after: Option<OperationId>,
        limit: usize,
    ) -> impl Future<Output = Result<Survey>> + Send;

    /// Remembers who calls what, as far as it is new and [`MAX_CALLERS`] are not known; says
    /// whether there is room for others.
    fn meet(&self, callers: Vec<Caller>) -> impl Future<Output = Result<bool>> + Send;

    /// Takes the right to take a census, for so long from now; says whether it was to be had. Of
    /// many processes one counts; whoever has the right may take it again.
    fn count_alone(
        &self,
        owner: Owner,
        lease: Duration,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Puts a census in the place of the one before, unless that one ended later.
    fn publish_census(&self, census: Census) -> impl Future<Output = Result<()>> + Send;

    /// The latest census, if there was any.
    fn census(&self) -> impl Future<Output = Result<Option<Census>>> + Send;

    /// The newest operations under a key, as far as their [callers](Figures::meet) are known: at
    /// most [`MAX_BATCH`](crate::store::MAX_BATCH), newest first. Whoever called for the first time after the latest census is missed.
    fn find_key(&self, key: &Key) -> impl Future<Output = Result<Vec<Summary>>> + Send;

    /// Removes up to `limit` lines of activity that began before `before`; says how many.
    fn forget_activity(
        &self,
        before: Timestamp,
        limit: usize,
    ) -> impl Future<Output = Result<usize>> + Send;

    /// Removes up to `limit` misuses whose last time was before `before`; says how many.
    fn forget_misuses(
        &self,
        before: Timestamp,
        limit: usize,
    ) -> impl Future<Output = Result<usize>> + Send;
}

/// What requests for one command were told, in one stretch of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// When the stretch began: see [`stretch`].
    pub at: Timestamp,
    /// The command.
    pub operation: Box<str>,
    /// How many.
    pub told: Told,
}

/// How many requests were told what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// To execute, under a new key.
    pub created: u64,
    /// A stored answer.
    pub replayed: u64,
    /// That somebody is executing.
    pub in_progress: u64,
    /// That the key was used for something else.
    pub misuse: u64,
    /// To execute again.
    pub retried: u64,
    /// That nobody knows.
    pub unknown: u64,
    /// That it is too long ago.
    pub expired: u64,
    /// That the store did not answer.
    pub failed: u64,
}

/// How often a tenant used keys of one command for something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misuse {
    /// The tenant.
    pub tenant: Box<str>,
    /// The command.
    pub operation: Box<str>,
    /// How often.
    pub count: u64,
    /// The first time.
    pub first_at: Timestamp,
    /// The last time.
    pub last_at: Timestamp,
    /// Whose key it was then.
    pub last_id: OperationId,
}

/// A stretch of operations, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// How many, by caller and status.
    pub counts: Vec<(Caller, Status, u64)>,
    /// Where the next one begins; `None` at the end.
    pub next: Option<OperationId>,
}

/// Who calls what.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Caller {
    /// How far the keys reach.
    pub scope: KeyScope,
    /// The tenant.
    pub tenant: Box<str>,
    /// The command.
    pub operation: Box<str>,
}

/// How many operations there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// When counting began.
    pub began_at: Timestamp,
    /// When it ended. What changed in between is counted before or after.
    pub ended_at: Timestamp,
    /// How many, by command and status, in that order.
    pub counts: Vec<Count>,
    /// Whether all callers are known: see [`Figures::find_key`].
    pub all_callers: bool,
}

/// How many operations of one command have one status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The command.
    pub operation: Box<str>,
    /// The status.
    pub status: Status,
    /// How many.
    pub count: u64,
}

/// The beginning of the stretch that a time is in.
pub fn stretch(at: Timestamp) -> Timestamp {
    let length = crate::time::micros(STRETCH);
    Timestamp::from_micros(at.as_micros().div_euclid(length) * length)
}

impl Told {
    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        let mut sums = self.counts();
        for (sum, more) in sums.iter_mut().zip(other.counts()) {
            *sum = sum.saturating_add(more);
        }
        *self = sums.into();
    }

    /// All counts, in the order of the fields: what is stored in as many columns.
    pub fn counts(&self) -> [u64; 8] {
        let Self {
            created,
            replayed,
            in_progress,
            misuse,
            retried,
            unknown,
            expired,
            failed,
        } = *self;
        [
            created,
            replayed,
            in_progress,
            misuse,
            retried,
            unknown,
            expired,
            failed,
        ]
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// From [`Told::counts`].
impl From<[u64; 8]> for Told {
    fn from(counts: [u64; 8]) -> Self {
        let [
            created,
            replayed,
            in_progress,
            misuse,
            retried,
            unknown,
            expired,
            failed,
        ] = counts;
        Self {
            created,
            replayed,
            in_progress,
            misuse,
            retried,
            unknown,
            expired,
            failed,
        }
    }
}

impl Misuse {
    /// Adds what another process saw of the same tenant and command.
    pub fn add(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.first_at = self.first_at.min(other.first_at);
        if other.last_at >= self.last_at {
            self.last_at = other.last_at;
            self.last_id = other.last_id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_stretch_that_began_before_it() {
        for (at, began) in [
            (0, 0),
            (9_999_999, 0),
            (10_000_000, 10_000_000),
            (-1, -10_000_000),
        ] {
            assert_eq!(
                stretch(Timestamp::from_micros(at)),
                Timestamp::from_micros(began)
            );
        }
    }
}
