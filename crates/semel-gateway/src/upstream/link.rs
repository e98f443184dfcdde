//! One connection to the upstream.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::body::Outgoing;
use super::error::{Error, Stage};
use super::stream::{Meter, Stream};

/// A connection, used for one exchange at a time.
#[derive(Debug)]
pub(super) struct Link {
    sender: http1::SendRequest<Outgoing>,
    /// `None` once it ended without an answer.
    connection: Option<http1::Connection<TokioIo<Stream>, Outgoing>>,
    meter: Arc<Meter>,
    /// Whether the next read asks the kernel whether the upstream is still there.
    probes: bool,
    closed: bool,
}

/// A request that got no answer.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) error: Error,
    /// The request itself, where hyper never began with it.
    pub(super) request: Option<Box<Request<Outgoing>>>,
}

impl Link {
    pub(super) async fn open(stream: Stream) -> hyper::Result<Self> {
        let meter = Arc::clone(stream.meter());
        // Behind a TLS handshake come tickets that nobody asked for. On a connection this young
        // they are no sign that it is being closed.
        let probes = !stream.is_secure();
        let (sender, connection) = http1::Builder::new()
            .handshake(TokioIo::new(stream))
            .await?;
        Ok(Self {
            sender,
            connection: Some(connection),
            meter,
            probes,
            closed: false,
        })
    }

    /// Sends a request, and drives the connection until the head of the answer is there.
    pub(super) async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, Lost> {
        let before = self.meter.written();
        if self.probes {
            self.meter.probe_next_read();
        }
        self.probes = true;
        let mut answer = pin!(self.sender.try_send_request(request));
        let (connection, closed) = (&mut self.connection, &mut self.closed);
        let answered = poll_fn(|cx| {
            if !*closed && let Some(connection) = connection {
                *closed = Pin::new(connection).poll(cx).is_ready();
            }
            let answered = answer.as_mut().poll(&mut quiet(cx));
            if answered.is_pending() && *closed {
                // A connection found closed before it took the request keeps it. Dropped, it
                // gives it back.
                *connection = None;
                return answer.as_mut().poll(cx);
            }
            answered
        })
        .await;
        answered.map_err(|mut failed| {
            let request = failed.take_message().map(Box::new);
            let stage = if self.meter.written() == before {
                Stage::NothingSent
            } else {
                Stage::Sent
            };
            Lost {
                error: Error {
                    stage,
                    source: failed.into_error().into(),
                },
                request,
            }
        })
    }

    /// Moves the connection on. Ready once it is closed; then it must not be used again.
    pub(super) fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.closed
            && let Some(connection) = &mut self.connection
            && Pin::new(connection).poll(cx).is_pending()
        {
            return Poll::Pending;
        }
        self.closed = true;
        Poll::Ready(())
    }

    /// Whether the last exchange is over in both directions: hyper asks for the next request
    /// only when the one before was written to its end and its answer read to its end.
    pub(super) fn is_idle(&self) -> bool {
        !self.closed && self.sender.is_ready()
    }

    /// The socket, and what was read from it beyond the answer's head. `None` if the connection
    /// ended without an answer.
    pub(super) fn into_raw(self) -> Option<(Stream, Bytes)> {
        let parts = self.connection?.into_parts();
        Some((parts.io.into_inner(), parts.read_buf))
    }
}

/// A context for what only [`Link::poll_drive`] can make ready, in the same task and just
/// before: registering the task there would only wake it once more for nothing. Without budget
/// tokio says "pending" and counts on the waker, so then it gets the real one.
pub(super) fn quiet<'a>(cx: &Context<'a>) -> Context<'a> {
    if tokio::task::coop::has_budget_remaining() {
        Context::from_waker(Waker::noop())
    } else {
        Context::from_waker(cx.waker())
    }
}
