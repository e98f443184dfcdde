//! The settings of one route.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use semel_core::fingerprint::{Options, Rules};
use semel_core::key::{self, MAX_LENGTH};
use semel_core::{KeyScope, OnExpired, Policy, Stale};

use crate::metrics::RouteMetrics;
use crate::outcome::{OutcomeKind, StatusTable};
use crate::stored::StoredHeaders;

/// Largest request body that is read, by default.
pub const MAX_REQUEST: usize = 8 << 20;

/// Largest response body that is stored, by default.
pub const MAX_RESPONSE: usize = 1 << 20;

/// Longest execution, by default: a handler that hangs must not renew its lease for ever.
pub const EXECUTE_MAX: Duration = Duration::from_mins(1);

/// The account that a Stripe client acts for, under one credential. Without these headers in the
/// fingerprint, a payment for one account would be answered with that for another.
const STRIPE_ACCOUNT: [&str; 2] = ["stripe-account", "stripe-context"];

/// Whether a route's requests need a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyRule {
    /// A request without a key is refused.
    #[default]
    Required,
    /// A request without a key passes unguarded, and is counted.
    Optional,
    /// Every request passes unguarded, even with a key.
    Ignored,
}

/// The response to a request while another with the same key executes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InFlight {
    /// 409, at once.
    #[default]
    Reject,
    /// The stored response once it is there; 409 if that takes longer than `max`.
    Wait {
        /// The longest wait.
        max: Duration,
    },
    /// 202, with the place to ask for the status.
    Accept,
}

/// The settings of one route. [`Layer::route`](crate::Layer::route) creates it with the layer's
/// defaults, and its methods change them.
#[derive(Clone, Debug)]
pub struct Route {
    pub(crate) operation: Option<Box<str>>,
    pub(crate) key: KeyRule,
    pub(crate) key_scope: Option<KeyScope>,
    pub(crate) min_length: usize,
    pub(crate) in_flight: InFlight,
    pub(crate) policy: Policy,
    pub(crate) execute_max: Duration,
    pub(crate) max_request: usize,
    pub(crate) max_response: usize,
    pub(crate) fingerprint: Options,
    pub(crate) outcomes: StatusTable,
    pub(crate) stored: StoredHeaders,
}

