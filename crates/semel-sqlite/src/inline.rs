//! Reading on the caller's own thread.
//!
//! A retry that comes soon after its first attempt finds its row in memory: a few microseconds,
//! of which handing the question to another thread and the answer back would be most. Only keys
//! that this process has lately seen are looked up here, so nobody waits for a disk; a
//! connection is used only if it is free, and it waits for no lock. Whatever stands in the way,
//! the readers' threads have the time.

use std::sync::{Mutex, TryLockError};

use rusqlite::Connection;

use semel_core::identity::IdentityHash;
use semel_core::{Decision, Reserve, Timestamp};

use crate::error::Error;
use crate::{Options, connection, reader, reserve};

/// Most connections that are kept for this; each has a cache of its own.
const MAX: usize = 8;

pub(crate) struct Inline {
    connections: Vec<Mutex<Connection>>,
    find_identity: &'static str,
}

impl Inline {
    /// A connection for every processor: more callers than that do not run at once.
    pub(crate) fn open(options: &Options) -> Result<Self, Error> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let connections = (0..processors.min(MAX))
            .map(|_| connection::open_impatient_reader(options).map(Mutex::new))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            connections,
            find_identity: options.queries.find_identity,
        })
    }

    /// Closes all connections. From then on nobody is answered here.
    pub(crate) fn close(&mut self) {
        self.connections.clear();
    }

    /// The answer, if it can be had at once.
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
                    // A caller that panicked in between left nothing half done: it only read.
                    Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                    Err(TryLockError::WouldBlock) => None,
                })?;
        let mut find_identity = connection.prepare_cached(self.find_identity).ok()?;
        let record = reserve::find(&mut find_identity, hash, &request.identity).ok()?;
        reader::answer(record, request, now())
    }
}
