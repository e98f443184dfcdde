//! The layer: a store, the tenant of a request, and the routes.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use http::request::Parts;
use semel_core::Store;
use semel_core::fingerprint::Hosts;
use semel_core::key::{Dialect, KeyHasher};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::budget::ByteBudget;
use crate::cache::ReplayCache;
use crate::loaded_rules::LoadedRules;
use crate::route::{Error, IntoRoute, Route};
use crate::rules::Rules;
use crate::state::State;
use crate::tenant::Tenant;
use crate::waiters::Waiters;

/// Size of the replay cache, unless [`Builder::cache_bytes`] sets another.
pub const CACHE_BYTES: u64 = 64 << 20;

/// How many bytes of request bodies are held at a time, and how many of responses, unless
/// [`Builder::max_buffered`] sets another number.
pub const MAX_BUFFERED: usize = 256 << 20;

/// How long a client waits for a reservation before it is refused, and nothing executes.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client waits for its outcome to be recorded. Recording then goes on without it.
const RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the final writes may take after [`Layer::drain`] gave up on executions.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

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

/// A layer without a tenant function, which cannot wrap a service yet.
#[must_use = "call `tenant` to make a layer"]
pub struct Builder<S> {
    store: S,
    cache_bytes: u64,
    max_buffered: usize,
    store_timeout: Duration,
    record_timeout: Duration,
}

/// The result of [`Layer::drain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Executions that did not end in time: their outcomes are unknown.
    pub abandoned: usize,
}

impl Layer<()> {
    /// Starts with the store. [`Builder::tenant`] comes next.
    #[allow(
        clippy::new_ret_no_self,
        reason = "a layer needs a tenant function, and the types enforce it"
    )]
    pub fn new<S: Store>(store: S) -> Builder<S> {
        Builder {
            store,
            cache_bytes: CACHE_BYTES,
            max_buffered: MAX_BUFFERED,
            store_timeout: STORE_TIMEOUT,
            record_timeout: RECORD_TIMEOUT,
        }
    }
}

impl<S: Store> Builder<S> {
    /// The size of the replay cache in bytes; 0 turns it off.
    pub fn cache_bytes(self, cache_bytes: u64) -> Self {
        Self {
            cache_bytes,
            ..self
        }
    }

    /// How many bytes of guarded requests the layer holds at a time, and as many of their responses.
    ///
    /// Above it a request gets 503 `server_overloaded`, and nothing executes. While responses take
    /// more than half, no further request executes, and no response is read from the store; the
    /// other half is for responses of what is executing. A response that does not even fit there
    /// reaches its client, but is not stored, as one above `max_response`.
    pub fn max_buffered(self, max_buffered: usize) -> Self {
        Self {
            max_buffered,
            ..self
        }
    }

    /// How long a client waits for the store: `before` the execution, after which it gets 503
    /// `idempotency_store_unavailable` and nothing executes; and `after` it, after which it gets
    /// 503 `idempotency_outcome_pending` and the layer goes on recording.
    pub fn store_timeouts(self, before: Duration, after: Duration) -> Self {
        Self {
            store_timeout: before,
            record_timeout: after,
            ..self
        }
    }

    /// How the tenant of a request is found: see [`crate::tenant`]. The function returns a name in an
    /// `Option`, or a [`Tenant`].
    pub fn tenant<T: Into<Tenant>>(
        self,
        tenant: impl Fn(&Parts) -> T + Send + Sync + 'static,
    ) -> Layer<S> {
        let state = State {
            clock: self.store.clock(),
            store: self.store,
            cache: ReplayCache::new(self.cache_bytes),
            waiters: Waiters::default(),
            executions: TaskTracker::new(),
            abandon: CancellationToken::new(),
            owner: format!("process {}", std::process::id()).into(),
            loaded_rules: LoadedRules::default(),
            request_bytes: ByteBudget::new(self.max_buffered),
            response_bytes: ByteBudget::new(self.max_buffered),
            hashing: Arc::new(Semaphore::new(
                std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            )),
            store_timeout: self.store_timeout,
            record_timeout: self.record_timeout,
        };
        Layer {
            state: Arc::new(state),
            rules: Arc::new(Rules::new(tenant)),
        }
    }
}

impl<S: Store> Layer<S> {
    /// A layer without routes over the same store, cache and running executions: for reloading a
    /// configuration.
    pub fn with_new_rules<T: Into<Tenant>>(
        &self,
        tenant: impl Fn(&Parts) -> T + Send + Sync + 'static,
    ) -> Self {
        Self {
            state: Arc::clone(&self.state),
            rules: Arc::new(Rules::new(tenant)),
        }
    }

    /// How the tenant is found, in a few words that do not change, such as `header:x-account-id`: it
    /// is part of the [contract](Layer::publish), so that a change of it is noticed.
    pub fn tenant_rule(mut self, rule: impl Into<Box<str>>) -> Self {
        Arc::make_mut(&mut self.rules).tenant_rule = rule.into();
        self
    }

