//! Semel's DynamoDB store, for services on AWS, and beyond what one database leader can do.
//!
//! One table holds everything. A reservation is one conditional `PutItem`; every other change of a
//! record is one conditional write of it as it was judged. There are no transactions and there is
//! no Time to Live in the request path, so multi-region tables with strong consistency work too.
//! `docs/dynamodb.md` in the repository says what differs from PostgreSQL: each process judges
//! leases by its own clock, and indexes follow the table after a moment.
//!
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use semel_core::{Decision, Fingerprint, Identity, Key, OperationId, Policy, Reserve, Store};
//!
//! let store = semel_dynamodb::Dynamo::open("dynamodb://semel?region=eu-west-1").await?;
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
mod attributes;
mod backend;
mod call;
mod client;
mod conditions;
mod documents;
mod erasures;
mod error;
mod history;
mod inbox;
mod index;
mod inspect;
mod item;
mod keys;
mod maintenance;
mod parts;
mod reads;
mod records;
mod rows;
mod schema;
mod skew;
mod statistics;
mod step;
mod store;
mod templates;
mod transaction;
mod writer_locks;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::Credentials;
use aws_sdk_dynamodb::config::SharedInterceptor;
use quick_cache::sync::Cache;
use semel_core::identity::IdentityHash;
use semel_core::{Clock, Identity, SystemClock};

/// The SDK of AWS, for the items of [`Dynamo::complete_with`].
pub use aws_sdk_dynamodb as sdk;
pub use error::{Error, TransactionError};

use address::Address;
use call::Limit;
use conditions::Conditions;
use skew::Skew;
use store::Inner;

/// How many records this process remembers the partition of. A fence of any other is looked up in
/// the index.
const REMEMBERED: usize = 100_000;
/// How many running attempts this process remembers as it wrote them.
const HELD: usize = 10_000;
/// How long a new id may be missing in the index. It is usually there after milliseconds.
const INDEX_LAG: Duration = Duration::from_secs(5);

/// How old an id is before its absence in the index means that there is no such record. An index is
/// behind for longer than [`INDEX_LAG`] only while its writes are throttled.
const UNUSED_AFTER: Duration = Duration::from_mins(1);

/// A store in a DynamoDB table. Clones share it.
#[derive(Clone)]
pub struct Dynamo {
    inner: Arc<Inner>,
}

/// How a [`Dynamo`] store is opened.
#[derive(Clone)]
pub struct Options {
    url: Box<str>,
    clock: Option<Arc<dyn Clock>>,
    is_clock_checked: bool,
    margin: Duration,
    credentials: Option<Credentials>,
    interceptor: Option<SharedInterceptor>,
    index_lag: Duration,
    unused_after: Duration,
    conditions: Conditions,
    identity_hash: fn(&Identity) -> IdentityHash,
}

/// What [`migrate`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// Whether the table was created. Else there was one.
    pub is_created: bool,
    /// Whether the table has point-in-time recovery. Always at AWS; a test server may not have it.
    pub has_recovery: bool,
}

impl Dynamo {
    /// Opens the table at `dynamodb://TABLE?region=REGION`, with the default [`Options`].
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancellation
    /// Nothing is written.
    pub async fn open(url: &str) -> Result<Self, Error> {
        Options::new(url).open().await
    }
}

impl fmt::Debug for Dynamo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dynamo")
            .field("table", &self.inner.table)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The defaults: this machine's clock, checked against DynamoDB's, and the credentials that
    /// the SDK finds.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.into(),
            clock: None,
            is_clock_checked: true,
            margin: skew::MARGIN,
            credentials: None,
            interceptor: None,
            index_lag: INDEX_LAG,
            unused_after: UNUSED_AFTER,
            conditions: Conditions::default(),
            identity_hash: Identity::hash,
        }
    }

    /// Judges leases and windows by `clock` instead of this machine's, without the margin for
    /// clocks that differ: for tests.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock: Some(clock),
            is_clock_checked: false,
            margin: Duration::ZERO,
            ..self
        }
    }

    /// Signs requests with this access key instead of the one that the SDK finds.
    pub fn credentials(self, access_key_id: &str, secret_access_key: &str) -> Self {
        let credentials = Credentials::new(access_key_id, secret_access_key, None, None, "semel");
        Self {
            credentials: Some(credentials),
            ..self
        }
    }

    /// How long a call waits for a new id that is missing in the index. The default is five seconds.
    pub fn index_lag(self, index_lag: Duration) -> Self {
        Self { index_lag, ..self }
    }

    /// Opens the table, which [`migrate`](Options::migrate) created.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancellation
    /// Nothing is written.
    pub async fn open(self) -> Result<Dynamo, Error> {
        let address: Address = self.url.parse()?;
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock));
        let is_checked = self.is_clock_checked;
        let skew = Arc::new(Skew::new(if is_checked {
            Arc::clone(&clock)
        } else {
            Arc::new(SystemClock)
        }));
        let interceptors = std::iter::once(client::read_date(&skew)).chain(self.interceptor);
        let client = client::connect(&address, self.credentials, interceptors).await;
        let shards = schema::open(&client, &address).await?;
        if is_checked && skew.is_beyond() {
            return Err(Error::Clock {
                bound_seconds: skew::BOUND.as_secs(),
            });
        }
        let inner = Arc::new(Inner {
            client,
            table: address.table.into(),
            shards,
            clock,
            skew: is_checked.then(|| Arc::clone(&skew)),
            margin: self.margin,
            conditions: self.conditions,
            identity_hash: self.identity_hash,
            index_lag: self.index_lag,
            unused_after: self.unused_after,
            limit: Limit::new(skew),
            writer_locks: writer_locks::WriterLocks::new(),
            partitions: Cache::new(REMEMBERED),
            held: Cache::new(HELD),
            known: Cache::new(REMEMBERED),
            erasures: erasures::Erasures::default(),
        });
        erasures::spawn_reader(&inner);
        tracing::info!(
            table = inner.table,
            "DynamoDB has no notifications (waiters poll), no outbox, and no exact counts of large \
             tables"
        );
        Ok(Dynamo { inner })
    }

    /// Creates the table, unless there is one, and enables its point-in-time recovery.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancellation
    /// Dropping the future may leave the table created, perhaps without its settings. The next
    /// call completes it.
    pub async fn migrate(self) -> Result<Migration, Error> {
        let address: Address = self.url.parse()?;
        let client = client::connect(&address, self.credentials, self.interceptor).await;
        schema::migrate(&client, &address).await
    }
}

/// Without credentials.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("url", &self.url)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

/// Creates the table, unless there is one, and enables its point-in-time recovery.
///
/// # Errors
/// See [`Error`].
///
/// # Cancellation
/// See [`Options::migrate`].
pub async fn migrate(url: &str) -> Result<Migration, Error> {
    Options::new(url).migrate().await
}

/// The definition of the table at `url` for CloudFormation and for Terraform.
///
/// # Errors
/// The address is invalid.
pub fn schema(url: &str) -> Result<String, Error> {
    let address: Address = url.parse()?;
    Ok(format!(
        "# CloudFormation\n{}\n# Terraform\n{}",
        templates::cloud_formation(&address.table),
        templates::terraform(&address.table)
    ))
}
