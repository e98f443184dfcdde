//! Rows of statistics.

use semel_core::statistics::{Activity, Caller, DecisionCounts, Misuse, RecordCount, RecordCounts};
use semel_core::store::Summary;
use semel_core::{OperationId, Status};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Columns, narrow, summary_from};
use crate::error::Failure;

/// A row of `activity.sql`.
pub(crate) fn activity(row: &Row) -> Result<Activity, Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok(Activity {
        at: columns.time()?,
        operation: columns.take::<String>()?.into(),
        decisions: DecisionCounts {
            created: columns.sum()?,
            replayed: columns.sum()?,
            in_progress: columns.sum()?,
            misuse: columns.sum()?,
            retried: columns.sum()?,
            unknown: columns.sum()?,
            expired: columns.sum()?,
            failed: columns.sum()?,
        },
    })
}

/// A row of `misuses.sql`.
pub(crate) fn misuse(row: &Row) -> Result<Misuse, Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok(Misuse {
        tenant: columns.take::<String>()?.into(),
        operation: columns.take::<String>()?.into(),
        count: columns.sum()?,
        first_at: columns.time()?,
        last_at: columns.time()?,
        last_id: columns.id()?,
    })
}

/// A row of `callers.sql`.
pub(crate) fn caller(row: &Row) -> Result<Caller, Failure> {
    Columns { row, next: 0 }.caller()
}

/// A row of `scan_records.sql`.
pub(crate) struct ScannedBatch {
    pub(crate) count: (Caller, Status, u64),
    pub(crate) next: Option<OperationId>,
}

/// A row of `scan_records.sql`.
pub(crate) fn scanned(row: &Row) -> Result<ScannedBatch, Failure> {
    let mut columns = Columns { row, next: 0 };
    let count = (columns.caller()?, columns.status()?, columns.sum()?);
    let next = columns.take::<Option<Uuid>>()?;
    Ok(ScannedBatch {
        count,
        next: next.map(|id| OperationId::from_bytes(id.into_bytes())),
    })
}

/// A row of `find_keys.sql`: the hash, and the record with it.
pub(crate) fn hashed(row: &Row) -> Result<(Uuid, Summary), Failure> {
    let hash = Columns { row, next: 0 }.take()?;
    Ok((hash, summary_from(row, 1)?))
}

/// A row of `record_counts.sql`.
pub(crate) fn record_counts(row: &Row) -> Result<RecordCounts, Failure> {
    let mut columns = Columns { row, next: 0 };
    let (began_at, ended_at) = (columns.time()?, columns.time()?);
    let all_callers = columns.take()?;
    let operations: Vec<&str> = columns.take()?;
    let statuses: Vec<&str> = columns.take()?;
    let counts: Vec<i64> = columns.take()?;
    let lines = operations.into_iter().zip(statuses).zip(counts);
    let counts = lines.map(|((operation, status), count)| {
        Ok(RecordCount {
            operation: operation.into(),
            status: super::status(status)?,
            count: narrow(count)?,
        })
    });
    Ok(RecordCounts {
        began_at,
        ended_at,
        counts: counts.collect::<Result<_, Failure>>()?,
        all_callers,
    })
}

impl Columns<'_> {
    fn sum(&mut self) -> Result<u64, Failure> {
        narrow(self.take::<i64>()?)
    }

    fn caller(&mut self) -> Result<Caller, Failure> {
        Ok(Caller {
            scope: self.scope()?,
            tenant: self.take::<String>()?.into(),
            operation: self.take::<String>()?.into(),
        })
    }
}
