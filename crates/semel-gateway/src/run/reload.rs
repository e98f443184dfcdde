//! The configuration, read again while the process runs.

use std::sync::Arc;

use semel_core::Store;
use semel_http::Layer;

use crate::assemble::guard_anew;
use crate::config::{Config, ReconcileConfig, Source};
use crate::front::{Current, Own};
use crate::webhooks;

/// Reads the configuration again. What is wrong is logged, and everything stays as it was.
pub(super) fn reload<S: Store>(
    source: &Source,
    running: &Config,
    layer: &Layer<S>,
    current: &Current<S>,
    own: &Own<S>,
) {
    let config = match source.load() {
        Ok(config) => config,
        Err(report) => {
            tracing::error!("the configuration is refused, and the running one stays: {report}");
            return;
        }
    };
    for key in needs_restart(running, &config) {
        tracing::warn!(
            key,
            "changed in the configuration; it takes effect at the next start"
        );
    }
    match guard_anew(&config, layer) {
        Ok(anew) => {
            current.store(Arc::new(anew));
            own.sources.store(Arc::new(webhooks::sources(&config)));
            tracing::info!(
                routes = config.routes.len(),
                "the configuration was read again"
            );
        }
        Err(error) => {
            tracing::error!(%error, "the configuration is refused, and the running one stays");
        }
    }
}

/// What a running process cannot change.
fn needs_restart(running: &Config, read: &Config) -> Vec<&'static str> {
    let admin = |config: &Config| config.admin.listen.address();
    [
        ("listen", running.listen != read.listen),
        ("upstream", running.upstream != read.upstream),
        ("store", running.store != read.store),
        ("cache", running.cache != read.cache),
        ("replay_cache", running.replay_cache != read.replay_cache),
        ("admin.listen", admin(running) != admin(read)),
        ("admin.token", running.admin.token != read.admin.token),
        (
            "admin.viewer_token",
            running.admin.viewer_token != read.admin.viewer_token,
        ),
        (
            "admin.secure_cookie",
            running.admin.secure_cookie != read.admin.secure_cookie,
        ),
        ("tls", running.tls != read.tls),
        ("limits", running.limits != read.limits),
        ("route.reconcile", reconciled(running).ne(reconciled(read))),
        ("outbox", running.outbox != read.outbox),
        ("telemetry", running.otlp != read.otlp),
        ("policy.drain", running.drain != read.drain),
        (
            "policy.upstream_timeout, for requests that are not guarded",
            running.policy.upstream_timeout != read.policy.upstream_timeout,
        ),
    ]
    .into_iter()
    .filter_map(|(key, differs)| differs.then_some(key))
    .collect()
}

/// How each operation is found out about.
fn reconciled(config: &Config) -> impl Iterator<Item = (&Option<Box<str>>, &ReconcileConfig)> {
    let routes = config.routes.iter();
    routes.filter_map(|route| Some((&route.operation, route.reconcile.as_ref()?)))
}
