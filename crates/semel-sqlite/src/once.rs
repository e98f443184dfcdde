//! The effect of a message, once.

use std::time::Duration;

use rusqlite::{Connection, params};
use semel_core::inbox::{MAX_NAME_BYTES, Once};

use crate::Sqlite;
use crate::sandbox::{self, OwnStatement, StoreIdentity, Unwritten, WriterConnection};

const ONCE: &str = include_str!("../queries/once.sql");
const SAVEPOINT: &str = include_str!("../queries/once_savepoint.sql");
const RELEASE: &str = include_str!("../queries/once_release.sql");
const ROLLBACK: &str = include_str!("../queries/once_rollback.sql");

/// Runs the effect of each message once. See [`Sqlite::inbox`].
#[derive(Clone, Debug)]
pub struct Inbox {
    store: StoreIdentity,
    remember: Duration,
}

impl Sqlite {
    /// The inbox, for statements that [`transaction`](Self::transaction), [`work`](Self::work) or
    /// [`write`](Self::write) run. It keeps the marker of a message for `remember`: longer than its
    /// broker may deliver it again. [`Inbox::REMEMBER`] is long enough for most.
    pub fn inbox(&self, remember: Duration) -> Inbox {
        let store = StoreIdentity::of(self);
        Inbox { store, remember }
    }
}

impl Inbox {
    /// Long enough for most: see [`REMEMBER`](semel_core::inbox::REMEMBER).
    pub const REMEMBER: Duration = semel_core::inbox::REMEMBER;

    /// Runs `effect` unless this consumer handled the message before. The marker and the effect are
    /// committed together with everything else that the statements write, and a second delivery
    /// finds the marker. Each consumer has markers of its own.
    ///
    /// An effect that fails, by an error or a panic, leaves neither: its writes are rolled back, also
    /// where the statements around it continue and are committed.
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

    /// Writes the marker; `None` where it exists.
    fn mark<'c>(
        &self,
        connection: &'c Connection,
        consumer: &str,
        message_id: &str,
    ) -> Result<Option<OpenMarker<'c>>, Unwritten> {
        let writer = self.store.writer(connection)?;
        // A prefix of its own, apart from the senders of webhooks.
        let source = format!("once:{consumer}");
        let fits = |name: &str| (1..=MAX_NAME_BYTES).contains(&name.len());
        if consumer.is_empty() || !fits(&source) || !fits(message_id) {
            return Err(Unwritten::Name);
        }
        let marked = OpenMarker::begin(writer)?;
        let row = params![
            source,
            message_id,
            writer.now.as_micros(),
            writer.now.saturating_add(self.remember).as_micros(),
        ];
        let inserted = writer.execute(OwnStatement::Marker, ONCE, row)?;
        Ok((inserted == 1).then_some(marked))
    }
}

/// A marker whose effect is running. Dropping it rolls back both.
struct OpenMarker<'c> {
    writer: WriterConnection<'c>,
    is_over: bool,
}

impl<'c> OpenMarker<'c> {
    fn begin(writer: WriterConnection<'c>) -> rusqlite::Result<Self> {
        execute(writer, SAVEPOINT)?;
        let is_over = false;
        Ok(Self { writer, is_over })
    }

    fn keep(mut self) -> Result<(), Unwritten> {
        execute(self.writer, RELEASE)?;
        self.is_over = true;
        Ok(())
    }
}

impl Drop for OpenMarker<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let rolled_back =
            execute(self.writer, ROLLBACK).and_then(|()| execute(self.writer, RELEASE));
        // The effect ended a savepoint around its own, so it is not known what remains of it.
        if rolled_back.is_err() {
            sandbox::require_rollback();
        }
    }
}

fn execute(writer: WriterConnection<'_>, sql: &str) -> rusqlite::Result<()> {
    writer
        .execute(OwnStatement::Savepoint, sql, &[])
        .map(|_| ())
}
