//! Semel's PostgreSQL store, for services that run as several processes.
//!
//! Every verb of the [state machine](semel_core::transition) is one guarded statement in a
//! file of its own, and the database's clock decides. Calls share statements: those that arrive
//! while one runs share the next, so that a lone request does not wait and hundreds share a commit.
//!
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use semel_core::{Decision, Fingerprint, Identity, Key, OperationId, Policy, Reserve, Store};
//!
//! let store = semel_postgres::Postgres::open("postgres://app@127.0.0.1/shop").await?;
//! let decision = store
//!     .reserve(Reserve {
//!         id: OperationId::generate(),
//!         identity: Identity::new("tenant-1", "create_payment", Key::new("8e03978e-40d5")?)?,
//!         fingerprints: Fingerprint::of(&("EUR", 1000))?.into(),
//!         owner: "host-1/42".into(),
//!         policy: Policy::default(),
//!     })
//!     .await?;
//! assert!(matches!(decision, Decision::Execute(_)));
//! # Ok(())
//! # }
//! ```

mod address;
mod backend;
mod command;
mod connection;
mod connection_worker;
mod contracts;
mod driver;
mod error;
mod holder;
mod inbox;
mod maintenance;
mod migrate;
mod notify;
mod once;
mod outbox;
mod publish;
mod queries;
mod queue;
mod reader;
mod reserve;
mod row;
mod server;
mod statistics;
mod store;
mod time;
mod tls;
pub mod transaction;
mod within;

#[cfg(test)]
mod guards;
#[cfg(test)]
mod plans;

use std::sync::Arc;

use semel_core::identity::IdentityHash;
use semel_core::{Clock, Identity};

pub use error::Error;
pub use once::Inbox;
pub use publish::Outbox;
pub use server::{Durability, Lag, Leader};
pub use within::{InTransaction, Unwritten};

use connection::Connector;
use queries::Queries;
use time::Time;

/// A store in a PostgreSQL database. Clones share it; dropping the last one finishes the accepted
/// calls and closes the connections.
#[derive(Clone, Debug)]
pub struct Postgres {
    inner: Arc<store::Inner>,
}

/// How a [`Postgres`] store is opened.
#[derive(Clone)]
pub struct Options {
    url: Box<str>,
    clock: Option<Arc<dyn Clock>>,
    queries: Queries,
    identity_hash: fn(&Identity) -> IdentityHash,
}

impl Postgres {
    /// Connects, and creates or upgrades the schema, with the default [`Options`].
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancellation
    /// Dropping the future may leave the schema created.
    pub async fn open(url: &str) -> Result<Self, Error> {
        Options::new(url).open().await
    }

    /// The server that the store writes to, as this process last saw it.
    pub fn leader(&self) -> Option<Leader> {
        self.inner.connector.leader().clone()
    }

    /// How often the database's clock jumped by more than two seconds, also because another server
    /// leads.
    pub fn clock_jumps(&self) -> u64 {
        self.inner.time.jumps()
    }
}

impl Options {
    /// The defaults: the database's own clock.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.into(),
            clock: None,
            queries: Queries::default(),
            identity_hash: Identity::hash,
        }
    }

    /// Judges leases and windows by `clock` instead of the database's own: for tests.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock: Some(clock),
            ..self
        }
    }

    /// Connects, and creates or upgrades the schema.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancellation
    /// Dropping the future may leave the schema created.
    pub async fn open(self) -> Result<Postgres, Error> {
        store::Inner::open(self).await.map(|inner| Postgres {
            inner: Arc::new(inner),
        })
    }
}

/// Without the URL: it may contain a password.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

/// Creates or upgrades the schema. Returns how many migrations were applied.
///
/// # Errors
/// See [`Error`].
///
/// # Cancellation
/// Dropping the future leaves the old schema or the new one.
pub async fn migrate(url: &str) -> Result<usize, Error> {
    let connector = Connector::new(url, Queries::default(), Arc::new(Time::new(None)))?;
    let address = &connector.address;
    let link = connector.connect().await;
    let mut link = link.map_err(|failure| Error::opening(failure, address))?;
    migrate::migrate(address, &mut link.client).await
}

/// The SQL of the schema, from nothing to the newest version.
pub fn schema() -> String {
    migrate::text()
}
