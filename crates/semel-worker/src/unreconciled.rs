//! Operations that no process reconciles, as far as the store shows.
//!
//! A reconciler claims a record when it comes due. So where the oldest unknown record of an operation
//! has been due for minutes, no process reconciles the operation, or the one that does is too slow.

use std::time::Duration;

use semel_core::store::{Query, Result, UnfinishedCounts};
use semel_core::{OperationId, Record, State, Status, Store, Timestamp, Unresolved};

/// How long a record may be due before its operation counts as not reconciled. A worker claims due
/// records every second; a provider that hangs delays it by some lookups of ten seconds.
pub const OVERDUE: Duration = Duration::from_mins(5);

/// The most operations that one call examines.
const MAX_OPERATIONS: usize = 20;

/// An operation that no process reconciles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreconciled {
    /// The operation.
    pub operation: Box<str>,
    /// Its unknown records that are not dead-lettered.
    pub count: u64,
    /// When the oldest of them came due.
    pub due_at: Timestamp,
}

/// The operations whose oldest unknown record has been due for [`OVERDUE`]. Reads one record of each
/// operation that has unknown records besides its dead letters, at most 20.
///
/// # Errors
/// The store failed.
///
/// # Cancellation
/// Only reads.
pub async fn find<S: Store>(
    store: &S,
    counts: &[UnfinishedCounts],
    now: Timestamp,
) -> Result<Vec<Unreconciled>> {
    let mut found = Vec::new();
    let waiting = |counts: &UnfinishedCounts| {
        let dead_lettered = counts.dead_lettered.count;
        counts.unknown.count.saturating_sub(dead_lettered)
    };
    let candidates = counts.iter().filter(|counts| waiting(counts) > 0);
    for counts in candidates.take(MAX_OPERATIONS) {
        let query = unclaimed(Some(counts.operation.clone()), None, 1);
        let Some(oldest) = store.list(query).await?.operations.into_iter().next() else {
            continue;
        };
        let record = store.find(oldest.fence.id).await?;
        let due_at = record.as_ref().and_then(due_at);
        if let Some(due_at) = due_at
            && due_at.saturating_add(OVERDUE) <= now
        {
            found.push(Unreconciled {
                operation: counts.operation.clone(),
                count: waiting(counts),
                due_at,
            });
        }
    }
    Ok(found)
}

/// Unknown records that are not dead-lettered, oldest first.
pub(crate) fn unclaimed(
    operation: Option<Box<str>>,
    cursor: Option<OperationId>,
    limit: usize,
) -> Query {
    Query {
        status: Some(Status::Unknown),
        dead_lettered: Some(false),
        operation,
        oldest_first: true,
        before: cursor,
        limit,
        ..Query::default()
    }
}

/// When an unknown record that is not dead-lettered came due, or comes due.
pub fn due_at(record: &Record) -> Option<Timestamp> {
    match &record.state {
        State::Unknown(Unresolved {
            reconcile_after,
            dead_lettered_at: None,
            ..
        }) => Some(*reconcile_after),
        State::Unknown(_)
        | State::InProgress(_)
        | State::Completed(_)
        | State::FailedRetryable { .. }
        | State::Expired { .. } => None,
    }
}
