//! Statistics for the console, in small tables of their own.

mod columns;
mod keys;

use std::time::Duration;

use semel_core::statistics::{
    Activity, Caller, MAX_CALLERS, MAX_MISUSES, Misuse, RecordCounts, RecordScan,
};
use semel_core::store::MAX_WALK;
use semel_core::time::micros;
use semel_core::{OperationId, Owner, Timestamp};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::command::Command;
use crate::connection::Session;
use crate::error::Failure;
use crate::maintenance::bounded;
use crate::row::statistics::{self as row, ScannedBatch};
use crate::row::uuid;
use crate::time::Time;
use columns::RecordCountColumns;
pub(crate) use columns::{ActivityColumns, MisuseColumns};
pub(crate) use keys::FindKey;

/// Adds the counts of one process, in one transaction: after an error that the server returned, a
/// retry counts nothing twice.
pub(crate) struct AddCounts(pub(crate) ActivityColumns, pub(crate) MisuseColumns);

impl Command for AddCounts {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<(), Failure> {
        let Self(activity, misuses) = self;
        let Session { client, sql, .. } = session;
        let transaction = client.transaction().await?;
        if !activity.is_empty() {
            let parameters = activity.parameters();
            transaction
                .execute(&sql.count_activity, &parameters)
                .await?;
        }
        if !misuses.is_empty() {
            let parameters = misuses.parameters();
            transaction.execute(&sql.count_misuse, &parameters).await?;
            let most = i64::try_from(MAX_MISUSES).unwrap_or(i64::MAX);
            transaction.execute(&sql.trim_misuse, &[&most]).await?;
        }
        Ok(transaction.commit().await?)
    }
}

/// The request counts from a time on.
pub(crate) struct ActivitySince(pub(crate) Timestamp);

impl Command for ActivitySince {
    type Answer = Vec<Activity>;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Vec<Activity>, Failure> {
        let rows = session
            .client
            .query(&session.sql.activity, &[&self.0.as_micros()])
            .await?;
        let lines: Result<Vec<_>, _> = rows.iter().map(row::activity).collect();
        let mut lines = lines?;
        // Sorted here by bytes: the database would use its own collation.
        lines.sort_unstable_by(|one, other| {
            (one.at, &one.operation).cmp(&(other.at, &other.operation))
        });
        Ok(lines)
    }
}

/// The latest misuse of keys.
pub(crate) struct LatestMisuses(pub(crate) usize);

impl Command for LatestMisuses {
    type Answer = Vec<Misuse>;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Vec<Misuse>, Failure> {
        let rows = session
            .client
            .query(&session.sql.misuses, &[&bounded(self.0)])
            .await?;
        rows.iter().map(row::misuse).collect()
    }
}

/// Counts a batch of records, by caller and status.
pub(crate) struct ScanRecords(pub(crate) Option<OperationId>, pub(crate) usize);

impl Command for ScanRecords {
    type Answer = RecordScan;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<RecordScan, Failure> {
        let Self(after, limit) = self;
        // Sorts before every id.
        let after = after.map_or(Uuid::nil(), uuid);
        let limit = i64::try_from((*limit).min(MAX_WALK)).unwrap_or(i64::MAX);
        let rows = session
            .client
            .query(&session.sql.scan_records, &[&after, &limit])
            .await?;
        let mut scan = RecordScan::default();
        for row in &rows {
            let ScannedBatch { count, next } = row::scanned(row)?;
            scan.counts.push(count);
            scan.next = next;
        }
        scan.counts.sort_unstable();
        Ok(scan)
    }
}

/// Adds callers that are not known yet. Returns whether there is room for more.
pub(crate) struct RecordCallers(Vec<Caller>);

impl RecordCallers {
    pub(crate) fn new(callers: Vec<Caller>) -> Self {
        Self(keys::deduplicate(callers))
    }
}

impl Command for RecordCallers {
    type Answer = bool;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<bool, Failure> {
        let Self(callers) = self;
        let Session { client, sql, .. } = session;
        let column = |of: fn(&Caller) -> &str| -> Vec<&str> { callers.iter().map(of).collect() };
        let transaction = client.transaction().await?;
        transaction.query(&sql.lock_callers, &[]).await?;
        let most = i64::try_from(MAX_CALLERS).unwrap_or(i64::MAX);
        let parameters: [&(dyn ToSql + Sync); 4] = [
            &column(|caller| caller.scope.as_str()),
            &column(|caller| &caller.tenant),
            &column(|caller| &caller.operation),
            &most,
        ];
        transaction
            .execute(&sql.record_callers, &parameters)
            .await?;
        let known = transaction.query_one(&sql.count_callers, &[]).await?;
        let known: i64 = known.try_get(0)?;
        transaction.commit().await?;
        Ok(known < most)
    }
}

/// Acquires or renews the lease of the one process that scans the records.
pub(crate) struct AcquireScanLease(pub(crate) Owner, pub(crate) Duration);

impl Command for AcquireScanLease {
    type Answer = bool;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<bool, Failure> {
        let Self(owner, lease) = self;
        let parameters: [&(dyn ToSql + Sync); 3] =
            [&time.given(), &owner.as_str(), &micros(*lease)];
        let acquired = session
            .client
            .execute(&session.sql.acquire_scan_lease, &parameters)
            .await?;
        Ok(acquired > 0)
    }
}

/// Replaces the published record counts, unless newer ones are stored.
pub(crate) struct PublishRecordCounts(pub(crate) RecordCounts);

impl Command for PublishRecordCounts {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<(), Failure> {
        let Self(counts) = self;
        let columns = RecordCountColumns::from(counts);
        let parameters: [&(dyn ToSql + Sync); 6] = [
            &counts.began_at.as_micros(),
            &counts.ended_at.as_micros(),
            &counts.all_callers,
            &columns.operations,
            &columns.statuses,
            &columns.counts,
        ];
        session
            .client
            .execute(&session.sql.publish_record_counts, &parameters)
            .await?;
        Ok(())
    }
}

/// The latest record counts.
pub(crate) struct LatestRecordCounts;

impl Command for LatestRecordCounts {
    type Answer = Option<RecordCounts>;
    const WRITES: bool = false;

    async fn perform(
        &self,
        session: &mut Session,
        _: &Time,
    ) -> Result<Option<RecordCounts>, Failure> {
        let row = session
            .client
            .query_opt(&session.sql.record_counts, &[])
            .await?;
        row.as_ref().map(row::record_counts).transpose()
    }
}

/// Deletes statistics from before a time.
pub(crate) enum Forget {
    Activity(Timestamp, usize),
    Misuses(Timestamp, usize),
}

impl Command for Forget {
    type Answer = usize;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<usize, Failure> {
        let (statement, before, limit) = match self {
            Self::Activity(before, limit) => (&session.sql.forget_activity, before, limit),
            Self::Misuses(before, limit) => (&session.sql.forget_misuses, before, limit),
        };
        let parameters: [&(dyn ToSql + Sync); 2] = [&before.as_micros(), &bounded(*limit)];
        let deleted = session.client.query(statement, &parameters).await?;
        Ok(deleted.len())
    }
}
