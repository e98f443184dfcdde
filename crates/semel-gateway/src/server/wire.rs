//! A client's socket: input passes the framing scanner, output has a stall timeout.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;

use super::Limits;
use super::activity::Activity;
use super::incoming::StallTimer;
use crate::hygiene::scan::Scanner;
use crate::socket::Socket;

/// Replaces refused bytes in what hyper reads. A NUL is an error anywhere in a head, a chunk size
/// or a trailer, and the line ends make the parser run at once: in a head hyper responds 400 and
/// closes, in a body the service sees an error.
const POISON: &[u8] = b"\0\r\n\r\n";

/// A plain or TLS connection to a client.
pub(super) type Stream = Socket<TcpStream, TlsStream<TcpStream>>;

/// The socket under hyper's connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    /// Read while the protocol was detected.
    buffered: BytesMut,
    /// HTTP/1 only.
    scanner: Option<Scanner>,
    /// The rest of [`POISON`], once something was refused.
    poison: Option<&'static [u8]>,
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
            activity,
            stall: StallTimer::new(limits.write_stall_timeout),
            _permit: permit,
        }
    }

    fn refuse(&mut self, buf: &mut ReadBuf<'_>) {
        let poison = self.poison.unwrap_or(POISON);
        let (now, later) = poison.split_at(poison.len().min(buf.remaining()));
        buf.put_slice(now);
        self.poison = Some(later);
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
        if this.poison.is_some() {
            // After the poison nothing more is written, which means end of stream.
            this.refuse(buf);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if this.buffered.is_empty() {
            std::task::ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        } else {
            let count = this.buffered.len().min(buf.remaining());
            buf.put_slice(&this.buffered[..count]);
            this.buffered.advance(count);
        }
        if let Some(scanner) = &mut this.scanner
            && !this.activity.is_raw()
        {
            match scanner.scan(&buf.filled()[before..]) {
                Ok(()) => this.activity.note_head(scanner.in_head()),
                Err(refused) => {
                    buf.set_filled(before + refused.keep);
                    this.refuse(buf);
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
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.with_stall_timeout(cx, closed)
    }
}
