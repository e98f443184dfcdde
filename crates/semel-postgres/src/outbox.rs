//! The outbox: a relay publishes each event at least once.

use std::time::Duration;

use semel_core::outbox::{
    Backlog, DeadEvent, Event, EventId, MAX_BACKLOG_COUNTED, Waiting, cut_reason,
};
use semel_core::store::{MAX_BATCH, Result};
use semel_core::time::micros;
use semel_core::{Backoff, Error, Owner, Timestamp};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::Postgres;
use crate::command::Command;
use crate::connection::Session;
use crate::error::Failure;
use crate::maintenance::bounded;
use crate::row;
use crate::time::Time;

/// An event's id as a PostgreSQL value.
pub(crate) fn uuid(id: EventId) -> Uuid {
    Uuid::from_bytes(*id.as_bytes())
}

/// Writes an event in a transaction of its own.
pub(crate) struct Publish(pub(crate) Event);

impl Command for Publish {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(
        &self,
        session: &mut Session,
        time: &Time,
    ) -> std::result::Result<(), Failure> {
        let Self(event) = self;
        let parameters: [&(dyn ToSql + Sync); 5] = [
            &time.given(),
            &uuid(event.id),
            &&*event.kind,
            &&*event.aggregate,
            &&event.payload[..],
        ];
        session
            .client
            .execute(&session.sql.publish_event, &parameters)
            .await?;
        Ok(())
    }
}

impl Postgres {
    /// Writes an event in a transaction of its own, such as a heartbeat. An event about rows belongs in
    /// their transaction: use [`Outbox::publish`](crate::Outbox::publish).
    ///
    /// # Errors
    /// As in [`store`](semel_core::store), also for an [invalid](Event::check) event. The call may be
    /// repeated: writing an event again while it waits has no effect.
    ///
    /// # Cancellation
    /// Dropping the future may leave the event written.
    pub async fn publish(&self, event: Event) -> Result<()> {
        if let Err(invalid) = event.check() {
            return Err(Error::Unavailable {
                reason: "the event can never be published".into(),
                source: Some(invalid.into()),
            });
        }
        self.inner
            .send(&self.inner.command_queue, Publish(event))
            .await
    }
}

/// Hands waiting events to the one relay that holds the lease.
pub(crate) struct ClaimEvents {
    pub(crate) relay: Owner,
    pub(crate) lease: Duration,
    pub(crate) limit: usize,
}

impl Command for ClaimEvents {
    type Answer = Vec<Waiting>;
    const WRITES: bool = true;

    async fn perform(
        &self,
        session: &mut Session,
        time: &Time,
    ) -> std::result::Result<Vec<Waiting>, Failure> {
        let Session { client, sql, .. } = session;
        let transaction = client.transaction().await?;
        let lease: [&(dyn ToSql + Sync); 3] =
            [&time.given(), &self.relay.as_str(), &micros(self.lease)];
        let Some(lease) = transaction
            .query_opt(&sql.acquire_relay_lease, &lease)
            .await?
        else {
            return Ok(Vec::new());
        };
        let now: i64 = lease.try_get(0)?;
        // A separate statement: it sees what was committed while the first one waited for the lease.
        let rows = transaction
            .query(&sql.claim_events, &[&now, &bounded(self.limit)])
            .await?;
        transaction.commit().await?;
        rows.iter().map(row::waiting).collect()
    }
}

/// Deletes events that the broker confirmed.
pub(crate) struct MarkSent(Vec<Uuid>);

impl MarkSent {
    pub(crate) fn new(events: Vec<EventId>) -> Self {
        let mut ids: Vec<Uuid> = events.into_iter().map(uuid).collect();
        // Every statement locks in this order.
        ids.sort_unstable();
        Self(ids)
    }
}

impl Command for MarkSent {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> std::result::Result<(), Failure> {
        for chunk in self.0.chunks(MAX_BATCH) {
            session
                .client
                .execute(&session.sql.mark_sent, &[&chunk])
                .await?;
        }
        Ok(())
    }
}

