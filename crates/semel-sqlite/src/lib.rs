//! Semel's embedded store: one SQLite file, nothing to install.
//!
//! Every verb of the [state machine](semel_core::transition) is one guarded statement in a
//! file of its own. One thread writes, with group commit: calls that arrive during a commit share
//! the next one, so that a lone request does not wait and a thousand share an fsync. A call returns
//! when its group is on the disk.
//!
//! ```
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use semel_core::{Decision, Fingerprint, Identity, Key, OperationId, Policy, Reserve, Store};
//!
//! let store = semel_sqlite::Sqlite::open("semel.db").await?;
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

mod backend;
mod checkpoint;
mod connection;
mod contracts;
mod error;
mod group_builder;
mod history;
mod holder;
mod inbox;
mod inline_reader;
mod list;
mod maintenance;
mod migrate;
mod once;
mod outbox;
mod queries;
mod queue;
mod reader;
mod reserve;
mod row;
mod same_file;
mod sandbox;
mod statistics;
mod store;
mod unfinished;
mod work;
mod writer;

#[cfg(test)]
mod guards;

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel_core::identity::IdentityHash;
use semel_core::{Clock, Identity, SystemClock};

pub use error::Error;
pub use once::Inbox;
pub use outbox::Outbox;
/// The driver, in the version that [`Sqlite::transaction`] hands out connections of.
pub use rusqlite;
pub use sandbox::Unwritten;
pub use work::Work;

use queries::Queries;

/// A store in a SQLite file. Clones share it; dropping the last one finishes the accepted calls and
/// closes the file.
#[derive(Clone, Debug)]
pub struct Sqlite {
    inner: Arc<store::Inner>,
}

/// How a [`Sqlite`] store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    busy_timeout: Duration,
    max_bytes: Option<NonZeroU64>,
    /// Whether readers may answer retries; off only to test the writer alone.
    answer_from_readers: bool,
    queries: Queries,
    identity_hash: fn(&Identity) -> IdentityHash,
}

impl Sqlite {
    /// Opens the file, or creates it, with the default [`Options`].
    ///
    /// # Errors
    /// See [`Error`]; a file that cannot be trusted is not touched.
    ///
    /// # Cancellation
    /// Dropping the future may leave an empty, valid file behind.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Options::new(path).open().await
    }
}

/// The SQL of the schema, from nothing to the newest version.
pub fn schema() -> String {
    migrate::text()
}

impl Options {
    /// The defaults: the system clock, a busy timeout of five seconds, and no bound on the size.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            clock: Arc::new(SystemClock),
            busy_timeout: Duration::from_secs(5),
            max_bytes: None,
            answer_from_readers: true,
            queries: Queries::default(),
            identity_hash: Identity::hash,
        }
    }

    /// Judges leases and windows by `clock`.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// How long another process may hold the file before a call fails.
    pub fn busy_timeout(self, busy_timeout: Duration) -> Self {
        Self {
            busy_timeout,
            ..self
        }
    }

    /// Bounds the size of the database, as a full disk would: at the bound new records are refused,
    /// and nothing that is stored is lost. Completions need room as well, so leave some: an attempt
    /// whose response finds no room ends as unknown. Rounded down to whole pages, and never below
    /// what is stored already.
    pub fn max_bytes(self, max_bytes: NonZeroU64) -> Self {
        Self {
            max_bytes: Some(max_bytes),
            ..self
        }
    }

    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// See [`Error`]; a file that cannot be trusted is not touched.
    ///
    /// # Cancellation
    /// Dropping the future may leave an empty, valid file behind.
    pub async fn open(self) -> Result<Sqlite, Error> {
        store::Inner::open(self).await.map(|inner| Sqlite {
            inner: Arc::new(inner),
        })
    }
}
