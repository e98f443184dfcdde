//! A client's socket: input passes the framing scanner, output has a stall timeout, and a close
//! lingers.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;

use super::Limits;
use super::activity::Activity;
use super::incoming::StallTimer;
use super::linger::{Discarded, Linger};
use crate::hygiene::scan::{Refused, RefusedPart, Scanner};
use crate::socket::Socket;

/// Replaces refused bytes in what hyper reads. A NUL is an error anywhere in a head, a chunk size
/// or a trailer, and the line ends make the parser run at once: in a head hyper responds 400 and
/// closes, in a body the service sees an error.
const POISON: &[u8] = b"\0\r\n\r\n";

/// How often a half-closed connection is checked for an error.
const HALF_CLOSED_CHECK: Duration = Duration::from_secs(1);

/// A plain or TLS connection to a client.
pub(super) type Stream = Socket<TcpStream, TlsStream<TcpStream>>;

impl Stream {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

/// The socket under hyper's connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    /// Read while the protocol was detected.
    buffered: BytesMut,
    /// HTTP/1 only.
    scanner: Option<Scanner>,
    /// Once something was refused: what hyper still reads in its place.
    poison: Option<&'static [u8]>,
    /// The client has closed its side.
    is_half_closed: bool,
    half_closed_check: StallTimer,
    /// Present once the last response is sent.
    linger: Option<Linger>,
    is_write_closed: bool,
    activity: Arc<Activity>,
    stall: StallTimer,
    /// Held as long as the socket, so that a connection which became a tunnel counts as well.
    _permit: OwnedSemaphorePermit,
}

impl Wire {
    pub(super) fn new(
        stream: Stream,
        buffered: BytesMut,
        scanned: bool,
        activity: Arc<Activity>,
        limits: &Limits,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            stream,
            buffered,
            scanner: scanned.then(|| Scanner::new(limits.max_header_bytes)),
            poison: None,
            is_half_closed: false,
            half_closed_check: StallTimer::new(HALF_CLOSED_CHECK),
            linger: None,
            is_write_closed: false,
            activity,
            stall: StallTimer::new(limits.write_stall_timeout),
            _permit: permit,
        }
    }

    fn put_poison(&mut self, poison: &'static [u8], buf: &mut ReadBuf<'_>) {
        let (now, later) = poison.split_at(poison.len().min(buf.remaining()));
        buf.put_slice(now);
        self.poison = Some(later);
    }

    fn refuse(&mut self, refused: &Refused, buf: &mut ReadBuf<'_>) {
        let poison = match refused.kind {
            RefusedPart::Head => POISON,
            RefusedPart::LargeHead { ending } => {
                self.activity.note_large_head(refused.request);
                ending
            }
            RefusedPart::Body => {
                self.activity.note_malformed_body(refused.request);
                POISON
            }
        };
        self.put_poison(poison, buf);
    }

    /// The end of the input. hyper drops a running request at the end of the input, because the
    /// client may be gone. But it may also have closed only its own side and be waiting for the
    /// response, so hyper sees the end when no request is running. TCP keep-alive finds out that
    /// the client is gone.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_complete = self.poison.is_some()
            || self
                .scanner
                .as_ref()
                .is_some_and(Scanner::is_between_requests);
        while is_complete && self.activity.is_busy() && !self.activity.is_raw() {
            std::task::ready!(self.half_closed_check.poll_expired(cx));
            self.half_closed_check.end();
            if let Some(error) = self.stream.tcp().take_error()? {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Whether the client may still be sending a request that is not read.
    fn has_unread_input(&self) -> bool {
        !self.is_half_closed
            && !self.activity.is_raw()
            && self
                .scanner
                .as_ref()
                .is_some_and(|scanner| self.poison.is_some() || !scanner.is_between_requests())
    }

    /// Discards input until the client closes, the request has arrived in full, or a limit is
    /// reached.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.has_unread_input() {
            let linger = self.linger.get_or_insert_with(Linger::new);
            let (scanner, poison) = (&mut self.scanner, &mut self.poison);
            let discarded = linger.poll_discard(cx, &mut self.stream, |bytes| {
                // What follows a malformed line cannot be followed any more.
                if poison.is_none()
                    && let Some(scanner) = scanner
                    && scanner.scan(bytes).is_err()
                {
                    *poison = Some(b"");
                }
            });
            match std::task::ready!(discarded)? {
                Discarded::Some => {}
                Discarded::TimeOver => break,
                Discarded::End => self.is_half_closed = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Times writes that make no progress.
    fn with_stall_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall.end();
            return written;
        }
        self.stall.poll_expired(cx).map(|()| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not read its response",
            ))
        })
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(poison) = this.poison {
            if poison.is_empty() {
                return this.poll_end(cx);
            }
            this.put_poison(poison, buf);
            return Poll::Ready(Ok(()));
        }
        if this.is_half_closed {
            return this.poll_end(cx);
        }
        let before = buf.filled().len();
        if this.buffered.is_empty() {
            std::task::ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        } else {
            let count = this.buffered.len().min(buf.remaining());
            buf.put_slice(&this.buffered[..count]);
            this.buffered.advance(count);
        }
        if buf.filled().len() == before && buf.remaining() > 0 {
            this.is_half_closed = true;
            return this.poll_end(cx);
        }
        if let Some(scanner) = &mut this.scanner
            && !this.activity.is_raw()
        {
            match scanner.scan(&buf.filled()[before..]) {
                Ok(()) => {
                    this.activity.note_head(scanner.in_head());
                    this.activity.note_complete(scanner.is_between_requests());
                }
                Err(refused) => {
                    buf.set_filled(before + refused.keep);
                    this.refuse(&refused, buf);
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.with_stall_timeout(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.with_stall_timeout(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.with_stall_timeout(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.is_write_closed {
            // A malformed request has no end to wait for.
            if this.poison.is_none() {
                std::task::ready!(this.poll_linger(cx))?;
            }
            let closed = Pin::new(&mut this.stream).poll_shutdown(cx);
            std::task::ready!(this.with_stall_timeout(cx, closed))?;
            this.is_write_closed = true;
            if let Some(linger) = &mut this.linger {
                linger.set_closed();
            }
        }
        this.poll_linger(cx)
    }
}
