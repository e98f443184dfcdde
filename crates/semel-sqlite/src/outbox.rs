//! Events that go out, at least once each.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use semel_core::outbox::{
    Backlog, DeadEvent, Event, EventId, MAX_BACKLOG_COUNTED, Waiting, cut_reason,
};
use semel_core::{Backoff, Owner, Timestamp, store};

use crate::Sqlite;
use crate::error::Failure;
use crate::inside::{Home, Own, Unwritten};
use crate::maintenance::bounded;
use crate::queries::Statements;
use crate::reader::Lookup;
use crate::writer::Command;

const PUBLISH: &str = include_str!("../queries/publish.sql");

/// What writes events among the application's own statements. See [`Sqlite::outbox`].
#[derive(Clone, Debug)]
pub struct Outbox {
    home: Home,
}

impl Sqlite {
    /// The outbox, for statements that [`transaction`](Self::transaction), [`work`](Self::work) or
    /// [`write`](Self::write) run.
    ///
    /// ```
    /// # fn demo(store: &semel_sqlite::Sqlite) -> Result<(), semel_core::outbox::Invalid> {
    /// use semel_core::outbox::Event;
    ///
    /// let outbox = store.outbox();
    /// let created = Event::new("payment.created", "payment/pay_789", r#"{"cents":1000}"#)?;
    /// let phase = store.work(move |connection| {
    ///     connection.execute("INSERT INTO payments (id) VALUES ('pay_789')", [])?;
    ///     outbox.publish(connection, &created)?;
    ///     Ok::<_, rusqlite::Error>(())
    /// });
    /// # drop(phase);
    /// # Ok(())
    /// # }
    /// ```
    pub fn outbox(&self) -> Outbox {
        let home = Home::of(self);
        Outbox { home }
    }
}

impl Outbox {
    /// Writes an event, to be committed with all else that the statements write, or with nothing.
    /// Where one of that name waits already, it is the same event.
    ///
    /// # Errors
    /// See [`Unwritten`]. Statements that go on after an error go on without the event.
    pub fn publish(&self, connection: &Connection, event: &Event) -> Result<(), Unwritten> {
        event.check()?;
        let place = self.home.place(connection)?;
        let row = params![
            event.id.as_bytes(),
            event.kind,
            event.aggregate,
            &event.payload[..],
            place.now.as_micros(),
        ];
        place.execute(Own::Event, PUBLISH, row)?;
        Ok(())
    }
}

/// Events are handed to the one relay.
struct ClaimEvents {
    relay: Owner,
    lease: Duration,
    limit: usize,
}

impl Command for ClaimEvents {
    type Answer = Vec<Waiting>;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Vec<Waiting>, Failure> {
        let until = now.saturating_add(self.lease);
        let relay = params![self.relay.as_str(), until.as_micros(), now.as_micros()];
        if sql.claim_relay.execute(relay)? == 0 {
            return Ok(Vec::new());
        }
        let mut rows = sql
            .claim_events
            .query([now.as_micros(), bounded(self.limit)])?;
        let mut waiting = Vec::new();
        while let Some(row) = rows.next()? {
            waiting.push(Waiting {
                event: event(row)?,
                written_at: Timestamp::from_micros(row.get(4)?),
                tries: row.get(5)?,
            });
        }
        Ok(waiting)
    }
}

/// The broker has them.
struct MarkSent(Vec<EventId>);

impl Command for MarkSent {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<(), Failure> {
        for id in &self.0 {
            let aggregate = sql
                .mark_sent
                .query_row([id.as_bytes()], |row| row.get::<_, Box<str>>(0))
                .optional()?;
            if let Some(aggregate) = aggregate {
                sql.let_go.execute([aggregate])?;
            }
        }
        Ok(())
    }
}

/// The broker refused it.
struct HoldBack(EventId, Box<str>, Backoff);

impl Command for HoldBack {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<(), Failure> {
        let Self(id, reason, backoff) = self;
        let refused = sql
            .refuse
            .query_row([id.as_bytes()], |row| {
                Ok((row.get::<_, Box<str>>(0)?, row.get(1)?))
            })
            .optional()?;
        let Some((aggregate, tries)) = refused else {
            return Ok(());
        };
        let until = now.saturating_add(backoff.spread(id.seed(), tries));
        sql.hold_back
            .execute(params![aggregate, until.as_micros(), reason])?;
        Ok(())
    }
}

