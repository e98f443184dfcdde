//! Messages that have their effect once.

use std::time::Duration;

use rusqlite::{Connection, params};
use semel_core::inbox::{MAX_NAME_BYTES, Once};

use crate::Sqlite;
use crate::inside::{self, Home, Own, Place, Unwritten};

const ONCE: &str = include_str!("../queries/once.sql");
const SAVEPOINT: &str = include_str!("../queries/once_savepoint.sql");
const RELEASE: &str = include_str!("../queries/once_release.sql");
const ROLLBACK: &str = include_str!("../queries/once_rollback.sql");

/// What a consumer of messages writes among its own statements. See [`Sqlite::inbox`].
#[derive(Clone, Debug)]
pub struct Inbox {
    home: Home,
    remember: Duration,
}

impl Sqlite {
    /// The inbox, for statements that [`transaction`](Self::transaction), [`work`](Self::work) or
    /// [`write`](Self::write) run. It remembers a message for so long: longer than its broker may
    /// deliver it again. [`Inbox::REMEMBER`] is long enough for most.
    pub fn inbox(&self, remember: Duration) -> Inbox {
        let home = Home::of(self);
        Inbox { home, remember }
    }
}

impl Inbox {
    /// Long enough for most: see [`REMEMBER`](semel_core::inbox::REMEMBER).
    pub const REMEMBER: Duration = semel_core::inbox::REMEMBER;

    /// Lets a message have its effect, unless it had it before. The marker and the effect are
    /// committed together with all else that the statements write, and a second delivery finds
    /// the marker. Consumers do not get in each other's way: each has a marker of its own.
    ///
    /// An effect that fails, by an error or a panic, leaves neither: what it wrote is taken back,
    /// also where the statements around it go on and are committed.
    ///
    /// See [`Sqlite::write`] for an example.
    ///
    /// # Errors
    /// Those of the effect, and [`Unwritten`].
    pub fn once<T, E>(
        &self,
        connection: &Connection,
        consumer: &str,
        message_id: &str,
        effect: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<Once<T>, E>
    where
        E: From<Unwritten>,
    {
        let Some(marked) = self.mark(connection, consumer, message_id)? else {
            return Ok(Once::Again);
        };
        let done = effect(connection)?;
        marked.keep()?;
        Ok(Once::Done(done))
    }

    /// Writes the marker; nothing where it is there.
    fn mark<'c>(
        &self,
        connection: &'c Connection,
        consumer: &str,
        message_id: &str,
    ) -> Result<Option<Marked<'c>>, Unwritten> {
        let place = self.home.place(connection)?;
        // Apart from what senders of webhooks are called.
        let source = format!("once:{consumer}");
        let fits = |name: &str| (1..=MAX_NAME_BYTES).contains(&name.len());
        if consumer.is_empty() || !fits(&source) || !fits(message_id) {
            return Err(Unwritten::Name);
        }
        let marked = Marked::begin(place)?;
        let row = params![
            source,
            message_id,
            place.now.as_micros(),
            place.now.saturating_add(self.remember).as_micros(),
        ];
        let inserted = place.execute(Own::Marker, ONCE, row)?;
        Ok((inserted == 1).then_some(marked))
    }
}

/// A marker whose effect is under way. Dropping it takes back both.
struct Marked<'c> {
    place: Place<'c>,
    is_over: bool,
}

impl<'c> Marked<'c> {
    fn begin(place: Place<'c>) -> rusqlite::Result<Self> {
        execute(place, SAVEPOINT)?;
        let is_over = false;
        Ok(Self { place, is_over })
    }

    fn keep(mut self) -> Result<(), Unwritten> {
        execute(self.place, RELEASE)?;
        self.is_over = true;
        Ok(())
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let taken_back = execute(self.place, ROLLBACK).and_then(|()| execute(self.place, RELEASE));
        // The effect ended a savepoint around its own. What of it is still there cannot be told.
        if taken_back.is_err() {
            inside::spoil();
        }
    }
}

fn execute(place: Place<'_>, sql: &str) -> rusqlite::Result<()> {
    place.execute(Own::Savepoint, sql, &[]).map(|_| ())
}
