//! The outbox: a relay publishes each event at least once.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use semel_core::outbox::{Backlog, DeadEvent, Event, EventId, MAX_BACKLOG_COUNTED, Waiting};
use semel_core::{Backoff, Owner, Timestamp};

use crate::Sqlite;
use crate::error::Failure;
use crate::maintenance::bounded;
use crate::queries::Statements;
use crate::reader::Lookup;
use crate::sandbox::{OwnStatement, StoreIdentity, Unwritten};
use crate::writer::Command;

const PUBLISH: &str = include_str!("../queries/publish.sql");

/// Writes events among the application's statements. See [`Sqlite::outbox`].
#[derive(Clone, Debug)]
pub struct Outbox {
    store: StoreIdentity,
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
        let store = StoreIdentity::of(self);
        Outbox { store }
    }
}

impl Outbox {
    /// Writes an event, which commits with the other writes of the transaction. Writing it again while
    /// it waits has no effect.
    ///
    /// # Errors
    /// See [`Unwritten`]. Statements that continue after an error are committed without the event.
    pub fn publish(&self, connection: &Connection, event: &Event) -> Result<(), Unwritten> {
        event.check()?;
        let writer = self.store.writer(connection)?;
        let row = params![
            event.id.as_bytes(),
            event.kind,
            event.aggregate,
            &event.payload[..],
            writer.now.as_micros(),
        ];
        writer.execute(OwnStatement::Event, PUBLISH, row)?;
        Ok(())
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

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Vec<Waiting>, Failure> {
        let until = now.saturating_add(self.lease);
        let relay = params![self.relay.as_str(), until.as_micros(), now.as_micros()];
        if sql.acquire_relay_lease.execute(relay)? == 0 {
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

/// Deletes events that the broker confirmed.
pub(crate) struct MarkSent(pub(crate) Vec<EventId>);

impl Command for MarkSent {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<(), Failure> {
        for id in &self.0 {
            let aggregate = sql
                .mark_sent
                .query_row([id.as_bytes()], |row| row.get::<_, Box<str>>(0))
                .optional()?;
            if let Some(aggregate) = aggregate {
                sql.release_aggregate.execute([aggregate])?;
            }
        }
        Ok(())
    }
}

/// Holds back the aggregate of an event that the broker refused.
pub(crate) struct HoldBack(pub(crate) EventId, pub(crate) Box<str>, pub(crate) Backoff);

impl Command for HoldBack {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<(), Failure> {
        let Self(id, reason, backoff) = self;
        let refused = sql
            .count_refusal
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

/// Dead-letters an event that the broker does not accept.
pub(crate) struct DeadLetterEvent(pub(crate) EventId, pub(crate) Box<str>);

impl Command for DeadLetterEvent {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<(), Failure> {
        let Self(id, reason) = self;
        let aggregate = sql
            .dead_letter_event
            .query_row(params![id.as_bytes(), now.as_micros(), reason], |row| {
                row.get::<_, Box<str>>(0)
            })
            .optional()?;
        if let Some(aggregate) = aggregate {
            sql.release_aggregate.execute([aggregate])?;
        }
        Ok(())
    }
}

/// Returns a dead-lettered event to the queue.
pub(crate) struct Revive(pub(crate) EventId);

impl Command for Revive {
    type Answer = bool;

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<bool, Failure> {
        Ok(sql.revive.execute([self.0.as_bytes()])? == 1)
    }
}

/// Ends the lease of a relay that stops.
pub(crate) struct ReleaseRelay(pub(crate) Owner);

impl Command for ReleaseRelay {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<(), Failure> {
        sql.release_relay_lease.execute([self.0.as_str()])?;
        Ok(())
    }
}

/// The dead-lettered events, oldest first.
pub(crate) struct DeadEvents(pub(crate) usize);

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

/// Counts the waiting and the dead-lettered events.
pub(crate) struct OutboxBacklog;

impl Lookup for OutboxBacklog {
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

/// Reads an event from the first columns of a row.
fn event(row: &Row<'_>) -> rusqlite::Result<Event> {
    Ok(Event {
        id: EventId::from_bytes(row.get(0)?),
        kind: row.get(1)?,
        aggregate: row.get(2)?,
        payload: Bytes::from(row.get::<_, Vec<u8>>(3)?),
    })
}