/// Nobody will take it.
struct SetAside(EventId, Box<str>);

impl Command for SetAside {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<(), Failure> {
        let Self(id, reason) = self;
        let aggregate = sql
            .set_aside
            .query_row(params![id.as_bytes(), now.as_micros(), reason], |row| {
                row.get::<_, Box<str>>(0)
            })
            .optional()?;
        if let Some(aggregate) = aggregate {
            sql.let_go.execute([aggregate])?;
        }
        Ok(())
    }
}

/// A person says that it is to be tried again.
struct Revive(EventId);

impl Command for Revive {
    type Answer = bool;

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<bool, Failure> {
        Ok(sql.revive.execute([self.0.as_bytes()])? == 1)
    }
}

/// A relay stops.
struct StandDown(Owner);

impl Command for StandDown {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<(), Failure> {
        sql.stand_down.execute([self.0.as_str()])?;
        Ok(())
    }
}

/// Events that wait for a person.
struct DeadEvents(usize);

impl Lookup for DeadEvents {
    type Answer = Vec<DeadEvent>;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Vec<DeadEvent>, Failure> {
        let mut rows = sql.dead_events.query([bounded(self.0)])?;
        let mut dead = Vec::new();
        while let Some(row) = rows.next()? {
            dead.push(DeadEvent {
                event: event(row)?,
                written_at: Timestamp::from_micros(row.get(4)?),
                dead_at: Timestamp::from_micros(row.get(5)?),
                reason: row.get(6)?,
            });
        }
        Ok(dead)
    }
}

/// How the outbox stands.
struct Stand;

impl Lookup for Stand {
    type Answer = Backlog;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Backlog, Failure> {
        let most = i64::try_from(MAX_BACKLOG_COUNTED).unwrap_or(i64::MAX);
        let count = |count: i64| u64::try_from(count).unwrap_or_default();
        Ok(sql.backlog.query_row([most], |row| {
            Ok(Backlog {
                waiting: count(row.get(0)?),
                oldest: row.get::<_, Option<i64>>(1)?.map(Timestamp::from_micros),
                dead: count(row.get(2)?),
            })
        })?)
    }
}

/// A row that begins with an event.
fn event(row: &Row<'_>) -> rusqlite::Result<Event> {
    Ok(Event {
        id: EventId::from_bytes(row.get(0)?),
        kind: row.get(1)?,
        aggregate: row.get(2)?,
        payload: Bytes::from(row.get::<_, Vec<u8>>(3)?),
    })
}

impl semel_core::Outbox for Sqlite {
    async fn claim_events(
        &self,
        relay: Owner,
        lease: Duration,
        limit: usize,
    ) -> store::Result<Vec<Waiting>> {
        let claim = ClaimEvents {
            relay,
            lease,
            limit,
        };
        self.inner.write(claim).await
    }

    async fn mark_sent(&self, events: Vec<EventId>) -> store::Result<()> {
        self.inner.write(MarkSent(events)).await
    }

    async fn hold_back(&self, event: EventId, reason: &str, backoff: Backoff) -> store::Result<()> {
        let reason = cut_reason(reason).into();
        self.inner.write(HoldBack(event, reason, backoff)).await
    }

    async fn set_aside(&self, event: EventId, reason: &str) -> store::Result<()> {
        let reason = cut_reason(reason).into();
        self.inner.write(SetAside(event, reason)).await
    }

    async fn dead_events(&self, limit: usize) -> store::Result<Vec<DeadEvent>> {
        self.inner.look(&self.inner.lists, DeadEvents(limit)).await
    }

    async fn revive(&self, event: EventId) -> store::Result<bool> {
        self.inner.write(Revive(event)).await
    }

    async fn backlog(&self) -> store::Result<Backlog> {
        self.inner.look(&self.inner.lists, Stand).await
    }

    async fn stand_down(&self, relay: Owner) -> store::Result<()> {
        self.inner.write(StandDown(relay)).await
    }
}
