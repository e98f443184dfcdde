//! Reloads the configuration while the process runs.

use std::sync::Arc;

use semel_core::Store;
use semel_http::Layer;

use super::Error;
use crate::Role;
use crate::assemble::rebuild_layer;
use crate::config::{Config, ReconcileConfig, Source};
use crate::service::{CurrentLayer, InternalRoutes};
use crate::webhooks;

/// Loads the configuration again, publishes its contracts, and replaces the layer and the webhook
/// sources. A configuration that is invalid or refused is logged and changes nothing.
pub(super) async fn reload<S: Store>(
    source: &Source,
    role: Role,
    running: &Config,
    layer: &Layer<S>,
    current: &CurrentLayer<S>,
    internal: &InternalRoutes<S>,
) {
    let mut config = match source.load_for(role) {
        Ok(config) => config,
        Err(report) => {
            tracing::error!(
                "the new configuration is invalid; the running one stays in use: {report}"
            );
            return;
        }
    };
    config.tenant.keep_fetched_keys(&running.tenant);
    for key in needs_restart(running, &config) {
        tracing::warn!(key, "this change needs a restart to take effect");
    }
    // Requests go to the running upstream until the restart, and so do those of replays.
    config.upstream.clone_from(&running.upstream);
    // With another hash the store's records would not be found, and their retries execute again.
    config.key_hasher.clone_from(&running.key_hasher);
    // A change of the list, or of how a key is found, needs the consent of all regions.
    if let Some(problem) = regions_changed(running, &config) {
        tracing::error!("{problem}; the running configuration stays in use");
        return;
    }
    config.region.clone_from(&running.region);
    let rebuilt = match rebuild_layer(&config, layer) {
        Ok(rebuilt) => rebuilt
            .publish()
            .await
            .map(|()| rebuilt)
            .map_err(Error::from),
        Err(error) => Err(error.into()),
    };
    match rebuilt {
        Ok(rebuilt) => {
            current.store(Arc::new(rebuilt));
            for warning in config.warnings() {
                tracing::warn!("{warning}");
            }
            internal.sources.store(Arc::new(webhooks::sources(&config)));
            tracing::info!(routes = config.routes.len(), "configuration reloaded");
        }
        Err(error) => {
            tracing::error!(%error, "the new configuration is refused; the running one stays in use");
        }
    }
}

/// Why a running process cannot take over a configuration whose keys have other homes.
fn regions_changed(running: &Config, loaded: &Config) -> Option<&'static str> {
    let is_same = match (&running.region, &loaded.region) {
        (Some(running), Some(loaded)) => running.is_same_list(loaded),
        (running, loaded) => running.is_none() && loaded.is_none(),
    };
    (!is_same).then_some(
        "with several regions, [region] and the settings by which a key is found (`header`, \
         `dialect`, [tenant] from, `key_storage`) change at a restart only",
    )
}

/// The changed keys that a running process cannot apply.
fn needs_restart(running: &Config, loaded: &Config) -> Vec<&'static str> {
    let admin = |config: &Config| config.admin.listen.address();
    [
        ("listen", running.listen != loaded.listen),
        ("reuse_port", running.reuse_port != loaded.reuse_port),
        ("upstream", running.upstream != loaded.upstream),
        (
            "trusted_proxies",
            running.trusted_proxies != loaded.trusted_proxies,
        ),
        (
            "region",
            match (&running.region, &loaded.region) {
                (Some(running), Some(loaded)) => !running.is_same(loaded),
                (running, loaded) => running.is_some() || loaded.is_some(),
            },
        ),
        ("store", running.store != loaded.store),
        ("cache", running.cache != loaded.cache),
        ("key_storage", running.key_hasher != loaded.key_hasher),
        ("replay_cache", running.replay_cache != loaded.replay_cache),
        ("admin.listen", admin(running) != admin(loaded)),
        ("admin.token", running.admin.token != loaded.admin.token),
        (
            "admin.viewer_token",
            running.admin.viewer_token != loaded.admin.viewer_token,
        ),
        (
            "admin.secure_cookie",
            running.admin.secure_cookie != loaded.admin.secure_cookie,
        ),
        ("tls", running.tls != loaded.tls),
        ("limits", running.limits != loaded.limits),
        (
            "route.reconcile",
            reconcile_rules(running).ne(reconcile_rules(loaded)),
        ),
        (
            "worker.dead_letter_unreconciled",
            running.dead_letter_unreconciled != loaded.dead_letter_unreconciled,
        ),
        ("outbox", running.outbox != loaded.outbox),
        ("telemetry", running.otlp != loaded.otlp),
        (
            "policy.drain_delay",
            running.drain_delay != loaded.drain_delay,
        ),
        ("policy.drain", running.drain != loaded.drain),
        (
            "policy.upstream_timeout, for requests that are not guarded",
            running.policy.upstream_timeout != loaded.policy.upstream_timeout,
        ),
    ]
    .into_iter()
    .filter_map(|(key, differs)| differs.then_some(key))
    .collect()
}

/// The reconcile rules by operation.
fn reconcile_rules(config: &Config) -> impl Iterator<Item = (&Option<Box<str>>, &ReconcileConfig)> {
    let routes = config.routes.iter();
    routes.filter_map(|route| Some((&route.operation, route.reconcile.as_ref()?)))
}
