//! Background work on what is due.

use std::sync::Arc;

use semel_core::store::{MAX_BATCH, MAX_WALK, OperationFilter, Result};
use semel_core::transition::Answer;
use semel_core::{Actor, Backoff, Event, Fence, OperationId, Owner, Record, State, Timestamp};

use crate::index::{IndexEntry, WalkRange};
use crate::item::Row;
use crate::keys::Class;
use crate::records::KnownRecord;
use crate::store::{Inner, all};

impl Inner {
    pub(crate) async fn sweep(&self, limit: usize) -> Result<Vec<Fence>> {
        let due = |record: &Record| match &record.state {
            State::InProgress(lease) => Some(lease.sweep_at()),
            State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => None,
        };
        let swept = self
            .apply_due(Class::Lease, limit, &Event::Sweep, due)
            .await?;
        Ok(swept.iter().flatten().map(Record::fence).collect())
    }

    pub(crate) async fn claim_abandoned(
        &self,
        operation: Box<str>,
        owner: Owner,
        lease: std::time::Duration,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let due = |record: &Record| match &record.state {
            State::InProgress(lease) if *record.identity.operation() == *operation => {
                lease.resume_at()
            }
            State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => None,
        };
        let class = Class::Resume(operation.clone());
        let event = Event::ClaimAbandoned(owner, lease.saturating_add(self.margin));
        let claimed = self.apply_due(class, limit, &event, due).await?;
        let mut claimed: Vec<Record> = claimed.into_iter().flatten().collect();
        for record in &mut claimed {
            if let State::InProgress(lease) = &mut record.state {
                lease.locked_until = lease.locked_until.saturating_sub(self.margin);
            }
        }
        let mut confirmed = Ok(());
        for record in &claimed {
            confirmed = confirmed.and(self.confirm_grant(record.fence(), true).await);
        }
        confirmed.map(|()| claimed)
    }

    pub(crate) async fn claim_due(
        &self,
        filter: OperationFilter,
        backoff: Backoff,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let due = |record: &Record| match &record.state {
            State::Unknown(unresolved) if filter.admits(record.identity.operation()) => {
                Some(unresolved.reconcile_after)
            }
            State::Unknown(_)
            | State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Expired { .. } => None,
        };
        let event = Event::ClaimDue(backoff);
        let claimed = self.apply_due(Class::Unknown, limit, &event, due).await?;
        Ok(claimed.into_iter().flatten().collect())
    }

    pub(crate) async fn expire(&self, limit: usize) -> Result<usize> {
        let due = |record: &Record| match &record.state {
            State::Completed(completed) => Some(completed.expires_at),
            State::FailedRetryable { expires_at } => Some(*expires_at),
            State::InProgress(_) | State::Unknown(_) | State::Expired { .. } => None,
        };
        let expired = self.apply_due(Class::Expiry, limit, &Event::Expire, due);
        Ok(expired.await?.len())
    }

    pub(crate) async fn drop_bodies(&self, limit: usize) -> Result<usize> {
        let due = |record: &Record| match &record.state {
            State::Completed(completed) => completed.body_expires_at,
            State::InProgress(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => None,
        };
        let dropped = self.apply_due(Class::Body, limit, &Event::DropBody, due);
        Ok(dropped.await?.len())
    }

    pub(crate) async fn purge(&self, limit: usize) -> Result<usize> {
        let due = |record: &Record| match &record.state {
            State::Expired { purge_at } => Some(*purge_at),
            State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_) => None,
        };
        let purged = self.apply_due(Class::Tombstone, limit, &Event::Purge, due);
        Ok(purged.await?.len())
    }

    /// Removes what could name a person, and has all processes drop their copies.
    pub(crate) async fn erase(&self, id: OperationId, by: Actor) -> Result<bool> {
        let answer = self.write_id(id, Event::Erase(by)).await;
        // After an error it may be erased, and then the copies must go as well.
        if !matches!(answer, Ok(Answer::Applied(false))) {
            self.count_erasure().await?;
        }
        Ok(matches!(answer?, Answer::Applied(true)))
    }

    /// Applies an event to up to `limit` records for which it is due, longest due first. Returns
    /// what is left of them.
    async fn apply_due(
        &self,
        class: Class,
        limit: usize,
        event: &Event,
        due: impl Fn(&Record) -> Option<Timestamp>,
    ) -> Result<Vec<Option<Record>>> {
        let limit = limit.min(MAX_BATCH);
        let mut changed = Vec::new();
        let mut walk = self.walk(WalkRange::Due(class, self.now()), limit);
        let mut looked_at = 0;
        while changed.len() < limit && looked_at < MAX_WALK {
            let hits = walk.next(limit - changed.len()).await?;
            if hits.is_empty() {
                break;
            }
            looked_at += hits.len();
            changed.extend(self.apply_hits(&hits, event, &due).await?);
        }
        Ok(changed)
    }

    /// Applies an event to the records that entries of an index name, if it is due for them.
    pub(crate) async fn apply_hits(
        &self,
        hits: &[IndexEntry],
        event: &Event,
        due: impl Fn(&Record) -> Option<Timestamp>,
    ) -> Result<Vec<Option<Record>>> {
        let mut rows = self.read_hits(hits).await?;
        // The index may be behind: what is not due, or due at another time, shows here.
        rows.retain(|row| due(&row.record).is_some());
        rows.sort_by_key(|row| (due(&row.record), row.record.id));
        let changes = rows.into_iter().map(|row| self.apply_to(row, event));
        let found = all(changes.collect()).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Applies an event to a record that was read. `None` if it does not apply any more.
    #[allow(clippy::option_option, reason = "a record may be gone afterwards")]
    async fn apply_to(&self, row: Row, event: &Event) -> Result<Option<Option<Record>>> {
        let partition: Arc<str> = self.partition(&row.record.identity);
        let id = row.record.id;
        let changed = self
            .change(&partition, Some(id), event, KnownRecord::Read(Some(row)))
            .await?;
        Ok(matches!(changed.answer, Answer::Applied(true)).then_some(changed.record))
    }

    /// The records of entries, as they are now.
    async fn read_hits(&self, hits: &[IndexEntry]) -> Result<Vec<Row>> {
        let keys: Vec<_> = hits.iter().map(|hit| hit.key.clone()).collect();
        let items = self.read_all(&keys, None).await?;
        let rows: Vec<Row> = items
            .into_iter()
            .map(Row::from_item)
            .collect::<Result<_>>()?;
        Ok(rows)
    }
}