/// Holds back the aggregate of an event that the broker refused.
pub(crate) struct HoldBack {
    pub(crate) event: EventId,
    pub(crate) reason: Box<str>,
    pub(crate) backoff: Backoff,
}

impl Command for HoldBack {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(
        &self,
        session: &mut Session,
        time: &Time,
    ) -> std::result::Result<(), Failure> {
        let Session { client, sql, .. } = session;
        let transaction = client.transaction().await?;
        let now = time.ask(&transaction, &sql.now).await?;
        let event = uuid(self.event);
        let Some(held) = transaction.query_opt(&sql.hold_back, &[&event]).await? else {
            return Ok(());
        };
        let (aggregate, tries) = row::held(&held)?;
        let delay = self.backoff.spread(self.event.seed(), tries);
        let until = Timestamp::from_micros(now).saturating_add(delay);
        let parameters: [&(dyn ToSql + Sync); 3] = [&aggregate, &until.as_micros(), &&*self.reason];
        transaction
            .execute(&sql.hold_aggregate, &parameters)
            .await?;
        transaction.commit().await?;
        Ok(())
    }
}

/// Dead-letters an event that the broker does not accept.
pub(crate) struct DeadLetterEvent(pub(crate) EventId, pub(crate) Box<str>);

impl Command for DeadLetterEvent {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(
        &self,
        session: &mut Session,
        time: &Time,
    ) -> std::result::Result<(), Failure> {
        let Self(event, reason) = self;
        let parameters: [&(dyn ToSql + Sync); 3] = [&time.given(), &uuid(*event), &&**reason];
        session
            .client
            .execute(&session.sql.dead_letter_event, &parameters)
            .await?;
        Ok(())
    }
}

/// The dead-lettered events, oldest first.
pub(crate) struct DeadEvents(pub(crate) usize);

impl Command for DeadEvents {
    type Answer = Vec<DeadEvent>;
    const WRITES: bool = false;

    async fn perform(
        &self,
        session: &mut Session,
        _: &Time,
    ) -> std::result::Result<Vec<DeadEvent>, Failure> {
        let rows = session
            .client
            .query(&session.sql.dead_events, &[&bounded(self.0)])
            .await?;
        rows.iter().map(row::dead_event).collect()
    }
}

/// Returns a dead-lettered event to the queue.
pub(crate) struct Revive(pub(crate) EventId);

impl Command for Revive {
    type Answer = bool;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> std::result::Result<bool, Failure> {
        let revived = session
            .client
            .query_opt(&session.sql.revive, &[&uuid(self.0)])
            .await?;
        Ok(revived.is_some())
    }
}

/// Counts the waiting and the dead-lettered events.
pub(crate) struct OutboxBacklog;

impl Command for OutboxBacklog {
    type Answer = Backlog;
    const WRITES: bool = false;

    async fn perform(
        &self,
        session: &mut Session,
        _: &Time,
    ) -> std::result::Result<Backlog, Failure> {
        let most = i64::try_from(MAX_BACKLOG_COUNTED).unwrap_or(i64::MAX);
        let row = session
            .client
            .query_one(&session.sql.backlog, &[&most])
            .await?;
        row::backlog(&row)
    }
}

/// Ends the lease of a relay that stops.
pub(crate) struct ReleaseRelay(pub(crate) Owner);

impl Command for ReleaseRelay {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> std::result::Result<(), Failure> {
        session
            .client
            .execute(&session.sql.release_relay_lease, &[&self.0.as_str()])
            .await?;
        Ok(())
    }
}

/// Cuts a reason to the length that is stored. Replaces NUL, which PostgreSQL cannot store and a
/// broker may send: the event must be dead-lettered anyway.
pub(crate) fn storable_reason(reason: &str) -> Box<str> {
    cut_reason(reason).replace('\0', " ").into()
}
