//! Statistics for the console. Sums are computed in Rust, in the transaction that stores them: one
//! implementation adds counts, and a sum saturates at its bound.

pub(crate) mod lookups;

use std::time::Duration;

use rusqlite::{OptionalExtension as _, Row, params};
use semel_core::statistics::{
    Activity, Caller, DecisionCounts, MAX_CALLERS, MAX_MISUSES, Misuse, RecordCount, RecordCounts,
};
use semel_core::{OperationId, Owner, Timestamp};

use crate::error::Failure;
use crate::list::whole;
use crate::maintenance::batch;
use crate::queries::Statements;
use crate::writer::Command;

/// Adds the counts of one process.
pub(crate) struct AddCounts {
    pub(crate) activity: Vec<Activity>,
    pub(crate) misuses: Vec<Misuse>,
}

impl Command for AddCounts {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<(), Failure> {
        for line in &self.activity {
            add_activity(line, sql)?;
        }
        let mut is_any_new = false;
        for misuse in &self.misuses {
            is_any_new |= add_misuse(misuse, sql)?;
        }
        // Scans all stored misuse, so it runs only where the number may have grown.
        if is_any_new {
            sql.trim_misuse.execute([whole(MAX_MISUSES)])?;
        }
        Ok(())
    }
}

fn add_activity(more: &Activity, sql: &mut Statements<'_>) -> rusqlite::Result<()> {
    let Activity {
        at,
        operation,
        decisions: more,
    } = more;
    let kept = sql
        .find_activity
        .query_row(params![at.as_micros(), operation], |row| {
            decision_counts(row, 0)
        })
        .optional()?;
    let mut sum = kept.unwrap_or_default();
    sum.add(more);
    sql.write_activity.execute(params![
        at.as_micros(),
        operation,
        encode_count(sum.created),
        encode_count(sum.replayed),
        encode_count(sum.in_progress),
        encode_count(sum.misuse),
        encode_count(sum.retried),
        encode_count(sum.unknown),
        encode_count(sum.expired),
        encode_count(sum.failed),
    ])?;
    Ok(())
}

/// Returns whether this is the first misuse of the tenant and operation.
fn add_misuse(more: &Misuse, sql: &mut Statements<'_>) -> rusqlite::Result<bool> {
    let kept = sql
        .find_misuse
        .query_row(params![more.tenant, more.operation], misuse)
        .optional()?;
    let is_new = kept.is_none();
    let sum = match kept {
        Some(mut sum) => {
            sum.add(more);
            sum
        }
        None => more.clone(),
    };
    sql.write_misuse.execute(params![
        sum.tenant,
        sum.operation,
        encode_count(sum.count),
        sum.first_at.as_micros(),
        sum.last_at.as_micros(),
        sum.last_id.as_bytes(),
    ])?;
    Ok(is_new)
}

/// Adds callers that are not known yet. Returns whether there is room for more.
pub(crate) struct RecordCallers(pub(crate) Vec<Caller>);

impl Command for RecordCallers {
    type Answer = bool;

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<bool, Failure> {
        let mut new_callers = Vec::new();
        for caller in &self.0 {
            if !sql.find_caller.exists(names(caller))? {
                new_callers.push(caller);
            }
        }
        let known: i64 = sql.count_callers.query_row([], |row| row.get(0))?;
        let mut room = whole(MAX_CALLERS).saturating_sub(known);
        for caller in new_callers {
            if room <= 0 {
                break;
            }
            let recorded = sql.record_caller.execute(names(caller))?;
            room = room.saturating_sub(whole(recorded));
        }
        Ok(room > 0)
    }
}

/// The columns of a caller.
fn names(caller: &Caller) -> (&str, &str, &str) {
    (caller.scope.as_str(), &caller.tenant, &caller.operation)
}

/// Acquires or renews the lease of the one process that scans the records.
pub(crate) struct AcquireScanLease(pub(crate) Owner, pub(crate) Duration);

impl Command for AcquireScanLease {
    type Answer = bool;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<bool, Failure> {
        let until = now.saturating_add(self.1);
        let parameters = params![self.0.as_str(), until.as_micros(), now.as_micros()];
        Ok(sql.acquire_scan_lease.execute(parameters)? > 0)
    }
}

/// Replaces the published record counts, unless newer ones are stored.
pub(crate) struct PublishRecordCounts(pub(crate) RecordCounts);

impl Command for PublishRecordCounts {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<(), Failure> {
        let Self(RecordCounts {
            began_at,
            ended_at,
            counts,
            all_callers,
        }) = self;
        let scan = params![began_at.as_micros(), ended_at.as_micros(), all_callers];
        if sql.publish_record_counts.execute(scan)? == 0 {
            return Ok(());
        }
        sql.clear_record_counts.execute([])?;
        for (position, line) in counts.iter().enumerate() {
            let RecordCount {
                operation,
                status,
                count,
            } = line;
            let line = params![
                whole(position),
                operation,
                status.as_str(),
                encode_count(*count)
            ];
            sql.insert_record_count.execute(line)?;
        }
        Ok(())
    }
}

/// Deletes statistics from before a time.
pub(crate) enum Forget {
    Activity(Timestamp, usize),
    Misuses(Timestamp, usize),
}

impl Command for Forget {
    type Answer = usize;

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<usize, Failure> {
        let (statement, before, limit) = match self {
            Self::Activity(before, limit) => (&mut sql.forget_activity, before, limit),
            Self::Misuses(before, limit) => (&mut sql.forget_misuses, before, limit),
        };
        batch(statement, *limit, *before)
    }
}

/// Reads the eight counts in the columns from `first` on.
fn decision_counts(row: &Row<'_>, first: usize) -> rusqlite::Result<DecisionCounts> {
    let count = |column: usize| row.get(first + column).map(decode_count);
    Ok(DecisionCounts {
        created: count(0)?,
        replayed: count(1)?,
        in_progress: count(2)?,
        misuse: count(3)?,
        retried: count(4)?,
        unknown: count(5)?,
        expired: count(6)?,
        failed: count(7)?,
    })
}

/// A row of `misuses.sql`.
fn misuse(row: &Row<'_>) -> rusqlite::Result<Misuse> {
    Ok(Misuse {
        tenant: row.get(0)?,
        operation: row.get(1)?,
        count: decode_count(row.get(2)?),
        first_at: Timestamp::from_micros(row.get(3)?),
        last_at: Timestamp::from_micros(row.get(4)?),
        last_id: OperationId::from_bytes(row.get(5)?),
    })
}

/// Encodes a count for a column, which has a sign. Saturates.
fn encode_count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Decodes a count from a column.
fn decode_count(count: i64) -> u64 {
    u64::try_from(count).unwrap_or_default()
}
