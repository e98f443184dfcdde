//! What processes publish about their routes, and the records that a retry can still meet.

use semel_core::contract::{Contracts, OperationMatch, Published, RecordFilter, RecordsInUse};
use tokio_postgres::types::ToSql;

use crate::command::Command;
use crate::connection::Session;
use crate::error::Failure;
use crate::row;
use crate::time::Time;

/// What is published.
pub(crate) struct ReadContracts;

impl Command for ReadContracts {
    type Answer = Published;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Published, Failure> {
        let row = session.client.query_one(&session.sql.contracts, &[]);
        row::published(&row.await?)
    }
}

/// Replaces what is published, if its revision is still the given one.
pub(crate) struct PublishContracts(pub(crate) u64, pub(crate) Contracts);

impl Command for PublishContracts {
    type Answer = bool;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<bool, Failure> {
        let Self(revision, contracts) = self;
        let revision = i64::try_from(*revision).unwrap_or(i64::MAX);
        let parameters: [&(dyn ToSql + Sync); 2] = [&revision, &contracts.to_text()];
        let replaced = session
            .client
            .execute(&session.sql.publish_contracts, &parameters);
        Ok(replaced.await? == 1)
    }
}

/// Counts the records that a retry can still meet.
pub(crate) struct CountRecords(pub(crate) RecordFilter);

impl Command for CountRecords {
    type Answer = RecordsInUse;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<RecordsInUse, Failure> {
        let RecordFilter { operations, rules } = &self.0;
        let (is_prefix, name) = match operations {
            OperationMatch::Exact(name) => (false, name),
            OperationMatch::Prefix(prefix) => (true, prefix),
        };
        let rules = rules.map(|rules| rules.0);
        let parameters: [&(dyn ToSql + Sync); 4] = [&time.given(), &&**name, &is_prefix, &rules];
        let row = session
            .client
            .query_one(&session.sql.count_records, &parameters);
        row::records_in_use(&row.await?)
    }
}
