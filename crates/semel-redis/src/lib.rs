//! A replay cache in Redis, in front of a durable store.
//!
//! [`Cached`] wraps another store. It keeps completed answers in Redis and replays them to
//! retries, so that a storm of retries through many processes does not reach the database. All
//! other calls go directly to the inner store, which alone makes decisions.
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
//! A Redis that is slow, empty, evicting, wrong or unreachable costs time and never changes an
//! answer. An answer from Redis is used only if the value itself shows that it belongs to this
//! request, is complete, was read in the store's current
//! [`ErasureEpoch`](semel_core::store::ErasureEpoch), and has not expired by the store's clock.
//!
//! # Requirements on the inner store
//! Its epoch must survive a restart and be the same in all processes, because the answers in Redis
//! do and are. A durable store that counts erasures in process memory (SQLite) would, after a
//! restart, replay answers that were erased before it.

mod cached;
mod connection;
mod meters;
mod value;

use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionAddr;

pub use cached::Cached;
pub use meters::names;

use connection::RedisConnection;

/// How long a retry waits for Redis. A database answers within this time, so waiting longer gains
/// nothing.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(50);

/// The default prefix of keys in Redis.
pub const DEFAULT_PREFIX: &str = "semel:";

/// Why a cache could not be opened. An unreachable Redis is not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is invalid. The message does not repeat it, since it may contain a password.
    #[error(
        "the address of Redis makes no sense: {reason}. Write redis://HOST:PORT/DATABASE, or \
         rediss:// for TLS"
    )]
    Address {
        /// What is wrong with it.
        reason: Box<str>,
    },
}

/// Options for opening a [`Cached`] store.
#[derive(Clone)]
pub struct Options {
    url: Box<str>,
    prefix: Box<str>,
    lookup_timeout: Duration,
    wait_for_fills: bool,
}

impl Options {
    /// A Redis by its address: `redis://`, or `rediss://` for TLS with the certificates that
    /// the system trusts; user, password and database as usual.
    pub fn new(url: impl Into<Box<str>>) -> Self {
        Self {
            url: url.into(),
            prefix: DEFAULT_PREFIX.into(),
            lookup_timeout: LOOKUP_TIMEOUT,
            wait_for_fills: false,
        }
    }

    /// The prefix of the keys. **Each durable store needs its own,** unless its epochs are unique,
    /// as those of PostgreSQL are: two stores that share a Redis and a prefix would replay each
    /// other's answers to equal requests.
    pub fn prefix(self, prefix: impl Into<Box<str>>) -> Self {
        Self {
            prefix: prefix.into(),
            ..self
        }
    }

    /// Changes how long a retry waits for Redis: for tests on busy machines.
    #[doc(hidden)]
    pub fn lookup_timeout(self, lookup_timeout: Duration) -> Self {
        Self {
            lookup_timeout,
            ..self
        }
    }

    /// Makes a replay return only after its entry is written to Redis: for tests, which then find
    /// it there.
    #[doc(hidden)]
    pub fn wait_for_fills(self) -> Self {
        Self {
            wait_for_fills: true,
            ..self
        }
    }

    /// Puts the cache in front of `store`. If Redis does not answer within a second, this logs a
    /// warning, and the cache connects later.
    ///
    /// # Errors
    /// [`Error::Address`], and nothing else.
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind.
    pub async fn open<S>(self, store: S) -> Result<Cached<S>, Error> {
        let client = redis::Client::open(&*self.url).map_err(|error| Error::Address {
            // The error names its kind and the crate's description: no part of the address.
            reason: error.to_string().into(),
        })?;
        if let ConnectionAddr::TcpTls { insecure: true, .. } = client.get_connection_info().addr() {
            return Err(Error::Address {
                reason: "`#insecure` asks for TLS without verification, which is not supported; remove it".into(),
            });
        }
        let connection = Arc::new(RedisConnection::new(client));
        connection.connect().await;
        Ok(Cached::new(store, connection, self))
    }
}

/// Omits the address, which may contain a password.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
