//! The accept loop of both servers. A loop of our own, because a handler must be able to cut its
//! connection without a byte of an answer, and frameworks are built so that it cannot.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

/// Below the usual limit of 1024 open files, with room for databases and outgoing calls.
const MAX_CONNECTIONS: usize = 768;
/// How long a connection may take to send the head of a request, or lie idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a stopping server waits for what it has begun. A supervisor commonly kills after ten
/// seconds; it should not have to.
const DRAIN: Duration = Duration::from_secs(5);
/// A pause when connections cannot be accepted, which is mostly for want of open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a server has begun, and whether it should end.
#[derive(Clone, Default)]
pub(crate) struct Running {
    tasks: TaskTracker,
    stopping: CancellationToken,
    killed: CancellationToken,
}

impl Running {
    /// Performs `work` to its end, whether or not the caller stays to hear of it: a client that
    /// hangs up must not stop a payment halfway. `None` where the server ended first.
    pub(crate) async fn detach<T, F>(&self, work: F) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let killed = self.killed.clone();
        let task = self
            .tasks
            .spawn(async move { killed.run_until_cancelled(work).await });
        task.await.ok().flatten()
    }

    /// Performs `work` as part of what the server has begun, to its end or the server's.
    pub(crate) async fn detach_unheard(&self, work: impl Future<Output = ()>) {
        let work = self.tasks.track_future(work);
        self.killed.run_until_cancelled(work).await;
    }

    /// Ends when the server has been asked to stop.
    pub(crate) async fn stopping(&self) {
        self.stopping.cancelled().await;
    }
}

/// Marks a response of which not a byte is sent.
#[derive(Clone)]
struct Cut;

/// Instead of an answer: the connection is reset.
pub(crate) fn cut() -> Response {
    let mut response = ().into_response();
    response.extensions_mut().insert(Cut);
    response
}

/// Why a connection without an answer ended.
#[derive(Debug, thiserror::Error)]
#[error("cut on purpose")]
struct CutOnPurpose;

/// Serves until `shutdown` ends, then finishes what is under way, but no longer than [`DRAIN`].
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    running: Running,
    shutdown: impl Future<Output = ()> + Send,
) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let Some((stream, slot)) = accepted else {
            continue;
        };
        let (router, connection) = (router.clone(), running.clone());
        let killed = running.killed.clone();
        running.tasks.spawn(async move {
            let _held = slot;
            killed
                .run_until_cancelled(converse(stream, router, connection))
                .await;
        });
    }
    // Whoever connects from now on is refused, and knows that nothing was done.
    drop(listener);
    running.stopping.cancel();
    running.tasks.close();
    if tokio::time::timeout(DRAIN, running.tasks.wait())
        .await
        .is_err()
    {
        tracing::warn!("stopping with requests unanswered");
        running.killed.cancel();
        running.tasks.wait().await;
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    // Closed only if somebody closes it, which nobody does.
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, slot)),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn converse(stream: TcpStream, router: Router, running: Running) {
    // Small answers to small requests: waiting to fill a packet only costs time.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let answering = router.clone().call(request);
        async move {
            let response = answering
                .await
                .unwrap_or_else(|never: Infallible| match never {});
            match response.extensions().get::<Cut>() {
                Some(Cut) => Err(CutOnPurpose),
                None => Ok(response),
            }
        }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        () = running.stopping() => None,
    };
    let ended = if let Some(ended) = ended {
        ended
    } else {
        Pin::new(&mut connection).graceful_shutdown();
        (&mut connection).await
    };
    match ended {
        // hyper ends the connection where the service fails, and has written nothing then.
        // Without lingering the close is a reset, as from a machine that went away.
        Err(error) if error.is_user() => {
            let stream = connection.into_parts().io.into_inner();
            if let Err(error) = stream.set_zero_linger() {
                tracing::debug!(%error, "closed instead of reset");
            }
        }
        Err(error) => tracing::debug!(%error, "a connection broke"),
        Ok(()) => {}
    }
}
