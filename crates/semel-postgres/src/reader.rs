//! Lookups.

use semel_core::history::Entry;
use semel_core::identity::IdentityHash;
use semel_core::store::{Page, Query, UnfinishedCounts};
use semel_core::{Identity, Key, OperationId, Record, Status};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::command::Command;
use crate::connection::Session;
use crate::error::Failure;
use crate::row::{self, Listed, uuid};
use crate::time::Time;

/// The record with an id.
pub(crate) struct Find(pub(crate) OperationId);

impl Command for Find {
    type Answer = Option<Record>;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Self::Answer, Failure> {
        let ids = [uuid(self.0)];
        let row = session
            .client
            .query_opt(&session.sql.find, &[&&ids[..]])
            .await?;
        row.as_ref().map(row::record).transpose()
    }
}

/// The record of an identity.
pub(crate) struct FindIdentity(pub(crate) IdentityHash, pub(crate) Identity);

impl Command for FindIdentity {
    type Answer = Option<Record>;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Self::Answer, Failure> {
        let hash = Uuid::from_bytes(self.0.0);
        let row = session
            .client
            .query_opt(&session.sql.find_identity, &[&hash])
            .await?;
        let record = row.as_ref().map(row::record).transpose()?;
        match &record {
            Some(found) if !found.identity.names_same_record(&self.1) => {
                Err(Failure::Corrupt("two identities have one hash".into()))
            }
            Some(_) | None => Ok(record),
        }
    }
}

/// The newest record that created a resource.
pub(crate) struct FindResource(pub(crate) Box<str>);

impl Command for FindResource {
    type Answer = Option<Record>;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Self::Answer, Failure> {
        let row = session
            .client
            .query_opt(&session.sql.find_resource, &[&&*self.0])
            .await?;
        row.as_ref().map(row::record).transpose()
    }
}

/// The history of a record.
pub(crate) struct History(pub(crate) OperationId);

impl Command for History {
    type Answer = Vec<Entry>;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Self::Answer, Failure> {
        let rows = session
            .client
            .query(&session.sql.history, &[&uuid(self.0)])
            .await?;
        rows.iter().map(row::entry).collect()
    }
}

/// The number of records in progress and unknown, by operation.
pub(crate) struct CountUnfinished;

impl Command for CountUnfinished {
    type Answer = Vec<UnfinishedCounts>;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Self::Answer, Failure> {
        let rows = session
            .client
            .query(&session.sql.count_unfinished, &[])
            .await?;
        let counts: Result<Vec<_>, _> = rows.iter().map(row::unfinished_counts).collect();
        let mut counts = counts?;
        // Sorted here by bytes: the database would use its own collation.
        counts.sort_unstable_by(|one, other| one.operation.cmp(&other.operation));
        Ok(counts)
    }
}

/// A page of records.
pub(crate) struct List(pub(crate) Query);

impl Command for List {
    type Answer = Page;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Page, Failure> {
        let Self(query) = self;
        let (client, sql) = (&session.client, &session.sql);
        // From the largest possible id, or from the smallest.
        let end = if query.is_ascending() {
            Uuid::nil()
        } else {
            Uuid::max()
        };
        let before = query.before.map_or(end, uuid);
        let status = query.status.map(Status::as_str);
        let (tenant, operation) = (query.tenant.as_deref(), query.operation.as_deref());
        let key = query.key.as_ref().map(Key::as_str);
        let dead_lettered = query.dead_lettered;
        let size = query.page_size();
        // One more than fits shows whether there is a next page.
        let most = i64::try_from(size).unwrap_or(i64::MAX).saturating_add(1);
        let rows = if query.is_unknown_only() {
            let parameters: [&(dyn ToSql + Sync); 7] = [
                &before,
                &status,
                &tenant,
                &operation,
                &key,
                &dead_lettered,
                &most,
            ];
            let list = if query.is_ascending() {
                &sql.list_unknown_oldest
            } else {
                &sql.list_unknown
            };
            client.query(list, &parameters).await?
        } else if query.status == Some(Status::InProgress) {
            let parameters: [&(dyn ToSql + Sync); 5] = [&before, &tenant, &operation, &key, &most];
            client.query(&sql.list_in_progress, &parameters).await?
        } else {
            let walk = i64::try_from(query.walk_length()).unwrap_or(i64::MAX);
            let parameters: [&(dyn ToSql + Sync); 8] = [
                &before,
                &status,
                &tenant,
                &operation,
                &key,
                &dead_lettered,
                &most,
                &walk,
            ];
            client.query(&sql.list, &parameters).await?
        };
        let mut operations = Vec::with_capacity(rows.len());
        let mut floor = None;
        for row in &rows {
            match row::listed(row)? {
                Listed::Operation(summary) => operations.push(summary),
                Listed::Floor(id) => floor = Some(id),
            }
        }
        Ok(Page::of(operations, size, floor))
    }
}
