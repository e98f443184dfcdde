//! The accept loop and its shutdown.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::connection::{self, Stop};
use super::{Handler, Limits, ResponseBody, Tls};

/// When the process is out of file descriptors, accepting again at once only burns the CPU time
/// that closing connections needs.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct Drained {
    /// Connections that were still busy at the end of the drain and were closed.
    pub cut: usize,
}

/// State shared by all workers.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) limits: Arc<Limits>,
    pub(super) tls: Option<Tls>,
    pub(super) permits: Arc<Semaphore>,
}

impl Shared {
    pub(super) fn new(limits: Limits, tls: Option<Tls>) -> Self {
        let permits = limits.max_connections.min(Semaphore::MAX_PERMITS);
        Self {
            limits: Arc::new(limits),
            tls,
            permits: Arc::new(Semaphore::new(permits)),
        }
    }

    /// Serves one connection that has its permit.
    fn run<S, RB>(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        service: &S,
        stop: &Stop,
        permit: OwnedSemaphorePermit,
    ) -> impl Future<Output = ()> + Send + use<S, RB>
    where
        S: Handler<RB>,
        RB: ResponseBody,
    {
        connection::run(
            stream,
            address,
            service.clone(),
            Arc::clone(&self.limits),
            self.tls.clone(),
            stop.clone(),
            permit,
        )
    }
}

/// Serves connections from one listener until `shutdown` is cancelled and [`Limits::drain_delay`]
/// has passed; then stops accepting, waits for running requests, and returns after at most
/// [`Limits::drain`].
///
/// # Cancellation
/// Dropping the future closes every connection at once.
pub async fn serve<S, RB>(
    listener: TcpListener,
    service: S,
    limits: Limits,
    tls: Option<Tls>,
    shutdown: CancellationToken,
) -> Drained
where
    S: Handler<RB>,
    RB: ResponseBody,
{
    serve_shared(listener, service, Shared::new(limits, tls), shutdown).await
}

pub(super) async fn serve_shared<S, RB>(
    listener: TcpListener,
    service: S,
    shared: Shared,
    shutdown: CancellationToken,
) -> Drained
where
    S: Handler<RB>,
    RB: ResponseBody,
{
    let mut connections = JoinSet::new();
    let stop = Stop {
        asked: shutdown,
        now: CancellationToken::new(),
    };
    let mut stopping = pin!(async {
        stop.asked.cancelled().await;
        let delay = shared.limits.drain_delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    });
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stopping => break,
            accepted = listener.accept() => accepted,
            // Collects finished connections; disabled while there are none.
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, address)) => {
                // Accept first, then acquire the permit: a worker that held a permit while it waits
                // for a client would keep it from another worker that has one. So at most one
                // connection per worker is open above the limit, and it is not served yet.
                let admitted = admit(stream, address, &service, &shared, &stop, &mut connections);
                tokio::select! {
                    biased;
                    () = &mut stopping => break,
                    () = admitted => {}
                }
            }
            Err(error) => recover(&error).await,
        }
    }
    stop.now.cancel();
    accept_backlog(&listener, &service, &shared, &stop, &mut connections);
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    let ended = timeout(shared.limits.drain, all).await;
    let cut = if ended.is_ok() { 0 } else { connections.len() };
    connections.shutdown().await;
    Drained { cut }
}

async fn admit<S, RB>(
    stream: TcpStream,
    address: SocketAddr,
    service: &S,
    shared: &Shared,
    stop: &Stop,
    connections: &mut JoinSet<()>,
) where
    S: Handler<RB>,
    RB: ResponseBody,
{
    // The semaphore is never closed.
    if let Ok(permit) = Arc::clone(&shared.permits).acquire_owned().await {
        connections.spawn(shared.run(stream, address, service, stop, permit));
    }
}

/// Accepts what is already in the kernel's backlog. Each worker has its own listener, so no other
/// worker can take these connections, and closing the socket would reset clients that may have sent
/// their request.
fn accept_backlog<S, RB>(
    listener: &TcpListener,
    service: &S,
    shared: &Shared,
    stop: &Stop,
    connections: &mut JoinSet<()>,
) where
    S: Handler<RB>,
    RB: ResponseBody,
{
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    while let Poll::Ready(Ok((stream, address))) = listener.poll_accept(&mut cx) {
        let Ok(permit) = Arc::clone(&shared.permits).try_acquire_owned() else {
            return;
        };
        connections.spawn(shared.run(stream, address, service, stop, permit));
    }
}

async fn recover(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    // The client closed the connection; the listener is fine.
    if matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    ) {
        return;
    }
    tracing::warn!(%error, "cannot accept connections; retrying");
    tokio::time::sleep(ACCEPT_BACKOFF).await;
}
