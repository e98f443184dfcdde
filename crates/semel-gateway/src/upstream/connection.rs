//! One connection to the upstream, with a count of the bytes written for each request.

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

/// An HTTP/1.1 connection, used for one exchange at a time.
#[derive(Debug)]
pub(super) struct UpstreamConnection {
    sender: http1::SendRequest<Outgoing>,
    /// `None` once it closed without a response.
    connection: Option<http1::Connection<TokioIo<Stream>, Outgoing>>,
    meter: Arc<Meter>,
    /// Whether the next request first checks with the kernel that the upstream has not closed.
    probes: bool,
    closed: bool,
}

/// A request that received no response.
#[derive(Debug)]
pub(super) struct SendFailure {
    pub(super) error: Error,
    /// The request itself, if hyper never started to send it.
    pub(super) request: Option<Box<Request<Outgoing>>>,
}

impl UpstreamConnection {
    pub(super) async fn open(stream: Stream) -> hyper::Result<Self> {
        let meter = Arc::clone(stream.meter());
        // After a TLS handshake the server sends session tickets unasked. Readable bytes on a new
        // connection therefore do not mean that the server is closing it.
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

    /// Sends a request, and drives the connection until the response head arrives.
    pub(super) async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, SendFailure> {
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
            let answered = answer.as_mut().poll(&mut without_wakeup(cx));
            if answered.is_pending() && *closed {
                // A connection that closed before it took the request still holds it; dropping the
                // connection returns the request.
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
            SendFailure {
                error: Error {
                    stage,
                    source: failed.into_error().into(),
                },
                request,
            }
        })
    }

    /// Polls the connection. Ready once it is closed; then it must not be used again.
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

    /// Whether the last exchange is over in both directions: hyper accepts the next request only
    /// when the previous one is fully written and its response fully read.
    pub(super) fn is_idle(&self) -> bool {
        !self.closed && self.sender.is_ready()
    }

    /// The socket, and the bytes read beyond the response head. `None` if the connection closed
    /// without a response.
    pub(super) fn into_raw(self) -> Option<(Stream, Bytes)> {
        let parts = self.connection?.into_parts();
        Some((parts.io.into_inner(), parts.read_buf))
    }
}

/// A context for futures that only [`UpstreamConnection::poll_drive`] makes ready, in the same task
/// and just before: registering the real waker there would only cause a second, useless wake-up.
/// When the task's coop budget is used up, tokio returns "pending" and relies on the waker, so the
/// real one is used.
pub(super) fn without_wakeup<'a>(cx: &Context<'a>) -> Context<'a> {
    if tokio::task::coop::has_budget_remaining() {
        Context::from_waker(Waker::noop())
    } else {
        Context::from_waker(cx.waker())
    }
}
