//! The interface of stores: one call with one [`Request`] and one [`Reply`].
//!
//! A store performs the [`transition`](crate::transition) functions atomically and durably. Its
//! author implements [`Backend`]; callers use the typed methods of [`Store`], which every backend
//! has. `docs/store.md` in the repository says in which order to implement the verbs, and the
//! conformance suite of `semel-testkit` reports what is missing.

mod any;
mod error;
mod listing;
mod recent_keys;
mod reply;
mod request;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

pub use any::AnyStore;
pub use error::{Error, Result, Source};
pub use listing::{MAX_WALK, Page, Query, Summary};
pub use recent_keys::RecentKeys;
pub use reply::Reply;
pub use request::{Request, Store, Verb};

use crate::transition::{Completion, Decision, Reserve};
use crate::{Clock, OperationId, RecoveryPoint, Timestamp};

/// Most records that one maintenance call changes or one [`Page`] holds, whatever the caller asks
/// for: a batch must not hold up the requests behind it.
pub const MAX_BATCH: usize = 1000;

/// What a store implements, and what a wrapper around a store implements.
///
/// Nothing here has a default. A store that does not support a verb returns
/// [`Error::Unsupported`]; a wrapper matches every variant of [`Request`] by name, so that a verb
/// that it leaves out is an error of the compiler:
///
/// ```compile_fail,E0004
/// # use semel_core::store::{Backend, Reply, Request, Result};
/// struct Wrapper<B>(B);
///
/// impl<B: Backend> Wrapper<B> {
///     async fn call(&self, request: Request) -> Result<Reply> {
///         match request {
///             // All other verbs are missing.
///             request @ Request::Reserve { .. } => self.0.call(request).await,
///         }
///     }
/// }
/// ```
///
/// A wrapper that leaves out one of the other methods does not compile either. This one forgets
/// `prepare`, by which a sealing store encrypts what an application's transaction writes:
///
/// ```compile_fail,E0046
/// # use std::sync::Arc;
/// # use bytes::Bytes;
/// # use semel_core::store::{Backend, ErasureEpoch, Reply, Request, Result};
/// # use semel_core::{Clock, Decision, OperationId, RecoveryPoint, Reserve};
/// struct Wrapper<B>(B);
///
/// impl<B: Backend> Backend for Wrapper<B> {
///     async fn call(&self, request: Request) -> Result<Reply> {
///         self.0.call(request).await
///     }
///     fn try_decide(&self, request: &Reserve) -> Option<Decision> {
///         self.0.try_decide(request)
///     }
///     fn clock(&self) -> Arc<dyn Clock> {
///         self.0.clock()
///     }
///     fn erasure_epoch(&self) -> Option<ErasureEpoch> {
///         self.0.erasure_epoch()
///     }
///     fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
///         self.0.prepare_point(id, point)
///     }
///     fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
///         self.0.decrypt_evidence(id, evidence)
///     }
/// }
/// ```
pub trait Backend: Send + Sync + 'static {
    /// Performs one request. The methods of [`Store`] say what each verb means; a reply of another
    /// kind than the verb's reaches the caller as [`Error::WrongReply`].
    ///
    /// # Errors
    /// The error says whether the request may have been performed.
    ///
    /// # Cancellation
    /// Dropping the future does not take the request back: it may or may not be performed, exactly
    /// as if the process had died.
    fn call(&self, request: Request) -> impl Future<Output = Result<Reply>> + Send;

    /// The answer to `reserve` where the store has it at once: without waiting, and without
    /// writing. It never grants an execution. After `None` the caller uses `reserve`; a store
    /// without a fast path always returns `None`.
    fn try_decide(&self, request: &Reserve) -> Option<Decision>;

    /// The clock by which the store judges leases and windows. A cache of answers drops them by
    /// this clock.
    fn clock(&self) -> Arc<dyn Clock>;

    /// The current [`ErasureEpoch`]; `None` while the store does not know it, and answers must not
    /// be cached.
    fn erasure_epoch(&self) -> Option<ErasureEpoch>;

    /// A completion in the form in which this store keeps it, for a
    /// [`Transaction`](crate::Transaction) that writes it without
    /// [`complete`](Store::complete). A store that keeps completions as they are returns it
    /// unchanged.
    ///
    /// # Errors
    /// As [`complete`](Store::complete); nothing was written.
    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion>;

    /// A recovery point in the form in which this store keeps it: see
    /// [`prepare`](Backend::prepare).
    ///
    /// # Errors
    /// As [`advance`](Store::advance); nothing was written.
    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint>;

    /// The readable form of the evidence in a history. Histories are verified in their stored
    /// form.
    ///
    /// # Errors
    /// Where the evidence cannot be decrypted.
    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes>;
}

/// The number of erasures in a store, by all processes.
///
/// A completed answer never changes, but it may be erased. A cached copy is valid as long as the
/// epoch is the one that was read *before* the store was asked for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErasureEpoch(pub u64);

/// Resolves when the watched attempt has ended, as far as the store is notified. It may resolve
/// early or never, so the caller also looks at intervals.
pub type AttemptEnded = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The operations whose unknown records a worker claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationFilter {
    /// All operations.
    All,
    /// One operation.
    Only(Box<str>),
    /// All other operations.
    AllBut(Arc<[Box<str>]>),
}

/// The unfinished records of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedCounts {
    /// The operation.
    pub operation: Box<str>,
    /// Running records.
    pub in_progress: CountWithOldest,
    /// Records with an unknown outcome, dead-lettered or not.
    pub unknown: CountWithOldest,
    /// Dead-lettered records.
    pub dead_lettered: CountWithOldest,
}

/// A number of records, and the age of the oldest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountWithOldest {
    /// The number of records.
    pub count: u64,
    /// When the oldest was created.
    pub oldest: Option<Timestamp>,
}

impl OperationFilter {
    /// Whether the filter includes the operation.
    pub fn admits(&self, operation: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(wanted) => **wanted == *operation,
            Self::AllBut(others) => others.iter().all(|other| **other != *operation),
        }
    }
}

impl CountWithOldest {
    /// Counts one more record.
    pub fn add(&mut self, created_at: Timestamp) {
        self.count += 1;
        self.oldest = Some(
            self.oldest
                .map_or(created_at, |oldest| oldest.min(created_at)),
        );
    }
}
