//! What a configuration decides: routes, tenant, dialect and headers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method};
use semel_core::OperationId;
use semel_core::key::{Dialect, KeyHasher};

use crate::publication::Publication;
use crate::route::{Error, Guard, IntoRoute, KeyRule, Route};
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
    routes: HashMap<Method, matchit::Router<Arc<Guard>>>,
    /// All routes, by method and path.
    pub(crate) listed: Vec<(Method, Arc<Guard>)>,
    /// How the tenant is found, as it is published.
    pub(crate) tenant_rule: Box<str>,
    pub(crate) publication: Publication,
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
            routes: HashMap::new(),
            listed: Vec::new(),
            tenant_rule: CUSTOM_TENANT.into(),
            publication: Publication::default(),
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
        self.check_was(&route, pattern)?;
        let guard = Arc::new(Guard::new(route, pattern)?);
        self.listed.push((method.clone(), Arc::clone(&guard)));
        let routes = self.routes.entry(method).or_default();
        routes.insert(path, guard).map_err(|reason| Error::Path {
            pattern: pattern.to_owned(),
            reason: reason.to_string(),
        })
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

    /// Two operations under one identity would take each other's records for their own.
    fn check_was(&self, route: &Route, pattern: &str) -> Result<(), Error> {
        let wrong = |problem: String| {
            let pattern = pattern.to_owned();
            Err(Error::Was { pattern, problem })
        };
        if route.was.is_some() && route.operation.is_none() {
            return wrong("name the operation as well; `was` is its earlier name".to_owned());
        }
        let identity = route.was.as_deref().or(route.operation.as_deref());
        for (_, other) in &self.listed {
            let shares = identity.is_some() && other.identity_name() == identity;
            if shares && other.route.operation != route.operation {
                let name = identity.unwrap_or_default();
                let other = other.route.operation.as_deref().unwrap_or_default();
                return wrong(format!("the operation {other:?} uses the name {name:?}"));
            }
        }
        Ok(())
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

    /// The route of a request, if it is guarded.
    pub(crate) fn guard(&self, method: &Method, path: &str) -> Option<&Arc<Guard>> {
        let by_route = self
            .routes
            .get(method)
            .and_then(|routes| routes.at(path).ok())
            .map(|found| found.value);
        by_route.or_else(|| {
            (*method == Method::POST || *method == Method::PATCH).then_some(&self.unnamed)
        })
    }
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
