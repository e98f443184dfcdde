//! Idle connections, the last used first.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::uri::Authority;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use super::UpstreamConfig;
use super::error::Error;
use super::link::Link;

/// The port of `http://` without one.
const HTTP_PORT: u16 = 80;

#[derive(Debug)]
pub(super) struct Pool {
    place: Place,
    connect_timeout: Duration,
    max_idle: usize,
    idle_timeout: Duration,
    shelf: Mutex<Shelf>,
}

#[derive(Debug)]
enum Place {
    /// Known without a lookup, which would take a thread.
    Address(SocketAddr),
    Name(String, u16),
}

#[derive(Debug, Default)]
struct Shelf {
    /// The oldest first.
    idle: Vec<(Instant, Box<Link>)>,
    /// Whether a task is there to close what gets too old.
    swept: bool,
}

impl Pool {
    pub(super) fn new(authority: &Authority, config: &UpstreamConfig) -> Self {
        let port = authority.port_u16().unwrap_or(HTTP_PORT);
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let place = match host.parse::<IpAddr>() {
            Ok(ip) => Place::Address(SocketAddr::new(ip, port)),
            Err(_) => Place::Name(host.to_owned(), port),
        };
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
        let connecting = async {
            let stream = match &self.place {
                Place::Address(address) => TcpStream::connect(address).await?,
                Place::Name(host, port) => TcpStream::connect((host.as_str(), *port)).await?,
            };
            stream.set_nodelay(true)?;
            Ok::<_, io::Error>(stream)
        };
        let stream = timeout(self.connect_timeout, connecting)
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
