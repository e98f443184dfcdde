//! A replay cache in Redis, in front of a durable store.
//!
//! [`Cached`] is a store around another one. It keeps completed answers in Redis and gives
//! them to retries, so that a storm of retries that comes in through many processes does
//! not reach the database. All else goes straight to the store inside, which remains the
//! only one that decides.
//!
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! # let postgres = semel_core::Memory::default();
//! let store = semel_redis::Options::new("redis://127.0.0.1:6379/0")
//!     .prefix("payments:")
//!     .open(postgres)
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! Redis may be slow, empty, evicting, wrong or gone: that costs time, never an answer. An
//! answer out of Redis is given only where the value itself says that it belongs to this
//! request, is whole, was read in the store's present [`Epoch`](semel_core::store::Epoch),
//! and is not over by the store's own clock.
//!
//! # What the store inside must keep
//! Its epoch must outlive the process, and be the same for all processes, as the answers in
//! Redis do and are. A store that counts erasures in its own memory and is durable itself
//! (SQLite) would find answers after a restart that were erased before it.

mod cached;
mod link;
mod meters;
mod value;

use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionAddr;

pub use cached::Cached;
pub use meters::names;

use link::Link;

/// How long a retry waits for Redis. A database answers within this, so a Redis that needs
/// longer has nothing to give.
const LOOKUP_PATIENCE: Duration = Duration::from_millis(50);

/// What the keys in Redis begin with where nobody chose anything else.
pub const DEFAULT_PREFIX: &str = "semel:";

/// Why a cache could not be opened. A Redis that is away is no reason.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No Redis can be meant by this address. The message does not repeat it, since it may
    /// hold a password.
    #[error(
        "the address of Redis makes no sense: {reason}. Write redis://HOST:PORT/DATABASE, or \
         rediss:// for TLS"
    )]
    Address {
        /// What is wrong with it.
        reason: Box<str>,
    },
}

/// How a [`Cached`] store is opened.
#[derive(Clone)]
pub struct Options {
    url: Box<str>,
    prefix: Box<str>,
    lookup_patience: Duration,
    wait_for_fills: bool,
}

impl Options {
    /// A Redis by its address: `redis://`, or `rediss://` for TLS with the certificates that
    /// the system trusts; user, password and database as usual.
    pub fn new(url: impl Into<Box<str>>) -> Self {
        Self {
            url: url.into(),
            prefix: DEFAULT_PREFIX.into(),
            lookup_patience: LOOKUP_PATIENCE,
            wait_for_fills: false,
        }
    }

    /// What the keys begin with. **Each durable store needs its own,** unless its epochs are no
    /// other store's, as PostgreSQL's are: two that share a Redis and a prefix would give each
    /// other's answers to requests that are alike.
    pub fn prefix(self, prefix: impl Into<Box<str>>) -> Self {
        Self {
            prefix: prefix.into(),
            ..self
        }
    }

    /// Waits for Redis this long instead: for tests on machines that do something else.
    #[doc(hidden)]
    pub fn lookup_patience(self, lookup_patience: Duration) -> Self {
        Self {
            lookup_patience,
            ..self
        }
    }

    /// Answers only when what was read is in Redis, too: for tests, which want to find it
    /// there.
    #[doc(hidden)]
    pub fn wait_for_fills(self) -> Self {
        Self {
            wait_for_fills: true,
            ..self
        }
    }

    /// Puts the cache in front of `store`. A Redis that does not answer is waited for no
    /// longer than a second, warned about, and asked again later.
    ///
    /// # Errors
    /// [`Error::Address`], and nothing else.
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind.
    pub async fn open<S>(self, store: S) -> Result<Cached<S>, Error> {
        let client = redis::Client::open(&*self.url).map_err(|error| Error::Address {
            // Only the kind and the crate's own words: no part of the address.
            reason: error.to_string().into(),
        })?;
        if let ConnectionAddr::TcpTls { insecure: true, .. } = client.get_connection_info().addr() {
            return Err(Error::Address {
                reason: "`#insecure` asks for TLS that trusts anybody, which is not offered".into(),
            });
        }
        let link = Arc::new(Link::new(client));
        link.connect().await;
        Ok(Cached::new(store, link, self))
    }
}

/// Without the address, which may hold a password.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
