//! How one route is guarded.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use semel_core::fingerprint::{Options, Rules};
use semel_core::key::{self, MAX_LENGTH};
use semel_core::{KeyScope, OnExpired, Policy, Stale};

use crate::meters::Meters;
use crate::outcome::{Ending, Table};
use crate::stored::Stored;

/// Largest request body that is read, unless a route says otherwise.
pub const MAX_REQUEST: usize = 8 << 20;

/// Largest response body that is stored, unless a route says otherwise.
pub const MAX_RESPONSE: usize = 1 << 20;

/// Longest execution, unless a route says otherwise: what is wedged must not renew its lease
/// for ever.
pub const EXECUTE_MAX: Duration = Duration::from_mins(1);

/// On whose behalf a Stripe client acts, under one and the same credential. Without these the
/// answer to a payment for one account would be given for a payment for another.
const STRIPE_ACCOUNT: [&str; 2] = ["stripe-account", "stripe-context"];

/// Whether a route's requests need a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyRule {
    /// Without a key: refused.
    #[default]
    Required,
    /// Without a key: passed on, unguarded, and counted.
    Optional,
    /// Passed on, unguarded, even with a key.
    Ignored,
}

/// What a request gets while another with the same key is being executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InFlight {
    /// 409, at once.
    #[default]
    Reject,
    /// The answer, if it comes soon enough; else 409.
    Wait {
        /// How soon.
        max: Duration,
    },
    /// 202, and where to ask how it goes.
    Accept,
}

/// How one route is guarded: made by [`Layer::route`](crate::Layer::route) with the layer's
/// defaults, and changed by what is called on it.
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
    pub(crate) outcomes: Table,
    pub(crate) stored: Stored,
}

/// What is wrong with a route. Found when the layer is built, never by a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not a method and a path.
    #[error("{0:?} is no route: write a method and a path, such as \"POST /payments/{{id}}\"")]
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
    /// A status that is none.
    #[error("{0} is no HTTP status")]
    Status(u16),
    /// A header that must not be replayed.
    #[error("the header {0:?} belongs to one connection, moment or caller and is never stored")]
    NeverStored(HeaderName),
    /// What is written is no header's name.
    #[error("{0:?} is no header name")]
    HeaderName(String),
    /// A key of that length cannot be.
    #[error("no key has {0} characters: 1 to {MAX_LENGTH} are possible")]
    MinLength(usize),
    /// A time of zero, or one that outlives what it belongs to.
    #[error("{0}")]
    Time(&'static str),
    /// A completer for what is not made of phases.
    #[error("no route of the operation {0:?} says that its handler is made of phases")]
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
            outcomes: Table::default(),
            stored: Stored::default(),
        }
    }
}

impl Route {
    /// The logical command, such as `create_payment`. Without it every exact path is an
    /// operation of its own. Several routes may share a name.
    pub fn operation(mut self, name: impl Into<Box<str>>) -> Self {
        self.operation = Some(name.into());
        self
    }

    /// Whether a key is needed. A route that is named needs one unless this says otherwise.
    pub fn key(mut self, rule: KeyRule) -> Self {
        self.key = rule;
        self
    }

    /// How far a key reaches. The dialect's custom, unless this says otherwise.
    pub fn key_scope(mut self, scope: KeyScope) -> Self {
        self.key_scope = Some(scope);
        self
    }

    /// The fewest characters of a key.
    pub fn min_length(mut self, characters: usize) -> Self {
        self.min_length = characters;
        self
    }

    /// What a request gets while another with its key is being executed.
    pub fn in_flight(mut self, answer: InFlight) -> Self {
        self.in_flight = answer;
        self
    }