/// Why a route is invalid. Found when the layer is built, never by a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not a method and a path.
    #[error("{0:?} is not a route: write a method and a path, such as \"POST /payments/{{id}}\"")]
    Pattern(String),
    /// The path cannot be matched.
    #[error("the path of {pattern:?} cannot be used: {reason}")]
    Path {
        /// As written.
        pattern: String,
        /// Why not.
        reason: String,
    },
    /// A method that is safe by definition.
    #[error("{0} requests change nothing, so there is nothing to guard")]
    SafeMethod(Method),
    /// Not an HTTP status.
    #[error("{0} is not an HTTP status")]
    Status(u16),
    /// A header that must not be replayed.
    #[error("the header {0:?} belongs to one connection, moment or caller and is never stored")]
    NeverStored(HeaderName),
    /// Not a header name.
    #[error("{0:?} is not a header name")]
    HeaderName(String),
    /// No key can have that length.
    #[error("no key has {0} characters: 1 to {MAX_LENGTH} are possible")]
    MinLength(usize),
    /// A time of zero, or one that outlives what it belongs to.
    #[error("{0}")]
    Time(&'static str),
    /// A [`ResumeJob`](crate::ResumeJob) for an operation without phases.
    #[error("no route of the operation {0:?} declares phases: call `phases` on its route")]
    NoPhases(Box<str>),
    /// The fingerprint's options are wrong.
    #[error(transparent)]
    Fingerprint(#[from] semel_core::fingerprint::Error),
}

impl Default for Route {
    fn default() -> Self {
        Self {
            operation: None,
            key: KeyRule::Required,
            key_scope: None,
            min_length: 1,
            in_flight: InFlight::default(),
            policy: Policy::default(),
            execute_max: EXECUTE_MAX,
            max_request: MAX_REQUEST,
            max_response: MAX_RESPONSE,
            fingerprint: Options::default(),
            outcomes: StatusTable::default(),
            stored: StoredHeaders::default(),
        }
    }
}

impl Route {
    /// The name of the operation, such as `create_payment`. Without it every path is its own
    /// operation. Several routes may share a name.
    pub fn operation(mut self, name: impl Into<Box<str>>) -> Self {
        self.operation = Some(name.into());
        self
    }

    /// Whether a key is required; it is by default.
    pub fn key(mut self, rule: KeyRule) -> Self {
        self.key = rule;
        self
    }

    /// The scope of a key; by default that of the dialect.
    pub fn key_scope(mut self, scope: KeyScope) -> Self {
        self.key_scope = Some(scope);
        self
    }

    /// The fewest characters of a key.
    pub fn min_length(mut self, characters: usize) -> Self {
        self.min_length = characters;
        self
    }

    /// The response to a request while another with its key executes.
    pub fn in_flight(mut self, answer: InFlight) -> Self {
        self.in_flight = answer;
        self
    }

    /// All leases and windows.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// How long an execution counts as alive without a heartbeat.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.policy.lease = lease;
        self
    }

    /// The handler is made of [phases](crate::Operation::begin): where its process dies, the next
    /// attempt resumes after the last phase that is over, instead of leaving an unknown outcome.
    pub fn phases(mut self) -> Self {
        self.policy.stale = Stale::Resume;
        self.policy.recovery_points = true;
        self
    }

    /// How long an operation made of phases can be resumed after its lease ran out. Then its outcome
    /// is unknown.
    pub fn resume_within(mut self, longest: Duration) -> Self {
        self.policy.resume_within = longest;
        self
    }

    /// How long a response is replayed, with its body.
    pub fn retention(mut self, window: Duration) -> Self {
        self.policy.windows.replay = window;
        self.policy.windows.body = window;
        self
    }

    /// The response to a retry after the replay window.
    pub fn on_expired(mut self, answer: OnExpired) -> Self {
        self.policy.on_expired = answer;
        self
    }

    /// How long an execution may take. Then it is stopped, and its outcome is unknown.
    pub fn execute_max(mut self, longest: Duration) -> Self {
        self.execute_max = longest;
        self
    }

    /// The largest request body in bytes, as received and after decoding.
    pub fn max_request(mut self, bytes: usize) -> Self {
        self.max_request = bytes;
        self
    }

    /// The largest response body in bytes that is stored. A larger one is sent to its first caller,
    /// and a retry gets 410 `idempotency_response_not_stored`.
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// What else is part of the fingerprint, and what is not.
    pub fn fingerprint(mut self, options: Options) -> Self {
        self.fingerprint = options;
        self
    }

    /// What a status means on this route, where the application sends no outcome.
    ///
    /// # Errors
    /// [`Error::Status`].
    pub fn outcome(mut self, status: u16, kind: OutcomeKind) -> Result<Self, Error> {
        let code = StatusCode::from_u16(status).map_err(|_| Error::Status(status))?;
        self.outcomes.set(code, kind);
        Ok(self)
    }

    /// Stores another response header.
    ///
    /// # Errors
    /// [`Error::NeverStored`] for a header that would be wrong in a replay.
    pub fn store_header(mut self, name: &str) -> Result<Self, Error> {
        let name: HeaderName = name
            .parse()
            .map_err(|_| Error::HeaderName(name.to_owned()))?;
        if !StoredHeaders::allowed(&name) {
            return Err(Error::NeverStored(name));
        }
        self.stored.names.push(name);
        Ok(self)
    }

    /// Also stores `Set-Cookie`: every retry then gets the first caller's cookie.
    pub fn store_set_cookie(mut self) -> Self {
        self.stored.set_cookie = true;
        self
    }

    /// The header lines of a response that this route stores, in order: for responses that do not
    /// pass the layer, as in reconciliation.
    pub fn stored_headers(&self, headers: &HeaderMap) -> Vec<(Box<str>, Bytes)> {
        self.stored.take(headers)
    }
}

