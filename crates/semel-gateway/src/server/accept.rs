//! The accept loop and the way it ends.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Handler, Limits, ResponseBody, Tls, connection};

/// When the process has no file descriptor left, accepting again at once only burns the CPU
/// that would close some.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct Drained {
    /// Connections that were still busy when the time was up, and were cut off.
    pub cut: usize,
}

/// What all workers share.
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
        shutdown: &CancellationToken,
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
            shutdown.clone(),
            permit,
        )
    }
}

/// Serves connections from one listener until `shutdown` is called; then accepts no more,
/// lets running requests end, and returns after at most [`Limits::drain`].
///
/// # Cancellation
/// Dropping the future cuts off every connection at once.
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
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
            // Collects what has ended; disabled while there is nothing.
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, address)) => {
                // Accepted first, then admitted: a worker that waited here with a permit in its
                // hand, and no client, would keep it from another worker that has one. So at
                // most one connection per worker is open above the limit, and not served.
                let admitted = admit(
                    stream,
                    address,
                    &service,
                    &shared,
                    &shutdown,
                    &mut connections,
                );
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => break,
                    () = admitted => {}
                }
            }
            Err(error) => recover(&error).await,
        }
    }
    last_call(&listener, &service, &shared, &shutdown, &mut connections);
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
    shutdown: &CancellationToken,
    connections: &mut JoinSet<()>,
) where
    S: Handler<RB>,
    RB: ResponseBody,
{
    // Never closed while we hold it.
    if let Ok(permit) = Arc::clone(&shared.permits).acquire_owned().await {
        connections.spawn(shared.run(stream, address, service, shutdown, permit));
    }
}

/// Takes what the kernel has already accepted for us. With a listener per worker nobody else
/// would, and closing the socket would reset clients that may have sent their request.
fn last_call<S, RB>(
    listener: &TcpListener,
    service: &S,
    shared: &Shared,
    shutdown: &CancellationToken,
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
        connections.spawn(shared.run(stream, address, service, shutdown, permit));
    }
}

async fn recover(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    // The client's doing, and over.
    if matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    ) {
        return;
    }
    tracing::warn!(%error, "cannot accept connections, trying again");
    tokio::time::sleep(ACCEPT_BACKOFF).await;
}
