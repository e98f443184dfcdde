//! One connection to the upstream, with a count of what was written to it.

use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::body::Outgoing;
use super::error::{Error, Stage};

/// A connection, used for one exchange at a time.
#[derive(Debug)]
pub(super) struct Link {
    sender: http1::SendRequest<Outgoing>,
    /// `None` once it ended without an answer.
    connection: Option<http1::Connection<TokioIo<Counted>, Outgoing>>,
    meter: Arc<Meter>,
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
    pub(super) async fn open(stream: TcpStream) -> hyper::Result<Self> {
        let meter = Arc::new(Meter::default());
        let io = TokioIo::new(Counted {
            stream,
            meter: Arc::clone(&meter),
        });
        let (sender, connection) = http1::Builder::new().handshake(io).await?;
        Ok(Self {
            sender,
            connection: Some(connection),
            meter,
            closed: false,
        })
    }

    /// Sends a request, and drives the connection until the head of the answer is there.
    pub(super) async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, Lost> {
        let before = self.meter.written.load(Relaxed);
        self.meter.probe.store(true, Relaxed);
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
            let stage = if self.meter.written.load(Relaxed) == before {
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
    pub(super) fn into_raw(self) -> Option<(TcpStream, Bytes)> {
        let parts = self.connection?.into_parts();
        Some((parts.io.into_inner().stream, parts.read_buf))
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

#[derive(Debug, Default)]
struct Meter {
    /// Bytes the kernel took, over the connection's life.
    written: AtomicU64,
    /// The next read asks the kernel, whatever the runtime believes.
    probe: AtomicBool,
}

/// A socket that counts.
#[derive(Debug)]
struct Counted {
    stream: TcpStream,
    meter: Arc<Meter>,
}

impl Counted {
    fn count(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = written {
            self.meter.written.fetch_add(*count as u64, Relaxed);
        }
    }

    /// Whether the upstream has closed or said something unasked. The runtime learns of it only
    /// at its next look at the poller; a request sent until then is a request whose outcome
    /// nobody knows. One system call buys that back.
    fn is_stale(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        match SockRef::from(&self.stream).peek(&mut byte) {
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // hyper reads before it writes, so this comes before the request's first byte. Nothing
        // read is the end of the stream, and hyper gives the request back.
        if self.meter.probe.swap(false, Relaxed) && self.is_stale() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.count(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.count(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