/// A route, or why it is invalid.
///
/// For closures that configure a route: some of its methods can fail.
pub trait IntoRoute {
    /// The route.
    ///
    /// # Errors
    /// Why the route is invalid.
    fn into_route(self) -> Result<Route, Error>;
}

impl IntoRoute for Route {
    fn into_route(self) -> Result<Route, Error> {
        Ok(self)
    }
}

impl IntoRoute for Result<Route, Error> {
    fn into_route(self) -> Result<Route, Error> {
        self
    }
}

/// A valid [`Route`], with what its requests need prepared.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) route: Route,
    pub(crate) rules: Rules,
    /// Headers that are part of the fingerprint: those of the route, then those of the Stripe
    /// dialect.
    semantic: Vec<HeaderName>,
    listed: usize,
    pub(crate) metrics: RouteMetrics,
    /// The pattern of the path; `None` for requests without a route.
    pub(crate) path: Option<Box<str>>,
}

impl Guard {
    pub(crate) fn new(route: Route, label: &str) -> Result<Self, Error> {
        let windows = route.policy.windows;
        if route.policy.lease.is_zero() || route.execute_max.is_zero() {
            return Err(Error::Time(
                "the lease and the longest execution must be longer than zero",
            ));
        }
        if windows.replay.is_zero() {
            return Err(Error::Time("the replay window must be longer than zero"));
        }
        if windows.body > windows.replay {
            return Err(Error::Time(
                "the body cannot be kept longer than the rest of the response",
            ));
        }
        if route.min_length == 0 || route.min_length > MAX_LENGTH {
            return Err(Error::MinLength(route.min_length));
        }
        let rules = Rules::new(&route.fingerprint)?;
        let listed: Vec<HeaderName> = rules
            .headers()
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        Ok(Self::with(route, label, rules, listed))
    }

    /// For a route with default settings, which are valid.
    pub(crate) fn unchanged(route: Route, label: &str) -> Self {
        Self::with(route, label, Rules::default(), Vec::new())
    }

    fn with(route: Route, label: &str, rules: Rules, mut semantic: Vec<HeaderName>) -> Self {
        let listed = semantic.len();
        for name in STRIPE_ACCOUNT.map(HeaderName::from_static) {
            if !semantic.contains(&name) {
                semantic.push(name);
            }
        }
        Self {
            rules,
            semantic,
            listed,
            metrics: RouteMetrics::new(route.operation.as_deref().unwrap_or(label)),
            path: label.split_once(' ').map(|(_, path)| path.into()),
            route,
        }
    }

    /// Headers that are part of the fingerprint in a dialect.
    pub(crate) fn semantic(&self, dialect: key::Dialect) -> &[HeaderName] {
        match dialect {
            key::Dialect::Ietf { .. } => &self.semantic[..self.listed],
            key::Dialect::Stripe => &self.semantic,
        }
    }

    /// All headers that are part of the fingerprint in any dialect.
    pub(crate) fn hashed(&self) -> impl Iterator<Item = &HeaderName> {
        static FRAMING: [HeaderName; 2] = [CONTENT_TYPE, CONTENT_ENCODING];
        FRAMING.iter().chain(&self.semantic)
    }

    /// The syntax of keys on this route.
    pub(crate) fn syntax(&self, dialect: key::Dialect) -> key::Syntax {
        let any = key::Syntax::new(dialect);
        // `new` checked the length.
        any.with_min_length(self.route.min_length).unwrap_or(any)
    }

    /// The scope of keys on this route.
    pub(crate) fn scope(&self, dialect: key::Dialect) -> KeyScope {
        self.route.key_scope.unwrap_or(match dialect {
            key::Dialect::Ietf { .. } => KeyScope::Operation,
            key::Dialect::Stripe => KeyScope::Tenant,
        })
    }
}
