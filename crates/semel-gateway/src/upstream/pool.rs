//! Idle connections; the most recently used is taken first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::UpstreamConfig;
use super::address::UpstreamAddress;
use super::connection::UpstreamConnection;
use super::error::Error;

#[derive(Debug)]
pub(super) struct Pool {
    address: UpstreamAddress,
    connect_timeout: Duration,
    max_idle: usize,
    idle_timeout: Duration,
    idle: Mutex<IdleConnections>,
}

#[derive(Debug, Default)]
struct IdleConnections {
    /// Oldest first.
    stack: Vec<(Instant, Box<UpstreamConnection>)>,
    /// Whether a task is running that closes connections when they get too old.
    sweeping: bool,
}

impl Pool {
    pub(super) fn new(address: UpstreamAddress, config: &UpstreamConfig) -> Self {
        Self {
            address,
            connect_timeout: config.connect_timeout,
            max_idle: config.max_idle,
            idle_timeout: config.idle_timeout,
            idle: Mutex::default(),
        }
    }

    /// The most recently used connection, if it was idle for less than `max_idle`: the longer a
    /// connection was idle, the likelier the server is closing it.
    pub(super) fn check_out(&self, max_idle: Duration) -> Option<Box<UpstreamConnection>> {
        let mut kept = self.idle();
        // The remaining ones are even older. `sweep` closes them; until then a request that may use
        // them can come.
        let (_, connection) = kept
            .stack
            .pop_if(|(since, _)| since.elapsed() < max_idle.min(self.idle_timeout))?;
        Some(connection)
    }

    /// Keeps a connection whose exchange is over in both directions; closes any other.
    pub(super) fn check_in(self: &Arc<Self>, connection: Box<UpstreamConnection>) {
        let mut kept = self.idle();
        if !connection.is_idle() || kept.stack.len() >= self.max_idle {
            return;
        }
        kept.stack.push((Instant::now(), connection));
        if !kept.sweeping
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            kept.sweeping = true;
            runtime.spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Opens a connection.
    pub(super) async fn connect(&self) -> Result<Box<UpstreamConnection>, Error> {
        let stream = timeout(self.connect_timeout, self.address.connect())
            .await
            .map_err(Error::nothing_sent)?
            .map_err(Error::nothing_sent)?;
        Ok(Box::new(
            UpstreamConnection::open(stream)
                .await
                .map_err(Error::nothing_sent)?,
        ))
    }

    // No code panics under this lock, so a poisoned state is valid.
    fn idle(&self) -> MutexGuard<'_, IdleConnections> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes connections that are too old. Returns when the next one will be, if any is left.
    fn evict(&self) -> Option<Instant> {
        let mut kept = self.idle();
        let now = Instant::now();
        let old = kept
            .stack
            .partition_point(|(since, _)| *since + self.idle_timeout <= now);
        kept.stack.drain(..old);
        let next = kept
            .stack
            .first()
            .map(|(since, _)| *since + self.idle_timeout);
        kept.sweeping = next.is_some();
        next
    }
}

/// Closes idle connections as they get too old; ends when none is left.
async fn sweep(pool: std::sync::Weak<Pool>) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.evict()) {
        sleep_until(next).await;
    }
}
