//! Limits on client connections.

use std::time::Duration;

use crate::server;

/// Limits on client connections.
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
}

impl Default for Limits {
    /// The server's defaults; [`server::Limits`] explains them.
    fn default() -> Self {
        Self {
            max_connections: server::Limits::MAX_CONNECTIONS,
            header_timeout: server::Limits::HEADER_TIMEOUT,
            idle_timeout: server::Limits::IDLE_TIMEOUT,
            body_idle_timeout: server::Limits::BODY_IDLE_TIMEOUT,
        }
    }
}
