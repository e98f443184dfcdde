//! Looking without touching.

use semel_core::identity::IdentityHash;
use semel_core::store::{Page, Query};
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

/// A page of operations.
pub(crate) struct List(pub(crate) Query);

impl Command for List {
    type Answer = Page;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Page, Failure> {
        let Self(query) = self;
        let size = query.page_size();
        let rows = session
            .client
            .query(
                &session.sql.list,
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