    /// Leases and windows, all at once.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// How long an execution is trusted to be alive without a heartbeat.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.policy.lease = lease;
        self
    }

    /// The handler is made of [phases](crate::Operation::begin): where its process dies, the next
    /// attempt goes on at the last phase that is over, instead of leaving an unknown outcome.
    pub fn phases(mut self) -> Self {
        self.policy.stale = Stale::Resume;
        self.policy.recovery_points = true;
        self
    }

    /// How long an operation made of phases waits for somebody who resumes it. After that it is
    /// unknown like any other.
    pub fn resume_within(mut self, longest: Duration) -> Self {
        self.policy.resume_within = longest;
        self
    }

    /// How long a retry is replayed, body included.
    pub fn retention(mut self, window: Duration) -> Self {
        self.policy.windows.replay = window;
        self.policy.windows.body = window;
        self
    }

    /// What a retry after the replay window gets.
    pub fn on_expired(mut self, answer: OnExpired) -> Self {
        self.policy.on_expired = answer;
        self
    }

    /// How long an execution may take. After that it is given up, and its outcome unknown.
    pub fn execute_max(mut self, longest: Duration) -> Self {
        self.execute_max = longest;
        self
    }

    /// The largest request body in bytes, as it comes and after a content coding is undone.
    pub fn max_request(mut self, bytes: usize) -> Self {
        self.max_request = bytes;
        self
    }

    /// The largest response body in bytes that is stored. A larger one reaches its first
    /// caller, and a retry is told that it is not stored.
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// What else is part of what the client means, and what is not.
    pub fn fingerprint(mut self, options: Options) -> Self {
        self.fingerprint = options;
        self
    }

    /// What a status means on this route, where the application says nothing.
    ///
    /// # Errors
    /// [`Error::Status`].
    pub fn outcome(mut self, status: u16, ending: Ending) -> Result<Self, Error> {
        let code = StatusCode::from_u16(status).map_err(|_| Error::Status(status))?;
        self.outcomes.set(code, ending);
        Ok(self)
    }

    /// A response header to be stored beside the usual ones.
    ///
    /// # Errors
    /// [`Error::NeverStored`] for one that cannot mean anything in a replay.
    pub fn store_header(mut self, name: &str) -> Result<Self, Error> {
        let name: HeaderName = name
            .parse()
            .map_err(|_| Error::HeaderName(name.to_owned()))?;
        if !Stored::allowed(&name) {
            return Err(Error::NeverStored(name));
        }
        self.stored.names.push(name);
        Ok(self)
    }

    /// Also stores `Set-Cookie`: a replay then hands the first caller's cookie to whoever
    /// retries.
    pub fn store_set_cookie(mut self) -> Self {
        self.stored.set_cookie = true;
        self
    }

    /// The header lines of an answer that this route stores, in order: for whoever learns of an
    /// answer by another way than through the layer.
    pub fn stored_headers(&self, headers: &HeaderMap) -> Vec<(Box<str>, Bytes)> {
        self.stored.take(headers)
    }
}

/// What a route says, or says wrongly.
///
/// For closures that configure a route: some changes cannot fail, and some can.
pub trait IntoRoute {
    /// The route.
    ///
    /// # Errors
    /// What is wrong with it.
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

/// A [`Route`] that was found to be right, with what its requests need at hand.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) route: Route,
    pub(crate) rules: Rules,
    /// Headers that are part of what the client means: those that the route lists, then those
    /// that only the dialect of Stripe has.
    semantic: Vec<HeaderName>,
    listed: usize,
    pub(crate) meters: Meters,
    /// The path as it was written, with its parameters; none where no route was.
    pub(crate) path: Option<Box<str>>,
}

impl Guard {
    pub(crate) fn new(route: Route, label: &str) -> Result<Self, Error> {
        let windows = route.policy.windows;
        if route.policy.lease.is_zero() || route.execute_max.is_zero() {
            return Err(Error::Time("a lease or an execution of no time is none"));
        }
        if windows.replay.is_zero() {
            return Err(Error::Time("a replay window of no time protects nobody"));
        }
        if windows.body > windows.replay {
            return Err(Error::Time(
                "the body cannot be kept longer than its answer",
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

    /// Of a route that nothing was said of, and so nothing wrong.
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
            meters: Meters::new(route.operation.as_deref().unwrap_or(label)),
            path: label.split_once(' ').map(|(_, path)| path.into()),
            route,
        }
    }

    /// Headers that are part of what the client means, in a dialect.
    pub(crate) fn semantic(&self, dialect: key::Dialect) -> &[HeaderName] {
        match dialect {
            key::Dialect::Ietf { .. } => &self.semantic[..self.listed],
            key::Dialect::Stripe => &self.semantic,
        }
    }

    /// All headers that a fingerprint may be taken of, whatever the dialect.
    pub(crate) fn hashed(&self) -> impl Iterator<Item = &HeaderName> {
        static FRAMING: [HeaderName; 2] = [CONTENT_TYPE, CONTENT_ENCODING];
        FRAMING.iter().chain(&self.semantic)
    }

    /// How keys are read on this route.
    pub(crate) fn syntax(&self, dialect: key::Dialect) -> key::Syntax {
        let any = key::Syntax::new(dialect);
        // The length was found to be possible when the guard was made.
        any.with_min_length(self.route.min_length).unwrap_or(any)
    }

    /// How far keys reach on this route.
    pub(crate) fn scope(&self, dialect: key::Dialect) -> KeyScope {
        self.route.key_scope.unwrap_or(match dialect {
            key::Dialect::Ietf { .. } => KeyScope::Operation,
            key::Dialect::Stripe => KeyScope::Tenant,
        })
    }
}
