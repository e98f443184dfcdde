//! Counts of unfinished records, by operation.

use std::collections::BTreeMap;

use rusqlite::Row;
use semel_core::Timestamp;
use semel_core::store::{CountWithOldest, UnfinishedCounts};

use crate::error::Failure;
use crate::queries::Statements;
use crate::reader::Lookup;

/// Counts the records in progress and unknown, by operation.
pub(crate) struct CountUnfinished;

impl Lookup for CountUnfinished {
    type Answer = Vec<UnfinishedCounts>;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Vec<UnfinishedCounts>, Failure> {
        let mut all = BTreeMap::<Box<str>, UnfinishedCounts>::new();
        let mut rows = sql.count_in_progress.query([])?;
        while let Some(row) = rows.next()? {
            entry(&mut all, row)?.in_progress = count_with_oldest(row, 1)?;
        }
        drop(rows);
        let mut rows = sql.count_unknown.query([])?;
        while let Some(row) = rows.next()? {
            let counts = entry(&mut all, row)?;
            counts.unknown = count_with_oldest(row, 1)?;
            counts.dead_lettered = count_with_oldest(row, 3)?;
        }
        Ok(all.into_values().collect())
    }
}

/// The counts of the operation that a row names.
fn entry<'a>(
    all: &'a mut BTreeMap<Box<str>, UnfinishedCounts>,
    row: &Row<'_>,
) -> Result<&'a mut UnfinishedCounts, Failure> {
    let operation: Box<str> = row.get(0)?;
    let counts = all
        .entry(operation.clone())
        .or_insert_with(|| UnfinishedCounts {
            operation,
            in_progress: CountWithOldest::default(),
            unknown: CountWithOldest::default(),
            dead_lettered: CountWithOldest::default(),
        });
    Ok(counts)
}

/// Reads a count and the oldest time, in two columns from `first` on.
fn count_with_oldest(row: &Row<'_>, first: usize) -> Result<CountWithOldest, Failure> {
    let count: i64 = row.get(first)?;
    let oldest: Option<i64> = row.get(first + 1)?;
    Ok(CountWithOldest {
        count: u64::try_from(count).unwrap_or_default(),
        oldest: oldest.map(Timestamp::from_micros),
    })
}
