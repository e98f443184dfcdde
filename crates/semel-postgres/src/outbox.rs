//! Events that go out: the relay's side.

use std::time::Duration;

use semel_core::outbox::{
    Backlog, DeadEvent, Event, EventId, MAX_BACKLOG_COUNTED, Outbox, Waiting, cut_reason,
};
use semel_core::store::{MAX_BATCH, Result};
use semel_core::time::micros;
use semel_core::{Backoff, Error, Owner, Timestamp};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::Postgres;
use crate::connection::Session;
use crate::errand::Command;
use crate::error::Failure;
use crate::maintenance::bounded;
use crate::row;
use crate::time::Time;

/// An event's name as PostgreSQL has it.
pub(crate) fn uuid(id: EventId) -> Uuid {
    Uuid::from_bytes(*id.as_bytes())
}

/// An event by itself.
struct Publish(Event);

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
            .execute(&session.sql.publish_alone, &parameters)
            .await?;
        Ok(())
    }
}

impl Postgres {
    /// Writes an event that tells of nothing else that is written, such as a heartbeat, in a
    /// transaction of its own. Whatever tells of rows belongs into their transaction:
    /// [`Outbox::publish`](crate::Outbox::publish).
    ///
    /// # Errors
    /// As in [`store`](semel_core::store), also for an [invalid](Event::check) event. The call may be
    /// made again: while the event waits it is there once.
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
        self.inner.send(&self.inner.errands, Publish(event)).await
    }
}

/// One relay wants to publish.
struct ClaimEvents {
    relay: Owner,
    lease: Duration,
    limit: usize,
}

impl Command for ClaimEvents {
    type Answer = Vec<Waiting>;
    const WRITES: bool = true;

    async fn perform(
        &self,
        session: &mut Session,
        time: &Time,
    ) -> std::result::Result<Vec<Waiting>, Failure> {
        let Session { client, sql } = session;
        let transaction = client.transaction().await?;
        let turn: [&(dyn ToSql + Sync); 3] =
            [&time.given(), &self.relay.as_str(), &micros(self.lease)];
        let Some(turn) = transaction.query_opt(&sql.relay, &turn).await? else {
            return Ok(Vec::new());
        };
        let now: i64 = turn.try_get(0)?;
        // A statement of its own: it sees what was committed while the turn was waited for.
        let rows = transaction
            .query(&sql.claim_events, &[&now, &bounded(self.limit)])
            .await?;
        transaction.commit().await?;
        rows.iter().map(row::waiting).collect()
    }
}

/// The broker has them.
struct MarkSent(Vec<Uuid>);

impl Command for MarkSent {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> std::result::Result<(), Failure> {
        for some in self.0.chunks(MAX_BATCH) {
            session
                .client
                .execute(&session.sql.mark_sent, &[&some])
                .await?;
        }
        Ok(())
    }
}

/// The broker refused one.
struct HoldBack {
    event: EventId,
    reason: Box<str>,
    backoff: Backoff,
}

impl Command for HoldBack {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(
        &self,
        session: &mut Session,
        time: &Time,
    ) -> std::result::Result<(), Failure> {
        let Session { client, sql } = session;
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
        transaction.execute(&sql.hold_until, &parameters).await?;
        transaction.commit().await?;
        Ok(())
    }
}

/// Nobody takes one.
struct SetAside(EventId, Box<str>);

impl Command for SetAside {
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
            .execute(&session.sql.set_aside, &parameters)
            .await?;
        Ok(())
    }
}

/// Somebody looks at what nobody took.
struct DeadEvents(usize);

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

/// A person wants one to be tried again.
struct Revive(EventId);

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

/// How it stands.
struct Standing;

impl Command for Standing {
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

/// A relay stops.
struct StandDown(Owner);

impl Command for StandDown {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> std::result::Result<(), Failure> {
        session
            .client
            .execute(&session.sql.stand_down, &[&self.0.as_str()])
            .await?;
        Ok(())
    }
}

/// As much of a reason as is kept. A broker may say what no text in PostgreSQL can hold, and the
/// event must be set aside all the same.
fn kept(reason: &str) -> Box<str> {
    cut_reason(reason).replace('\0', " ").into()
}

impl Outbox for Postgres {
    async fn claim_events(
        &self,
        relay: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Waiting>> {
        let claim = ClaimEvents {
            relay,
            lease,
            limit,
        };
        self.inner.send(&self.inner.chores, claim).await
    }

    async fn mark_sent(&self, events: Vec<EventId>) -> Result<()> {
        let mut ids: Vec<Uuid> = events.into_iter().map(uuid).collect();
        // In the order in which every statement takes its locks.
        ids.sort_unstable();
        self.inner.send(&self.inner.chores, MarkSent(ids)).await
    }

    async fn hold_back(&self, event: EventId, reason: &str, backoff: Backoff) -> Result<()> {
        let hold = HoldBack {
            event,
            reason: kept(reason),
            backoff,
        };
        self.inner.send(&self.inner.errands, hold).await
    }

    async fn set_aside(&self, event: EventId, reason: &str) -> Result<()> {
        let aside = SetAside(event, kept(reason));
        self.inner.send(&self.inner.errands, aside).await
    }

    async fn dead_events(&self, limit: usize) -> Result<Vec<DeadEvent>> {
        let dead = DeadEvents(limit);
        self.inner.send(&self.inner.chores, dead).await
    }

    async fn revive(&self, event: EventId) -> Result<bool> {
        self.inner.send(&self.inner.errands, Revive(event)).await
    }

    async fn backlog(&self) -> Result<Backlog> {
        self.inner.send(&self.inner.chores, Standing).await
    }

    async fn stand_down(&self, relay: Owner) -> Result<()> {
        self.inner.send(&self.inner.errands, StandDown(relay)).await
    }
}
