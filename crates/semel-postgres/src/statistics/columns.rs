//! Statistics as columns: one statement writes many rows.

use std::collections::BTreeMap;

use semel_core::statistics::{Activity, DecisionCounts, Misuse, RecordCounts};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::row::uuid;

/// Request counts, one row for each interval and operation, in that order. Every process locks the
/// rows in the same order, so that two of them cannot deadlock.
#[derive(Default)]
pub(crate) struct ActivityColumns {
    at: Vec<i64>,
    operations: Vec<Box<str>>,
    decisions: [Vec<i64>; 8],
}

impl ActivityColumns {
    pub(crate) fn sums(activity: Vec<Activity>) -> Self {
        let mut sums = BTreeMap::<_, DecisionCounts>::new();
        for line in activity {
            if can_be_stored(&line.operation) {
                let sum = sums.entry((line.at, line.operation)).or_default();
                sum.add(&line.decisions);
            }
        }
        let mut columns = Self::default();
        for ((at, operation), decisions) in sums {
            columns.at.push(at.as_micros());
            columns.operations.push(operation);
            for (column, count) in columns.decisions.iter_mut().zip(decisions.counts()) {
                column.push(encode_count(count));
            }
        }
        columns
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    pub(crate) fn parameters(&self) -> [&(dyn ToSql + Sync); 10] {
        let [
            created,
            replayed,
            in_progress,
            misuse,
            retried,
            unknown,
            expired,
            failed,
        ] = &self.decisions;
        [
            &self.at,
            &self.operations,
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
}

/// Misuse, one row for each tenant and operation, in that order.
#[derive(Default)]
pub(crate) struct MisuseColumns {
    tenants: Vec<Box<str>>,
    operations: Vec<Box<str>>,
    counts: Vec<i64>,
    first_at: Vec<i64>,
    last_at: Vec<i64>,
    last_ids: Vec<Uuid>,
}

impl MisuseColumns {
    pub(crate) fn sums(misuses: Vec<Misuse>) -> Self {
        let mut sums = BTreeMap::<_, Misuse>::new();
        for misuse in misuses {
            if can_be_stored(&misuse.tenant) && can_be_stored(&misuse.operation) {
                sums.entry((misuse.tenant.clone(), misuse.operation.clone()))
                    .and_modify(|sum| sum.add(&misuse))
                    .or_insert(misuse);
            }
        }
        let mut columns = Self::default();
        for misuse in sums.into_values() {
            columns.tenants.push(misuse.tenant);
            columns.operations.push(misuse.operation);
            columns.counts.push(encode_count(misuse.count));
            columns.first_at.push(misuse.first_at.as_micros());
            columns.last_at.push(misuse.last_at.as_micros());
            columns.last_ids.push(uuid(misuse.last_id));
        }
        columns
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    pub(crate) fn parameters(&self) -> [&(dyn ToSql + Sync); 6] {
        [
            &self.tenants,
            &self.operations,
            &self.counts,
            &self.first_at,
            &self.last_at,
            &self.last_ids,
        ]
    }
}

/// Record counts, in their own order.
pub(crate) struct RecordCountColumns<'c> {
    pub(crate) operations: Vec<&'c str>,
    pub(crate) statuses: Vec<&'static str>,
    pub(crate) counts: Vec<i64>,
}

impl<'c> From<&'c RecordCounts> for RecordCountColumns<'c> {
    fn from(counts: &'c RecordCounts) -> Self {
        let lines = || counts.counts.iter();
        Self {
            operations: lines().map(|line| &*line.operation).collect(),
            statuses: lines().map(|line| line.status.as_str()).collect(),
            counts: lines().map(|line| encode_count(line.count)).collect(),
        }
    }
}

/// PostgreSQL cannot store a NUL in a text, so no record has such a name either. One row that it
/// refuses would fail the whole statement.
pub(crate) fn can_be_stored(name: &str) -> bool {
    !name.contains('\0')
}

/// PostgreSQL has no unsigned integers. Saturates.
fn encode_count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
