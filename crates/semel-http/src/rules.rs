//! What a configuration decides: routes, tenant, dialect and headers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method};
use semel_core::OperationId;
use semel_core::fingerprint::Hosts;
use semel_core::key::{Dialect, KeyHasher};

use crate::home::Homes;
use crate::matching::{RouteLookup, RouteTable};
use crate::publication::Publication;
use crate::route::{Error, Guard, IntoRoute, KeyRule, OperationName, Route};
use crate::tenant::Tenant;

type TenantFunction = Arc<dyn Fn(&Parts) -> Tenant + Send + Sync>;

/// Replaced when a configuration is reloaded.
#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) dialect: Dialect,
    pub(crate) header: HeaderName,
    pub(crate) replayed: HeaderName,
    pub(crate) tenant: TenantFunction,
    /// Replaces keys by their hashes before they reach the store.
    pub(crate) key_hasher: Option<KeyHasher>,
    /// The prefix of the `Location` in 202 responses and unknown outcomes.
    pub(crate) status_path: Option<Box<str>>,
    /// The prefix of the `type` of a problem.
    pub(crate) error_base: Option<Box<str>>,
    /// The `Retry-After` of a dead-lettered record.
    pub(crate) dead_letter_retry_after: Duration,
    defaults: Route,
    /// For `POST` and `PATCH` without a route.
    unnamed: Arc<Guard>,
    routes: RouteTable,
    /// All routes, by method and path.
    pub(crate) listed: Vec<(Method, Arc<Guard>)>,
    /// How the tenant is found, as it is published.
    pub(crate) tenant_rule: Box<str>,
    pub(crate) publication: Publication,
    /// The regions, where there are several.
    pub(crate) homes: Option<Arc<dyn Homes>>,
}

/// A tenant function without a name: a change of it cannot be noticed.
const CUSTOM_TENANT: &str = "custom";

/// The `Retry-After` of a dead-lettered record, by default: an operator takes minutes, not seconds.
pub const DEAD_LETTER_RETRY_AFTER: Duration = Duration::from_mins(5);

/// The metrics label of requests without a route.
const UNNAMED: &str = "unnamed";

impl Rules {
    pub(crate) fn new<T: Into<Tenant>>(
        tenant: impl Fn(&Parts) -> T + Send + Sync + 'static,
    ) -> Self {
        let unnamed = Route {
            key: KeyRule::Optional,
            ..Route::default()
        };
        Self {
            dialect: Dialect::Ietf { lenient: true },
            header: HeaderName::from_static("idempotency-key"),
            replayed: HeaderName::from_static("idempotent-replayed"),
            tenant: Arc::new(move |head| tenant(head).into()),
            key_hasher: None,
            status_path: None,
            error_base: None,
            dead_letter_retry_after: DEAD_LETTER_RETRY_AFTER,
            defaults: Route::default(),
            unnamed: Arc::new(Guard::unchanged(unnamed, UNNAMED)),
            routes: RouteTable::default(),
            listed: Vec::new(),
            tenant_rule: CUSTOM_TENANT.into(),
            publication: Publication::default(),
            homes: None,
        }
    }

    /// Changes the defaults of routes that are added later, and of requests without a route.
    pub(crate) fn set_defaults<R: IntoRoute>(
        &mut self,
        change: impl FnOnce(Route) -> R,
    ) -> Result<(), Error> {
        let unnamed = change(self.unnamed.route.clone()).into_route()?;
        self.defaults = Route {
            key: self.defaults.key,
            operation: None,
            ..unnamed.clone()
        };
        self.unnamed = Arc::new(Guard::new(unnamed, UNNAMED)?);
        Ok(())
    }

    /// Guards a route.
    pub(crate) fn add<R: IntoRoute>(
        &mut self,
        pattern: &str,
        change: impl FnOnce(Route) -> R,
    ) -> Result<(), Error> {
        let (method, path) = parse_pattern(pattern)?;
        let route = change(self.defaults.clone()).into_route()?;
        self.check_name(&route, pattern)?;
        let guard = Arc::new(Guard::new(route, pattern)?);
        self.listed.push((method.clone(), Arc::clone(&guard)));
        self.routes.add(method, pattern, path, guard)
    }

    /// Changes which hosts are the same for routes that are added later, and for requests without
    /// a route.
    pub(crate) fn set_hosts(&mut self, hosts: &Hosts) {
        self.defaults.hosts = hosts.clone();
        self.unnamed = Arc::new(self.unnamed.with_hosts(hosts, UNNAMED));
    }

