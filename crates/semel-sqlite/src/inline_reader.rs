//! Reads on the caller's thread.
//!
//! A retry that comes soon after its first attempt finds its row in memory: that takes a few
//! microseconds, and a round trip to another thread would take longer. Only keys that this process
//! has seen lately are looked up here, so that no caller waits for the disk; a connection is used
//! only if it is free, and it waits for no lock. In all other cases a reader thread answers.

use std::sync::{Mutex, TryLockError};

use rusqlite::Connection;

use semel_core::identity::IdentityHash;
use semel_core::{Decision, Reserve, Timestamp};

use crate::error::Error;
use crate::{Options, connection, reader, reserve};

/// Most connections for this; each has a cache of its own.
const MAX: usize = 8;

pub(crate) struct InlineReader {
    connections: Vec<Mutex<Connection>>,
    find_identity: &'static str,
}

impl InlineReader {
    /// A connection for every processor: more callers than that do not run at once.
    pub(crate) fn open(options: &Options) -> Result<Self, Error> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let connections = (0..processors.min(MAX))
            .map(|_| connection::open_nonblocking_reader(options).map(Mutex::new))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            connections,
            find_identity: options.queries.find_identity,
        })
    }

    /// Closes all connections.
    pub(crate) fn close(&mut self) {
        self.connections.clear();
    }

    /// The answer, if a connection is free and nothing needs to be written.
    pub(crate) fn answer(
        &self,
        hash: IdentityHash,
        request: &Reserve,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<Decision> {
        let connection =
            self.connections
                .iter()
                .find_map(|connection| match connection.try_lock() {
                    Ok(connection) => Some(connection),
                    // A caller that panicked only read: the connection is usable.
                    Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                    Err(TryLockError::WouldBlock) => None,
                })?;
        let mut find_identity = connection.prepare_cached(self.find_identity).ok()?;
        let record = reserve::find(&mut find_identity, hash, &request.identity).ok()?;
        reader::answer(record, request, now())
    }
}
