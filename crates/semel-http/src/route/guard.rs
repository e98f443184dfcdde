//! A route that is valid, ready for requests.

use http::HeaderName;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST};
use semel_core::KeyScope;
use semel_core::fingerprint::{Hosts, Rules};
use semel_core::key::{self, MAX_LENGTH};

use super::{Error, Route, command};
use crate::metrics::RouteMetrics;

/// The account that a Stripe client acts for, under one credential. Without these headers in the
/// fingerprint, a payment for one account would be answered with that for another.
const STRIPE_ACCOUNT: [&str; 2] = ["stripe-account", "stripe-context"];

/// A valid [`Route`], with what its requests need prepared.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) route: Route,
    /// The route's own fingerprint rules.
    options: Rules,
    /// What is part of the fingerprint, in the `ietf` and in the `stripe` dialect.
    ietf: RouteRules,
    stripe: RouteRules,
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
        route.replay.check()?;
        command::check(&route)?;
        let rules = Rules::new(&route.fingerprint)?;
        Ok(Self::with(route, label, rules))
    }

    /// For a route with default settings, which are valid.
    pub(crate) fn unchanged(route: Route, label: &str) -> Self {
        Self::with(route, label, Rules::default())
    }

    fn with(route: Route, label: &str, rules: Rules) -> Self {
        let options = rules;
        let mut rules = options.with_hosts(&route.hosts);
        if route.command.is_some() {
            rules = rules.for_command();
        }
        Self {
            options,
            stripe: rules.with_headers(&STRIPE_ACCOUNT).into(),
            ietf: rules.into(),
            metrics: RouteMetrics::new(route.operation.as_deref().unwrap_or(label)),
            path: label.split_once(' ').map(|(_, path)| path.into()),
            route,
        }
    }

    /// The same guard, with other hosts.
    pub(crate) fn with_hosts(&self, hosts: &Hosts, label: &str) -> Self {
        let route = Route {
            hosts: hosts.clone(),
            ..self.route.clone()
        };
        Self::with(route, label, self.options.clone())
    }

    /// The fingerprint rules in a dialect.
    pub(crate) fn rules(&self, dialect: key::Dialect) -> &RouteRules {
        match dialect {
            key::Dialect::Ietf { .. } => &self.ietf,
            key::Dialect::Stripe => &self.stripe,
        }
    }

    /// The operation in the identity of records; `None` where every path is its own operation.
    pub(crate) fn identity_name(&self) -> Option<&str> {
        let Route { was, operation, .. } = &self.route;
        was.as_deref().or(operation.as_deref())
    }

    /// All headers that are part of the fingerprint in any dialect.
    pub(crate) fn hashed(&self) -> impl Iterator<Item = &HeaderName> {
        static ALWAYS: [HeaderName; 3] = [CONTENT_TYPE, CONTENT_ENCODING, HOST];
        ALWAYS.iter().chain(&self.stripe.headers)
    }

    /// The syntax of keys on this route.
    pub(crate) fn syntax(&self, dialect: key::Dialect) -> key::Syntax {
        let any = key::Syntax::new(dialect).with_format(self.route.key_format);
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

/// Fingerprint rules, and the headers that they name.
#[derive(Debug)]
pub(crate) struct RouteRules {
    pub(crate) rules: Rules,
    pub(crate) headers: Vec<HeaderName>,
}

impl From<Rules> for RouteRules {
    fn from(rules: Rules) -> Self {
        let names = rules.headers().iter();
        Self {
            headers: names.filter_map(|name| name.parse().ok()).collect(),
            rules,
        }
    }
}
