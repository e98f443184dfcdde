//! What a configuration decides: routes, tenant, dialect and headers.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method};
use semel_core::OperationId;
use semel_core::key::Dialect;

use crate::route::{Error, Guard, IntoRoute, KeyRule, Route};

type Tenant = Arc<dyn Fn(&Parts) -> Option<Box<str>> + Send + Sync>;

/// Replaced when a configuration is reloaded.
#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) dialect: Dialect,
    pub(crate) header: HeaderName,
    pub(crate) replayed: HeaderName,
    pub(crate) tenant: Tenant,
    /// The prefix of the `Location` in 202 responses and unknown outcomes.
    pub(crate) status_path: Option<Box<str>>,
    defaults: Route,
    /// For `POST` and `PATCH` without a route.
    unnamed: Arc<Guard>,
    routes: HashMap<Method, matchit::Router<Arc<Guard>>>,
    /// All routes, to find one by its operation.
    #[cfg(feature = "axum")]
    named: Vec<Arc<Guard>>,
}

/// The metrics label of requests without a route.
const UNNAMED: &str = "unnamed";

impl Rules {
    pub(crate) fn new<T: Into<Box<str>>>(
        tenant: impl Fn(&Parts) -> Option<T> + Send + Sync + 'static,
    ) -> Self {
        let unnamed = Route {
            key: KeyRule::Optional,
            ..Route::default()
        };
        Self {
            dialect: Dialect::Ietf { lenient: true },
            header: HeaderName::from_static("idempotency-key"),
            replayed: HeaderName::from_static("idempotent-replayed"),
            tenant: Arc::new(move |head| tenant(head).map(Into::into)),
            status_path: None,
            defaults: Route::default(),
            unnamed: Arc::new(Guard::unchanged(unnamed, UNNAMED)),
            routes: HashMap::new(),
            #[cfg(feature = "axum")]
            named: Vec::new(),
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
        let guard = Arc::new(Guard::new(route, pattern)?);
        #[cfg(feature = "axum")]
        self.named.push(Arc::clone(&guard));
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
        self.named.iter().find(|guard| {
            guard.route.operation.as_deref() == Some(operation)
                && guard.route.policy.resumes_within().is_some()
        })
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
