//! Figures as columns, since a statement takes many lines at once.

use std::collections::BTreeMap;

use semel_core::figures::{Activity, Census, Misuse, Told};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::row::uuid;

/// Lines of activity, one for each stretch and command, in that order: everybody adds in the same
/// order, so that nobody waits crosswise.
#[derive(Default)]
pub(super) struct ActivityColumns {
    at: Vec<i64>,
    operations: Vec<Box<str>>,
    told: [Vec<i64>; 8],
}

impl ActivityColumns {
    pub(super) fn sums(activity: Vec<Activity>) -> Self {
        let mut sums = BTreeMap::<_, Told>::new();
        for line in activity {
            if can_be_kept(&line.operation) {
                let sum = sums.entry((line.at, line.operation)).or_default();
                sum.add(&line.told);
            }
        }
        let mut columns = Self::default();
        for ((at, operation), told) in sums {
            columns.at.push(at.as_micros());
            columns.operations.push(operation);
            for (column, count) in columns.told.iter_mut().zip(told.counts()) {
                column.push(signed(count));
            }
        }
        columns
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 10] {
        let [
            created,
            replayed,
            in_progress,
            misuse,
            retried,
            unknown,
            expired,
            failed,
        ] = &self.told;
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

/// Misuse, one line for each tenant and command, in that order.
#[derive(Default)]
pub(super) struct MisuseColumns {
    tenants: Vec<Box<str>>,
    operations: Vec<Box<str>>,
    counts: Vec<i64>,
    first_at: Vec<i64>,
    last_at: Vec<i64>,
    last_ids: Vec<Uuid>,
}

impl MisuseColumns {
    pub(super) fn sums(misuses: Vec<Misuse>) -> Self {
        let mut sums = BTreeMap::<_, Misuse>::new();
        for misuse in misuses {
            if can_be_kept(&misuse.tenant) && can_be_kept(&misuse.operation) {
                sums.entry((misuse.tenant.clone(), misuse.operation.clone()))
                    .and_modify(|sum| sum.add(&misuse))
                    .or_insert(misuse);
            }
        }
        let mut columns = Self::default();
        for misuse in sums.into_values() {
            columns.tenants.push(misuse.tenant);
            columns.operations.push(misuse.operation);
            columns.counts.push(signed(misuse.count));
            columns.first_at.push(misuse.first_at.as_micros());
            columns.last_at.push(misuse.last_at.as_micros());
            columns.last_ids.push(uuid(misuse.last_id));
        }
        columns
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 6] {
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

/// The lines of a census, in its own order.
pub(super) struct CensusColumns<'c> {
    pub(super) operations: Vec<&'c str>,
    pub(super) statuses: Vec<&'static str>,
    pub(super) counts: Vec<i64>,
}

impl<'c> From<&'c Census> for CensusColumns<'c> {
    fn from(census: &'c Census) -> Self {
        let lines = || census.counts.iter();
        Self {
            operations: lines().map(|line| &*line.operation).collect(),
            statuses: lines().map(|line| line.status.as_str()).collect(),
            counts: lines().map(|line| signed(line.count)).collect(),
        }
    }
}

/// PostgreSQL has no text with a NUL in it, and so no operation of that name. One line that it
/// refuses would take all others with it.
pub(super) fn can_be_kept(name: &str) -> bool {
    !name.contains('\0')
}

/// PostgreSQL has no numbers without a sign.
fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