    /// Where a client asks for the status of an operation.
    pub(crate) fn status_of(&self, id: OperationId) -> Option<HeaderValue> {
        let prefix = self.status_path.as_deref()?;
        HeaderValue::from_maybe_shared(Bytes::from(format!("{prefix}{id}"))).ok()
    }

    /// The route of an operation made of phases.
    #[cfg(feature = "axum")]
    pub(crate) fn made_of_phases(&self, operation: &str) -> Option<&Arc<Guard>> {
        self.listed.iter().map(|(_, guard)| guard).find(|guard| {
            guard.route.operation.as_deref() == Some(operation)
                && guard.route.policy.resumes_within().is_some()
        })
    }

    /// Refuses a name that conflicts with that of another route.
    fn check_name(&self, route: &Route, pattern: &str) -> Result<(), Error> {
        let wrong = |problem: String| {
            let pattern = pattern.to_owned();
            Err(Error::Was { pattern, problem })
        };
        if route.was.is_some() && route.operation.is_none() {
            return wrong("name the operation as well; `was` is its earlier name".to_owned());
        }
        for (method, other) in &self.listed {
            let other_pattern = format!("{method} {}", other.path.as_deref().unwrap_or_default());
            let conflict = name(route, pattern)
                .zip(name(&other.route, &other_pattern))
                .and_then(|(new, other)| new.conflict(other));
            if let Some(problem) = conflict {
                return wrong(problem);
            }
        }
        Ok(())
    }

    /// The named operations of all routes; one that several routes share comes several times.
    pub(crate) fn names(&self) -> impl Iterator<Item = OperationName<'_>> {
        let routes = self.listed.iter().map(|(_, guard)| &guard.route);
        routes
            .filter(|route| route.operation.is_some())
            .filter_map(|route| name(route, ""))
    }

    /// The schema version that all routes of an operation have.
    pub(crate) fn schema_version(&self, operation: &str) -> u16 {
        let listed = self.listed.iter().map(|(_, guard)| guard);
        let named = listed.filter(|guard| guard.identity_name() == Some(operation));
        // A record without a name has its method and path for one.
        let by_path = operation.split_once(' ').and_then(|(method, path)| {
            let RouteLookup::Found(found) = self.find(&method.parse().ok()?, path) else {
                return None;
            };
            let guard = found.guard;
            guard.identity_name().is_none().then_some(guard)
        });
        let mut schemas = named.chain(by_path).map(|guard| guard.route.replay.schema);
        let first = schemas.next().unwrap_or(0);
        if schemas.all(|other| other == first) {
            first
        } else {
            0
        }
    }

    /// The guard of requests without a route.
    pub(crate) fn unnamed(&self) -> &Arc<Guard> {
        &self.unnamed
    }

    /// Whether the application is asked before the response of this operation is shown again. An
    /// operation that no route names may belong to any of them.
    #[cfg(feature = "status")]
    pub(crate) fn asks_before_replay(&self, operation: &str) -> bool {
        let listed = self.listed.iter().map(|(_, guard)| guard);
        let guards = listed.chain([&self.unnamed]);
        let is_named = |guard: &Guard| guard.identity_name() == Some(operation);
        let known = guards.clone().any(|guard| is_named(guard));
        guards
            .filter(|guard| !known || is_named(guard))
            .any(|guard| guard.route.replay.authorize.is_some())
    }

    /// The route of a request.
    pub(crate) fn find<'r, 'p>(&'r self, method: &Method, path: &'p str) -> RouteLookup<'r, 'p> {
        let is_guarded = *method == Method::POST || *method == Method::PATCH;
        let otherwise = is_guarded.then_some(&self.unnamed);
        self.routes.find(method, path, otherwise)
    }
}

/// The operation of a guarded route, where all its records have the same one.
fn name<'a>(route: &'a Route, pattern: &'a str) -> Option<OperationName<'a>> {
    let is_guarded = route.key != KeyRule::Ignored;
    let name = OperationName::new(route.operation.as_deref(), route.was.as_deref(), pattern);
    name.filter(|_| is_guarded)
}

fn parse_pattern(pattern: &str) -> Result<(Method, &str), Error> {
    let wrong = || Error::Pattern(pattern.to_owned());
    let (method, path) = pattern.split_once(' ').ok_or_else(wrong)?;
    if !path.starts_with('/') || method.chars().any(|c| !c.is_ascii_uppercase()) {
        return Err(wrong());
    }
    let method: Method = method.parse().map_err(|_| wrong())?;
    if method.is_safe() {
        return Err(Error::SafeMethod(method));
    }
    Ok((method, path))
}
