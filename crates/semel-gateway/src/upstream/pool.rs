//! Idle connections, the last used first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::UpstreamConfig;
use super::error::Error;
use super::link::Link;
use super::place::Place;

#[derive(Debug)]
pub(super) struct Pool {
    place: Place,
    connect_timeout: Duration,
    max_idle: usize,
    idle_timeout: Duration,
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    /// The oldest first.
    idle: Vec<(Instant, Box<Link>)>,
    /// Whether a task is there to close what gets too old.
    swept: bool,
}

impl Pool {
    pub(super) fn new(place: Place, config: &UpstreamConfig) -> Self {
        Self {
            place,
            connect_timeout: config.connect_timeout,
            max_idle: config.max_idle,
            idle_timeout: config.idle_timeout,
            shelf: Mutex::default(),
        }
    }

    /// The connection used last, if it is not too old. The longer one lay, the likelier it is
    /// being closed.
    pub(super) fn check_out(&self) -> Option<Box<Link>> {
        let mut kept = self.shelf();
        let (since, link) = kept.idle.pop()?;
        if since.elapsed() < self.idle_timeout {
            return Some(link);
        }
        // Those below are older still.
        kept.idle.clear();
        None
    }

    /// Takes back a connection whose exchange is over in both directions; any other is closed.
    pub(super) fn check_in(self: &Arc<Self>, link: Box<Link>) {
        let mut kept = self.shelf();
        if !link.is_idle() || kept.idle.len() >= self.max_idle {
            return;
        }
        kept.idle.push((Instant::now(), link));
        if !kept.swept
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            kept.swept = true;
            runtime.spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Opens a connection.
    pub(super) async fn connect(&self) -> Result<Box<Link>, Error> {
        let stream = timeout(self.connect_timeout, self.place.connect())
            .await
            .map_err(Error::nothing_sent)?
            .map_err(Error::nothing_sent)?;
        Ok(Box::new(
            Link::open(stream).await.map_err(Error::nothing_sent)?,
        ))
    }

    // No panic can happen under the lock, so a poisoned one is sound.
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what is too old; when to look again, if anything is left.
    fn evict(&self) -> Option<Instant> {
        let mut kept = self.shelf();
        let now = Instant::now();
        let old = kept
            .idle
            .partition_point(|(since, _)| *since + self.idle_timeout <= now);
        kept.idle.drain(..old);
        let next = kept
            .idle
            .first()
            .map(|(since, _)| *since + self.idle_timeout);
        kept.swept = next.is_some();
        next
    }
}

/// Closes connections that nobody uses, while there are any.
async fn sweep(pool: std::sync::Weak<Pool>) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.evict()) {
        sleep_until(next).await;
    }
}
