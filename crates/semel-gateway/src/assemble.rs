//! Builds the layer and the upstream client from the configuration.

use std::sync::Arc;
use std::time::Duration;

use semel_core::Store;
use semel_http::{Layer, Route, route};

use crate::config::{Config, PolicyConfig, RouteConfig, StatusPattern};
use crate::regions::Regions;
use crate::run::Error;
use crate::server::Limits;
use crate::service::STATUS_PATH;
use crate::upstream::{ConfigError, Upstream, UpstreamConfig};
use crate::{client_tls, reconcile, replay, tenant};

/// Builds the layer that `config` describes, over `store`.
///
/// # Errors
/// If routes conflict in a way that loading the configuration does not catch, or a server that a
/// replay asks cannot be used.
pub fn build_layer<S: Store>(config: &Config, store: S) -> Result<Layer<S>, reconcile::Error> {
    let tenant = tenant::resolver(&config.tenant);
    let layer = Layer::new(store)
        .cache_bytes(config.replay_cache)
        .max_buffered(usize::try_from(config.limits.max_buffered).unwrap_or(usize::MAX))
        .tenant(move |head| tenant(head));
    apply(config, layer)
}

/// The same layer with the rules of another configuration. Store, cache and running executions
/// are kept.
pub(crate) fn rebuild_layer<S: Store>(
    config: &Config,
    layer: &Layer<S>,
) -> Result<Layer<S>, reconcile::Error> {
    let tenant = tenant::resolver(&config.tenant);
    apply(config, layer.with_new_rules(move |head| tenant(head)))
}

fn apply<S: Store>(config: &Config, layer: Layer<S>) -> Result<Layer<S>, reconcile::Error> {
    let layer = match &config.key_hasher {
        Some(hasher) => layer.hash_keys(hasher.clone()),
        None => layer,
    };
    let layer = layer
        .tenant_rule(tenant::rule(&config.tenant))
        .dialect(config.dialect)
        .header(config.header.clone())
        .replayed_header(config.replayed_header.clone())
        .hosts(&config.hosts)
        .status_path(STATUS_PATH)
        .error_base(config.error_base.clone())
        .dead_letter_retry_after(config.dead_letter_retry_after)
        .try_defaults(|route| apply_policy(route, &config.policy))?;
    let layer = match &config.region {
        Some(regions) => layer.homes(Arc::<Regions>::clone(regions)),
        None => layer,
    };
    let mut tls = None;
    config.routes.iter().try_fold(layer, |layer, configured| {
        let replay = replay::settings(config, configured, &mut tls)?;
        let is_reconciled = reconcile::is_reconciled(config, configured);
        let layer = layer.try_route(&configured.pattern.to_string(), |route| {
            let route = configure(route, configured).map(replay)?;
            Ok(if is_reconciled {
                route.reconciled()
            } else {
                route
            })
        });
        Ok(layer?)
    })
}

fn apply_policy(route: Route, policy: &PolicyConfig) -> Route {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    route
        .policy(policy.guard.clone())
        .execute_max(policy.upstream_timeout)
        .max_request(bytes(policy.max_request))
        .max_response(bytes(policy.max_response))
}

fn configure(route: Route, configured: &RouteConfig) -> Result<Route, route::Error> {
    let mut route = apply_policy(route, &configured.policy)
        .key(configured.key)
        .min_length(configured.min_length)
        .key_format(configured.key_format)
        .weak_keys(configured.weak_keys)
        .in_flight(configured.in_flight)
        .fingerprint(configured.fingerprint.clone());
    if let Some(operation) = &configured.operation {
        route = route.operation(operation.clone());
    }
    if configured.match_exactly {
        route = route.match_exactly();
    }
    if let Some(was) = &configured.was {
        route = route.was(was.clone());
    }
    if let Some(scope) = configured.key_scope {
        route = route.key_scope(scope);
    }
    if configured.store_set_cookie {
        route = route.store_set_cookie();
    }
    for (status, ending) in &configured.outcomes {
        route = match status {
            StatusPattern::Exact(status) => route.outcome(status.as_u16(), *ending)?,
            StatusPattern::Class(class) => route.outcome_class(*class, *ending)?,
        };
    }
    for name in &configured.store_headers {
        route = route.store_header(name.as_str())?;
    }
    Ok(route)
}

/// Builds the client for the configured upstream.
pub(crate) fn upstream(config: &Config) -> Result<Upstream, Error> {
    let address = config.upstream.as_ref().ok_or(Error::NoUpstream)?;
    let invalid = |source| Error::Upstream {
        address: address.to_string(),
        source,
    };
    let uri = address
        .to_string()
        .parse()
        .map_err(|_| invalid(ConfigError::Host))?;
    let mut upstream = UpstreamConfig::new(uri);
    upstream.guarded_idle = config.limits.upstream_idle;
    upstream.trusted_proxies.clone_from(&config.trusted_proxies);
    if address.is_secure() {
        upstream.tls = Some(Arc::new(
            client_tls::with_native_roots().map_err(Error::RootCertificates)?,
        ));
    }
    // A connect attempt must time out before the execution does: then it is certain that nothing
    // was sent.
    let shortest = config
        .routes
        .iter()
        .map(|route| route.policy.upstream_timeout)
        .fold(config.policy.upstream_timeout, Duration::min);
    upstream.connect_timeout = upstream.connect_timeout.min(shortest / 2);
    Upstream::new(&upstream).map_err(invalid)
}

/// The limits of the listener for clients.
pub(crate) fn limits(config: &Config) -> Limits {
    let mut limits = Limits::default();
    limits.max_connections = config.limits.max_connections;
    limits.header_timeout = config.limits.header_timeout;
    limits.idle_timeout = config.limits.idle_timeout;
    limits.body_idle_timeout = config.limits.body_idle_timeout;
    limits.drain_delay = config.drain_delay;
    limits.drain = config.drain;
    limits
}

/// The limits of the admin listener.
pub(crate) fn admin_limits(config: &Config) -> Limits {
    let mut limits = limits(config);
    if config.reuse_port {
        // It closes at once, so that the gateway that takes over answers the probes.
        limits.drain_delay = Duration::ZERO;
    }
    limits
}
