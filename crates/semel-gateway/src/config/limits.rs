//! `[limits]`.

use std::time::Duration;

use super::table::Table;
use super::units::format_duration;
use crate::server;
use crate::upstream::UpstreamConfig;

/// Maximum of `max_connections`: more than the ports of one address.
const MAX_CONNECTIONS: usize = 1_000_000;

/// Maximum of `max_buffered`: more than a machine has.
const MAX_BUFFERED: u64 = 1 << 40;

/// Limits on the connections to clients and to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent connections on the gateway listener.
    pub max_connections: usize,
    /// How long the head of a request may take to arrive.
    pub header_timeout: Duration,
    /// How long a connection may be open without a request.
    pub idle_timeout: Duration,
    /// How long a body may pause.
    pub body_idle_timeout: Duration,
    /// How long an upstream connection may have been idle before a guarded request uses it.
    pub upstream_idle: Duration,
    /// How many bytes of guarded requests are held at a time, and as many of responses.
    pub max_buffered: u64,
}

impl Default for Limits {
    /// The server's defaults; [`server::Limits`] explains them.
    fn default() -> Self {
        Self {
            max_connections: server::Limits::MAX_CONNECTIONS,
            header_timeout: server::Limits::HEADER_TIMEOUT,
            idle_timeout: server::Limits::IDLE_TIMEOUT,
            body_idle_timeout: server::Limits::BODY_IDLE_TIMEOUT,
            upstream_idle: UpstreamConfig::GUARDED_IDLE,
            max_buffered: semel_http::MAX_BUFFERED as u64,
        }
    }
}

/// Reads `[limits]`. `max_body` is the largest `max_request` or `max_response` of all routes.
pub(super) fn read(mut table: Table<'_>, max_body: u64) -> Limits {
    let mut limits = Limits::default();
    if let Some(max) = table.integer("max_connections", 1..=MAX_CONNECTIONS) {
        limits.max_connections = max.into_inner();
    }
    for (key, timeout) in [
        ("header_timeout", &mut limits.header_timeout),
        ("idle_timeout", &mut limits.idle_timeout),
        ("body_idle_timeout", &mut limits.body_idle_timeout),
    ] {
        if let Some(duration) = table.nonzero_duration(key) {
            *timeout = duration.into_inner();
        }
    }
    let upstream_idle = table.parsed("upstream_idle", |text| {
        let kept = UpstreamConfig::IDLE_TIMEOUT;
        match super::duration(text) {
            Ok(idle) if idle > kept => Err(format!(
                "`upstream_idle` must be at most {}: the gateway closes idle connections then",
                format_duration(kept)
            )),
            other => other,
        }
    });
    if let Some(idle) = upstream_idle {
        limits.upstream_idle = idle.into_inner();
    }
    if let Some(max) = table.size("max_buffered", MAX_BUFFERED) {
        if *max.get_ref() < max_body {
            let message = format!(
                "`max_buffered` is smaller than a `max_request` or `max_response` ({max_body} \
                 bytes): such a body would never fit"
            );
            table.problems.at(max.span(), message);
        }
        limits.max_buffered = max.into_inner();
    }
    table.finish();
    limits
}