    /// The form of keys and refusals.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        Arc::make_mut(&mut self.rules).dialect = dialect;
        self
    }

    /// The header of the key; `Idempotency-Key` by default.
    pub fn header(mut self, name: HeaderName) -> Self {
        Arc::make_mut(&mut self.rules).header = name;
        self
    }

    /// The header that marks a replay; `Idempotent-Replayed` by default.
    pub fn replayed_header(mut self, name: HeaderName) -> Self {
        Arc::make_mut(&mut self.rules).replayed = name;
        self
    }

    /// Which hosts are the same target; by default each is its own, and a key that was used on one
    /// of them is misused on another. For requests without a route, and for routes that are added
    /// after this.
    pub fn hosts(mut self, hosts: &Hosts) -> Self {
        Arc::make_mut(&mut self.rules).set_hosts(hosts);
        self
    }

    /// Stores a keyed hash of each key in place of the key, so that the store never sees it. The key
    /// is echoed and handed to the handler as it was received.
    ///
    /// Records that were stored without the hasher, or with another secret, are not found any more,
    /// and their retries execute again: set it before the first request, and keep the secret.
    pub fn hash_keys(mut self, hasher: KeyHasher) -> Self {
        Arc::make_mut(&mut self.rules).key_hasher = Some(hasher);
        self
    }

    /// The path where clients ask for the status of an operation, such as `/.semel/operations/`: the
    /// id is appended. Without it, refusals have no `Location`.
    pub fn status_path(mut self, prefix: impl Into<Box<str>>) -> Self {
        Arc::make_mut(&mut self.rules).status_path = Some(prefix.into());
        self
    }

    /// The prefix of the `type` of a problem, such as `https://api.example/errors/`: the code is
    /// appended. Without it, the type is `about:blank`.
    pub fn error_base(mut self, prefix: impl Into<Box<str>>) -> Self {
        Arc::make_mut(&mut self.rules).error_base = Some(prefix.into());
        self
    }

    /// The `Retry-After` of a dead-lettered record, which waits for an operator; five minutes by
    /// default.
    pub fn dead_letter_retry_after(mut self, wait: Duration) -> Self {
        Arc::make_mut(&mut self.rules).dead_letter_retry_after = wait;
        self
    }

    /// Changes the settings that routes start with, if they are added after this, and those of
    /// `POST` and `PATCH` without a route, where a key is optional by default.
    ///
    /// # Panics
    /// If a setting is invalid; see [`try_defaults`](Layer::try_defaults).
    #[allow(
        clippy::panic,
        reason = "as in axum: an invalid route is found when the program starts"
    )]
    pub fn defaults<R: IntoRoute>(self, change: impl FnOnce(Route) -> R) -> Self {
        match self.try_defaults(change) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`defaults`](Layer::defaults), for settings from a configuration file.
    ///
    /// # Errors
    /// A setting is invalid.
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
    /// If the route is invalid; see [`try_route`](Layer::try_route).
    #[allow(
        clippy::panic,
        reason = "as in axum: an invalid route is found when the program starts"
    )]
    pub fn route<R: IntoRoute>(self, pattern: &str, change: impl FnOnce(Route) -> R) -> Self {
        match self.try_route(pattern, change) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`route`](Layer::route), for routes from a configuration file.
    ///
    /// # Errors
    /// The route is invalid.
    pub fn try_route<R: IntoRoute>(
        mut self,
        pattern: &str,
        change: impl FnOnce(Route) -> R,
    ) -> Result<Self, Error> {
        Arc::make_mut(&mut self.rules).add(pattern, change)?;
        Ok(self)
    }

    /// Waits for running executions, up to `timeout`; then gives up on the rest, and marks their
    /// outcomes unknown. Call it when the server has stopped accepting requests: those that still
    /// come in are refused once the timeout is over.
    ///
    /// # Cancellation
    /// Dropping the future leaves the executions running.
    pub async fn drain(&self, timeout: Duration) -> Drained {
        self.state.executions.close();
        let mut abandoned = 0;
        if tokio::time::timeout(timeout, self.state.executions.wait())
            .await
            .is_err()
        {
            abandoned = self.state.executions.len();
            tracing::warn!(abandoned, "executions did not end in time and are given up");
            self.state.abandon.cancel();
            // If the store does not answer, the leases run out, and the worker marks them unknown.
            let _ = tokio::time::timeout(FINAL_WRITE_TIMEOUT, self.state.executions.wait()).await;
        }
        Drained { abandoned }
    }

    /// The name that users see of the operation with this name in the store: the one that a route
    /// renamed it to, or else the same.
    pub fn shown_operation<'a>(&'a self, stored: &'a str) -> &'a str {
        let mut names = self.rules.names();
        names
            .find(|name| name.stored == stored)
            .map_or(stored, |name| name.shown)
    }

    /// The name in the store of the operation that users know by this name. An earlier name is
    /// accepted, too, unless another operation has it now.
    pub fn stored_operation<'a>(&'a self, shown: &'a str) -> &'a str {
        let mut names = self.rules.names();
        names
            .find(|name| name.shown == shown)
            .map_or(shown, |name| name.stored)
    }

    /// The schema version of the responses of an operation, by its name in the store; 0 if its route
    /// states none, or if its routes do not agree.
    pub fn schema_version(&self, stored: &str) -> u16 {
        self.rules.schema_version(stored)
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
