//! Looking without touching.

use semel_core::history::Entry;
use semel_core::identity::IdentityHash;
use semel_core::store::{Page, Query, Standing};
use semel_core::{Identity, Key, OperationId, Record, Status};
use uuid::Uuid;

use crate::connection::Session;
use crate::errand::Command;
use crate::error::Failure;
use crate::row::{self, uuid};
use crate::time::Time;

/// The record of a name.
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

/// The newest record of what created a resource.
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

/// What happened besides an ordinary execution.
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

/// How many are under way or unresolved.
pub(crate) struct Standings;

impl Command for Standings {
    type Answer = Vec<Standing>;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Self::Answer, Failure> {
        let rows = session.client.query(&session.sql.standing, &[]).await?;
        let standings: Result<Vec<_>, _> = rows.iter().map(row::standing).collect();
        let mut standings = standings?;
        // Here, by bytes: the database sorts by whatever language it was set up for.
        standings.sort_unstable_by(|one, other| one.operation.cmp(&other.operation));
        Ok(standings)
    }
}

/// A page of operations.
pub(crate) struct List(pub(crate) Query);

impl Command for List {
    type Answer = Page;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Page, Failure> {
        let Self(query) = self;
        let size = query.page_size();
        let only_unknowns =
            query.status == Some(Status::Unknown) || query.dead_lettered == Some(true);
        let statement = if only_unknowns {
            &session.sql.list_unknown
        } else {
            &session.sql.list
        };
        let rows = session
            .client
            .query(
                statement,
                &[
                    &query.before.map(uuid),
                    &query.status.map(Status::as_str),
                    &query.tenant.as_deref(),
                    &query.operation.as_deref(),
                    &query.key.as_ref().map(Key::as_str),
                    &query.dead_lettered,
                    // One more than fits tells whether there is a next page.
                    &i64::try_from(size).unwrap_or(i64::MAX).saturating_add(1),
                ],
            )
            .await?;
        let operations = rows.iter().map(row::summary).collect::<Result<_, _>>()?;
        Ok(Page::of(operations, size))
    }
}
