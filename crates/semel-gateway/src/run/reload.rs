//! Reloads the configuration while the process runs.

use std::sync::Arc;

use semel_core::Store;
use semel_http::Layer;

use crate::assemble::rebuild_layer;
use crate::config::{Config, ReconcileConfig, Source};
use crate::service::{CurrentLayer, InternalRoutes};
use crate::webhooks;

/// Loads the configuration again and replaces the layer and the webhook sources. An invalid
/// configuration is logged and changes nothing.
pub(super) fn reload<S: Store>(
    source: &Source,
    running: &Config,
    layer: &Layer<S>,
    current: &CurrentLayer<S>,
    internal: &InternalRoutes<S>,
) {
    let config = match source.load() {
        Ok(config) => config,
        Err(report) => {
            tracing::error!(
                "the new configuration is invalid; the running one stays in use: {report}"
            );
            return;
        }
    };
    for key in needs_restart(running, &config) {
        tracing::warn!(key, "this change needs a restart to take effect");
    }
    match rebuild_layer(&config, layer) {
        Ok(rebuilt) => {
            current.store(Arc::new(rebuilt));
            internal.sources.store(Arc::new(webhooks::sources(&config)));
            tracing::info!(routes = config.routes.len(), "configuration reloaded");
        }
        Err(error) => {
            tracing::error!(%error, "the new configuration is invalid; the running one stays in use");
        }
    }
}

/// The changed keys that a running process cannot apply.
fn needs_restart(running: &Config, loaded: &Config) -> Vec<&'static str> {
    let admin = |config: &Config| config.admin.listen.address();
    [
        ("listen", running.listen != loaded.listen),
        ("upstream", running.upstream != loaded.upstream),
        ("store", running.store != loaded.store),
        ("cache", running.cache != loaded.cache),
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
        ("outbox", running.outbox != loaded.outbox),
        ("telemetry", running.otlp != loaded.otlp),
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
