//! Statistics: how many records there are, and which decisions requests get.
//!
//! No request waits for them. A worker counts the records by a scan in short batches, and publishes
//! the counts. Decisions are counted in the process that makes them, and added to the totals every
//! few seconds.

use std::time::Duration;

use crate::{KeyScope, OperationId, Status, Timestamp};

/// The length of an interval of [`Activity`].
pub const ACTIVITY_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of stored callers. A search by key looks at each.
pub const MAX_CALLERS: usize = 20_000;

/// Maximum number of stored misuses, one for each tenant and operation; the one that is longest ago
/// is dropped first. A client that invents tenants must not fill the store.
pub const MAX_MISUSES: usize = 10_000;

/// The decisions for one operation in one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// When the interval began: see [`interval_start`].
    pub at: Timestamp,
    /// The operation.
    pub operation: Box<str>,
    /// The number of decisions of each kind.
    pub decisions: DecisionCounts,
}

/// Numbers of decisions, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionCounts {
    /// Executions under a new key.
    pub created: u64,
    /// Replays of a stored response.
    pub replayed: u64,
    /// Refusals because an attempt is running.
    pub in_progress: u64,
    /// Refusals because the key was used for another request.
    pub misuse: u64,
    /// Executions after a released attempt.
    pub retried: u64,
    /// Refusals because the outcome is unknown.
    pub unknown: u64,
    /// Refusals because the replay window is over.
    pub expired: u64,
    /// Errors of the store.
    pub failed: u64,
}

/// How often a tenant used keys of one operation for another request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misuse {
    /// The tenant.
    pub tenant: Box<str>,
    /// The operation.
    pub operation: Box<str>,
    /// How often.
    pub count: u64,
    /// The first time.
    pub first_at: Timestamp,
    /// The last time.
    pub last_at: Timestamp,
    /// The record that the key belongs to.
    pub last_id: OperationId,
}

/// The counts of one batch of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordScan {
    /// How many, by caller and status.
    pub counts: Vec<(Caller, Status, u64)>,
    /// Where the next one begins; `None` at the end.
    pub next: Option<OperationId>,
}

/// A tenant that calls an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Caller {
    /// How far the keys reach.
    pub scope: KeyScope,
    /// The tenant.
    pub tenant: Box<str>,
    /// The operation.
    pub operation: Box<str>,
}

/// The number of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordCounts {
    /// When counting began.
    pub began_at: Timestamp,
    /// When it ended. What changed in between is counted before or after.
    pub ended_at: Timestamp,
    /// How many, by command and status, in that order.
    pub counts: Vec<RecordCount>,
    /// Whether all callers are known: see [`crate::Store::find_key`].
    pub all_callers: bool,
}

/// The number of records of one operation with one status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordCount {
    /// The operation.
    pub operation: Box<str>,
    /// The status.
    pub status: Status,
    /// How many.
    pub count: u64,
}

/// The beginning of the interval that a time is in.
pub fn interval_start(at: Timestamp) -> Timestamp {
    let length = crate::time::micros(ACTIVITY_INTERVAL);
    Timestamp::from_micros(at.as_micros().div_euclid(length) * length)
}

impl DecisionCounts {
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

/// From [`DecisionCounts::counts`].
impl From<[u64; 8]> for DecisionCounts {
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
    fn interval_start_rounds_down() {
        for (at, began) in [
            (0, 0),
            (9_999_999, 0),
            (10_000_000, 10_000_000),
            (-1, -10_000_000),
        ] {
            assert_eq!(
                interval_start(Timestamp::from_micros(at)),
                Timestamp::from_micros(began)
            );
        }
    }
}
