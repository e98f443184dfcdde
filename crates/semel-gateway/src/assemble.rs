//! From the configuration to the layer, and to what is behind it.

use std::sync::Arc;
use std::time::Duration;

use semel_core::Store;
use semel_http::{Layer, Route, route};

use crate::config::{Config, PolicyConfig, RouteConfig};
use crate::front::STATUS_PATH;
use crate::run::Error;
use crate::upstream::{ConfigError, Upstream, UpstreamConfig};
use crate::{tenant, trust};

/// The layer that a configuration describes, over this store.
///
/// # Errors
/// Where routes contradict each other in a way that the configuration does not catch.
pub fn guard<S: Store>(config: &Config, store: S) -> Result<Layer<S>, route::Error> {
    let tenant = tenant::resolver(&config.tenant);
    let layer = Layer::new(store)
        .cache_bytes(config.replay_cache)
        .tenant(move |head| tenant(head));
    apply(config, layer)
}

/// The same layer under another configuration: store, cache and running executions stay.
pub(crate) fn guard_anew<S: Store>(
    config: &Config,
    layer: &Layer<S>,
) -> Result<Layer<S>, route::Error> {
    let tenant = tenant::resolver(&config.tenant);
    apply(config, layer.rules_anew(move |head| tenant(head)))
}

fn apply<S: Store>(config: &Config, layer: Layer<S>) -> Result<Layer<S>, route::Error> {
    let layer = layer
        .dialect(config.dialect)
        .header(config.header.clone())
        .replayed_header(config.replayed_header.clone())
        .status_path(STATUS_PATH)
        .try_defaults(|route| policy(route, &config.policy))?;
    config.routes.iter().try_fold(layer, |layer, configured| {
        layer.try_route(&configured.pattern.to_string(), |route| {
            one(route, configured)
        })
    })
}

fn policy(route: Route, policy: &PolicyConfig) -> Route {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    route
        .policy(policy.guard.clone())
        .execute_max(policy.upstream_timeout)
        .max_request(bytes(policy.max_request))
        .max_response(bytes(policy.max_response))
}

fn one(route: Route, configured: &RouteConfig) -> Result<Route, route::Error> {
    let mut route = policy(route, &configured.policy)
        .key(configured.key)
        .min_length(configured.min_length)
        .in_flight(configured.in_flight)
        .fingerprint(configured.fingerprint.clone());
    if let Some(operation) = &configured.operation {
        route = route.operation(operation.clone());
    }
    if let Some(scope) = configured.key_scope {
        route = route.key_scope(scope);
    }
    if configured.store_set_cookie {
        route = route.store_set_cookie();
    }
    for (status, ending) in &configured.outcomes {
        route = route.outcome(status.as_u16(), *ending)?;
    }
    for name in &configured.store_headers {
        route = route.store_header(name.as_str())?;
    }
    Ok(route)
}

/// A client for the application of a configuration.
pub(crate) fn upstream(config: &Config) -> Result<Upstream, Error> {
    let wrong = |source| Error::Upstream {
        address: config.upstream.to_string(),
        source,
    };
    let uri = config
        .upstream
        .to_string()
        .parse()
        .map_err(|_| wrong(ConfigError::Host))?;
    let mut upstream = UpstreamConfig::new(uri);
    if config.upstream.is_secure() {
        upstream.tls = Some(Arc::new(trust::client().map_err(Error::Untrusted)?));
    }
    // A connection that does not come about must be given up before the execution is: then it
    // is known that nothing was sent.
    let shortest = config
        .routes
        .iter()
        .map(|route| route.policy.upstream_timeout)
        .fold(config.policy.upstream_timeout, Duration::min);
    upstream.connect_timeout = upstream.connect_timeout.min(shortest / 2);
    Upstream::new(&upstream).map_err(wrong)
}
