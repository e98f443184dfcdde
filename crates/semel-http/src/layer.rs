//! The layer: a store, who is calling, and what is guarded how.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use http::request::Parts;
use semel_core::key::Dialect;
use semel_core::{Clock, Owner, Store};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cache::Cache;
use crate::route::{Error, IntoRoute, Route};
use crate::rules::Rules;
use crate::service::Service;
use crate::waiters::Waiters;

/// What the cache of completed answers may take, unless it is told otherwise.
pub const CACHE_BYTES: u64 = 64 << 20;

/// How long a client waits for the store before it is told that nothing happened.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// How long a client waits for its outcome to be recorded before it is told that this goes on
/// without it.
const RECORD_PATIENCE: Duration = Duration::from_secs(5);

/// How long after [`Layer::drain`] gave up on an execution its record may take to say so.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A [`tower_layer::Layer`] that makes what it wraps safe to retry.
///
/// Clones share everything: give one to the router and keep one to [`drain`](Layer::drain).
///
/// ```
/// use semel_core::Memory;
/// use semel_http::{Layer, tenant};
///
/// let layer = Layer::new(Memory::default())
///     .tenant(tenant::header("X-Account-Id"))
///     .route("POST /payments", |route| route.operation("create_payment").min_length(16));
/// ```
pub struct Layer<S> {
    pub(crate) state: Arc<State<S>>,
    pub(crate) rules: Arc<Rules>,
}

/// What all requests share.
pub(crate) struct State<S> {
    pub(crate) store: S,
    pub(crate) cache: Cache,
    /// The store's: what it gave is over when it says so.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) waiters: Waiters,
    pub(crate) executions: TaskTracker,
    /// Told to executions that the process no longer waits for.
    pub(crate) abandon: CancellationToken,
    pub(crate) owner: Owner,
    pub(crate) store_patience: Duration,
    pub(crate) record_patience: Duration,
}

/// A layer that does not know yet who is calling, and so is none.
#[must_use = "say who is calling with `tenant`"]
pub struct Builder<S> {
    store: S,
    cache_bytes: u64,
    store_patience: Duration,
    record_patience: Duration,
}

/// What [`Layer::drain`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Executions that were given up: their outcomes are unknown.
    pub abandoned: usize,
}

impl Layer<()> {
    /// Begins with the store. Who is calling must be said next.
    #[allow(
        clippy::new_ret_no_self,
        reason = "there is no layer without a tenant, and the types say so"
    )]
    pub fn new<S: Store>(store: S) -> Builder<S> {
        Builder {
            store,
            cache_bytes: CACHE_BYTES,
            store_patience: STORE_PATIENCE,
            record_patience: RECORD_PATIENCE,
        }
    }
}

impl<S: Store> Builder<S> {
    /// How many bytes of completed answers are kept in memory; 0 keeps none.
    pub fn cache_bytes(self, cache_bytes: u64) -> Self {
        Self {
            cache_bytes,
            ..self
        }
    }

    /// How long a client waits for the store: before the execution, where it is then told
    /// that nothing happened, and after it, where it is told that recording goes on.
    pub fn patience(self, before: Duration, after: Duration) -> Self {
        Self {
            store_patience: before,
            record_patience: after,
            ..self
        }
    }

    /// Who is calling: see [`crate::tenant`].
    pub fn tenant<T: Into<Box<str>>>(
        self,
        tenant: impl Fn(&Parts) -> Option<T> + Send + Sync + 'static,
    ) -> Layer<S> {
        let state = State {
            clock: self.store.clock(),
            store: self.store,
            cache: Cache::new(self.cache_bytes),
            waiters: Waiters::default(),
            executions: TaskTracker::new(),
            abandon: CancellationToken::new(),
            owner: format!("process {}", std::process::id()).into(),
            store_patience: self.store_patience,
            record_patience: self.record_patience,
        };
        Layer {
            state: Arc::new(state),
            rules: Arc::new(Rules::new(tenant)),
        }
    }
}

impl<S: Store> Layer<S> {
    /// Other rules over the same store, cache and running executions: for a configuration
    /// that is read again.
    pub fn rules_anew<T: Into<Box<str>>>(
        &self,
        tenant: impl Fn(&Parts) -> Option<T> + Send + Sync + 'static,
    ) -> Self {
        Self {
            state: Arc::clone(&self.state),
            rules: Arc::new(Rules::new(tenant)),
        }
    }

