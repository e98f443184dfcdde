//! What all requests through one layer share.

use std::sync::Arc;
use std::time::Duration;

use semel_core::{Clock, Owner};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::budget::ByteBudget;
use crate::cache::ReplayCache;
use crate::loaded_rules::LoadedRules;
use crate::waiters::Waiters;

pub(crate) struct State<S> {
    pub(crate) store: S,
    pub(crate) cache: ReplayCache,
    /// The store's clock: it decides when a record expires.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) waiters: Waiters,
    pub(crate) executions: TaskTracker,
    /// Cancelled when the process no longer waits for running executions.
    pub(crate) abandon: CancellationToken,
    pub(crate) owner: Owner,
    /// Fingerprint rules of other configurations.
    pub(crate) loaded_rules: LoadedRules,
    /// The bodies of guarded requests.
    pub(crate) request_bytes: Arc<ByteBudget>,
    /// The bodies of their responses.
    pub(crate) response_bytes: Arc<ByteBudget>,
    /// Bounds the threads that decode and hash large bodies.
    pub(crate) hashing: Arc<Semaphore>,
    /// How long a client waits for a reservation.
    pub(crate) store_timeout: Duration,
    /// How long a client waits for its outcome to be recorded.
    pub(crate) record_timeout: Duration,
}
