//! How the unfinished operations stand, by command.

use std::collections::BTreeMap;

use rusqlite::Row;
use semel_core::Timestamp;
use semel_core::store::{Standing, Tally};

use crate::error::Failure;
use crate::queries::Statements;
use crate::reader::Lookup;

/// What is under way or unresolved.
pub(crate) struct Stand;

impl Lookup for Stand {
    type Answer = Vec<Standing>;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Vec<Standing>, Failure> {
        let mut all = BTreeMap::<Box<str>, Standing>::new();
        let mut rows = sql.standing_in_progress.query([])?;
        while let Some(row) = rows.next()? {
            of(&mut all, row)?.in_progress = tally(row, 1)?;
        }
        drop(rows);
        let mut rows = sql.standing_unknown.query([])?;
        while let Some(row) = rows.next()? {
            let standing = of(&mut all, row)?;
            standing.unknown = tally(row, 1)?;
            standing.dead_lettered = tally(row, 3)?;
        }
        Ok(all.into_values().collect())
    }
}

/// How the command of a row stands so far.
fn of<'s>(
    all: &'s mut BTreeMap<Box<str>, Standing>,
    row: &Row<'_>,
) -> Result<&'s mut Standing, Failure> {
    let operation: Box<str> = row.get(0)?;
    let standing = all.entry(operation.clone()).or_insert_with(|| Standing {
        operation,
        in_progress: Tally::default(),
        unknown: Tally::default(),
        dead_lettered: Tally::default(),
    });
    Ok(standing)
}

/// A number and the oldest, in two columns from `first` on.
fn tally(row: &Row<'_>, first: usize) -> Result<Tally, Failure> {
    let count: i64 = row.get(first)?;
    let oldest: Option<i64> = row.get(first + 1)?;
    Ok(Tally {
        count: u64::try_from(count).unwrap_or_default(),
        oldest: oldest.map(Timestamp::from_micros),
    })
}