    /// How keys are written and refusals worded.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        Arc::make_mut(&mut self.rules).dialect = dialect;
        self
    }

    /// The header that holds the key: `Idempotency-Key`, unless this says otherwise.
    pub fn header(mut self, name: HeaderName) -> Self {
        Arc::make_mut(&mut self.rules).header = name;
        self
    }

    /// The header that marks a replay: `Idempotent-Replayed`, unless this says otherwise.
    pub fn replayed_header(mut self, name: HeaderName) -> Self {
        Arc::make_mut(&mut self.rules).replayed = name;
        self
    }

    /// Where operations can be asked about, such as `/.semel/operations/`: the id is put
    /// behind it, and clients are sent there. Without it there is no such place.
    pub fn status_path(mut self, prefix: impl Into<Box<str>>) -> Self {
        Arc::make_mut(&mut self.rules).status_path = Some(prefix.into());
        self
    }

    /// What routes begin with, if they are added after this, and how `POST` and `PATCH` are
    /// guarded where no route says so. Of these a key is optional, unless this says otherwise.
    ///
    /// # Panics
    /// If what is said is impossible; see [`try_defaults`](Layer::try_defaults).
    #[allow(
        clippy::panic,
        reason = "as axum does: a wrong route is found when the program starts"
    )]
    pub fn defaults<R: IntoRoute>(self, change: impl FnOnce(Route) -> R) -> Self {
        match self.try_defaults(change) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`defaults`](Layer::defaults), for what a person configured.
    ///
    /// # Errors
    /// What is impossible about it.
    pub fn try_defaults<R: IntoRoute>(
        mut self,
        change: impl FnOnce(Route) -> R,
    ) -> Result<Self, Error> {
        Arc::make_mut(&mut self.rules).set_defaults(change)?;
        Ok(self)
    }

    /// Guards a route: a method and a path, with `{parameter}` and `{*rest}` as in axum.
    ///
    /// # Panics
    /// If the route is impossible; see [`try_route`](Layer::try_route).
    #[allow(
        clippy::panic,
        reason = "as axum does: a wrong route is found when the program starts"
    )]
    pub fn route<R: IntoRoute>(self, pattern: &str, change: impl FnOnce(Route) -> R) -> Self {
        match self.try_route(pattern, change) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`route`](Layer::route), for what a person configured.
    ///
    /// # Errors
    /// What is impossible about it.
    pub fn try_route<R: IntoRoute>(
        mut self,
        pattern: &str,
        change: impl FnOnce(Route) -> R,
    ) -> Result<Self, Error> {
        Arc::make_mut(&mut self.rules).add(pattern, change)?;
        Ok(self)
    }

    /// Waits for running executions, up to `patience`; then gives up on the rest, and marks
    /// their outcomes unknown. To be called when no more requests come in: those that do are
    /// refused once the patience is over.
    ///
    /// # Cancellation
    /// Dropping the future leaves the executions running.
    pub async fn drain(&self, patience: Duration) -> Drained {
        self.state.executions.close();
        let mut abandoned = 0;
        if tokio::time::timeout(patience, self.state.executions.wait())
            .await
            .is_err()
        {
            abandoned = self.state.executions.len();
            tracing::warn!(abandoned, "executions did not end in time and are given up");
            self.state.abandon.cancel();
            // A store that does not answer now leaves leases to run out, which says the same.
            let _ = tokio::time::timeout(LAST_WORDS, self.state.executions.wait()).await;
        }
        Drained { abandoned }
    }

    /// How many executions are running.
    pub fn running(&self) -> usize {
        self.state.executions.len()
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.state.store
    }
}

impl<S> Clone for Layer<S> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            rules: Arc::clone(&self.rules),
        }
    }
}

impl<S> fmt::Debug for Layer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer")
            .field("dialect", &self.rules.dialect)
            .field("running", &self.state.executions.len())
            .finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").finish_non_exhaustive()
    }
}

impl<S: Store, I> tower_layer::Layer<I> for Layer<S> {
    type Service = Service<S, I>;

    fn layer(&self, inner: I) -> Self::Service {
        Service::new(self.clone(), inner)
    }
}
