//! The settings of one route.

mod command;
mod guard;
mod name;
mod replay;
mod settings;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, StatusCode};
use semel_core::fingerprint::{Hosts, Options};
use semel_core::key::{self, MAX_LENGTH};
use semel_core::{KeyScope, OnExpired, Policy, Stale};

use crate::outcome::{OutcomeKind, StatusTable};
use crate::stored::StoredHeaders;

pub(crate) use command::{CommandParser, CommandSource, ParsedCommand, Target};
pub(crate) use guard::{Guard, RouteRules};
pub use name::OperationName;
pub use replay::{OnSchemaChange, ReplayMode, Retry};
pub(crate) use replay::{ReplayCall, ReplayRules, ReplaySource};
pub use settings::{InFlight, KeyRule, WeakKeys};

/// Largest request body that is read, by default.
pub const MAX_REQUEST: usize = 8 << 20;

/// Largest response body that is stored, by default.
pub const MAX_RESPONSE: usize = 1 << 20;

/// Longest execution, by default: a handler that hangs must not renew its lease for ever.
pub const EXECUTE_MAX: Duration = Duration::from_mins(1);

/// The settings of one route. [`Layer::route`](crate::Layer::route) creates it with the layer's
/// defaults, and its methods change them.
#[derive(Clone, Debug)]
pub struct Route {
    pub(crate) match_exactly: bool,
    pub(crate) operation: Option<Box<str>>,
    pub(crate) was: Option<Box<str>>,
    pub(crate) key: KeyRule,
    pub(crate) key_scope: Option<KeyScope>,
    pub(crate) min_length: usize,
    pub(crate) key_format: key::Format,
    pub(crate) weak_keys: WeakKeys,
    pub(crate) in_flight: InFlight,
    pub(crate) reconciled: bool,
    pub(crate) policy: Policy,
    pub(crate) execute_max: Duration,
    pub(crate) max_request: usize,
    pub(crate) max_response: usize,
    pub(crate) fingerprint: Options,
    /// As the layer says.
    pub(crate) hosts: Hosts,
    pub(crate) outcomes: StatusTable,
    pub(crate) stored: StoredHeaders,
    pub(crate) replay: ReplayRules,
    pub(crate) command: Option<CommandParser>,
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
    /// Not a class of HTTP statuses.
    #[error("{0}xx is not a class of statuses: 2xx to 5xx are possible")]
    StatusClass(u16),
    /// A header that must not be replayed.
    #[error("the header {0:?} belongs to one connection, moment or caller and is never stored")]
    NeverStored(HeaderName),
    /// Not a header name.
    #[error("{0:?} is not a header name")]
    HeaderName(String),
    /// No key can have that length.
    #[error("no key has {0} characters: 1 to {MAX_LENGTH} are possible")]
    MinLength(usize),
    /// [`Route::was`] without a name, or with one that another operation uses.
    #[error("`was` of {pattern:?}: {problem}")]
    Was {
        /// The route.
        pattern: String,
        /// What is wrong.
        problem: String,
    },
    /// A time of zero, or one that outlives what it belongs to.
    #[error("{0}")]
    Time(&'static str),
    /// Settings that exclude or need each other.
    #[error("{0}")]
    Settings(&'static str),
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
            match_exactly: false,
            operation: None,
            was: None,
            key: KeyRule::Required,
            key_scope: None,
            min_length: 1,
            key_format: key::Format::default(),
            weak_keys: WeakKeys::default(),
            in_flight: InFlight::default(),
            reconciled: false,
            policy: Policy::default(),
            execute_max: EXECUTE_MAX,
            max_request: MAX_REQUEST,
            max_response: MAX_RESPONSE,
            fingerprint: Options::default(),
            hosts: Hosts::default(),
            outcomes: StatusTable::default(),
            stored: StoredHeaders::default(),
            replay: ReplayRules::default(),
            command: None,
        }
    }
}

impl Route {
    /// Matches only paths that are spelled as the pattern is, byte for byte. By default `/Payments/`
    /// and `/%70ayments` are `/payments`, because an application may route them so: see
    /// [`semel_core::path`]. For applications that distinguish such paths, and for parameters that
    /// contain `%2F`. A spelling that does not match is a request without a route.
    pub fn match_exactly(mut self) -> Self {
        self.match_exactly = true;
        self
    }

    /// The name of the operation, such as `create_payment`. Without it every path is its own
    /// operation. Several routes may share a name.
    pub fn operation(mut self, name: impl Into<Box<str>>) -> Self {
        self.operation = Some(name.into());
        self
    }

    /// The name that the operation was first published under. Its records keep that name, so that a
    /// retry after the renaming finds its record; metrics and logs have the new one. For a route that had no
    /// name, it is the method and the path: `was("POST /payments")`.
    pub fn was(mut self, name: impl Into<Box<str>>) -> Self {
        self.was = Some(name.into());
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

    /// What a key has to look like.
    pub fn key_format(mut self, format: key::Format) -> Self {
        self.key_format = format;
        self
    }

    /// What happens to a request with a weak key.
    pub fn weak_keys(mut self, answer: WeakKeys) -> Self {
        self.weak_keys = answer;
        self
    }

    /// The response to a request while another with its key executes.
    pub fn in_flight(mut self, answer: InFlight) -> Self {
        self.in_flight = answer;
        self
    }

    /// A worker reconciles unknown outcomes of this operation, so the refusal of a retry says so.
    pub fn reconciled(mut self) -> Self {
        self.reconciled = true;
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

    /// What all statuses of a class mean: 4 for 400 to 499. A status that
    /// [`outcome`](Self::outcome) names keeps its own meaning.
    ///
    /// # Errors
    /// [`Error::StatusClass`].
    pub fn outcome_class(mut self, class: u16, kind: OutcomeKind) -> Result<Self, Error> {
        if !(2..=5).contains(&class) {
            return Err(Error::StatusClass(class));
        }
        self.outcomes.set_class(class, kind);
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
