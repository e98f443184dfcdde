//! The accept loop of all servers. Not that of a framework, because a handler must be able to reset
//! its connection without sending a byte.

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
/// How long a stopping server waits for its tasks. A supervisor commonly kills after ten seconds.
const DRAIN: Duration = Duration::from_secs(5);
/// A pause when connections cannot be accepted, mostly because too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The tasks of a server, and whether it should stop.
#[derive(Clone, Default)]
pub(crate) struct Running {
    tasks: TaskTracker,
    stopping: CancellationToken,
    killed: CancellationToken,
}

impl Running {
    /// Runs `work` to its end even if the caller goes away: a client that hangs up must not stop a
    /// payment halfway. `None` where the server ended first.
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

    /// Runs `work` as a task of the server, until it or the server ends.
    pub(crate) async fn track(&self, work: impl Future<Output = ()>) {
        let work = self.tasks.track_future(work);
        self.killed.run_until_cancelled(work).await;
    }

    /// Ends when the server has been asked to stop.
    pub(crate) async fn stopping(&self) {
        self.stopping.cancelled().await;
    }
}

/// Marks a response that is not sent.
#[derive(Clone)]
struct Cut;

/// Resets the connection instead of answering.
pub(crate) fn cut() -> Response {
    let mut response = ().into_response();
    response.extensions_mut().insert(Cut);
    response
}

/// The error that ends a connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("cut on purpose")]
struct CutOnPurpose;

/// Serves until `shutdown` ends, then finishes requests under way for at most [`DRAIN`].
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
    // A client that connects from now on is refused, and knows that nothing was executed.
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
    // The semaphore is never closed.
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
    // Small answers to small requests: waiting to fill a packet costs time.
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
