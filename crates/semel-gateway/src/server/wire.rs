//! A client's socket: scanned on the way in, timed on the way out.

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
use super::incoming::Pause;
use crate::hygiene::scan::Scanner;
use crate::socket::Socket;

/// What hyper is given in place of bytes that were refused. A NUL is an error wherever in a
/// head, a chunk size or a trailer it appears, and the line ends make the parser look at once:
/// in a head hyper answers 400 and closes, in a body the service sees an error.
const POISON: &[u8] = b"\0\r\n\r\n";

/// What a client sends and is sent.
pub(super) type Stream = Socket<TcpStream, TlsStream<TcpStream>>;

/// The socket under hyper's connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    /// Read before it was known which protocol this is.
    ahead: BytesMut,
    /// For HTTP/1 only.
    scanner: Option<Scanner>,
    /// What is left to say of [`POISON`], once something was refused.
    poison: Option<&'static [u8]>,
    activity: Arc<Activity>,
    stall: Pause,
    /// Held as long as the socket lives, so that a connection which became a tunnel counts.
    _permit: OwnedSemaphorePermit,
}

impl Wire {
    pub(super) fn new(
        stream: Stream,
        ahead: BytesMut,
        scanned: bool,
        activity: Arc<Activity>,
        limits: &Limits,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            stream,
            ahead,
            scanner: scanned.then(|| Scanner::new(limits.max_header_bytes)),
            poison: None,
            activity,
            stall: Pause::new(limits.write_stall_timeout),
            _permit: permit,
        }
    }

    fn refuse(&mut self, buf: &mut ReadBuf<'_>) {
        let poison = self.poison.unwrap_or(POISON);
        let (now, later) = poison.split_at(poison.len().min(buf.remaining()));
        buf.put_slice(now);
        self.poison = Some(later);
    }

    /// A write that made no progress is timed; one that did is not.
    fn timed<T>(
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
                "the client does not read its answer",
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
            // When the poison is out, nothing more is put, which is the end of the stream.
            this.refuse(buf);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if this.ahead.is_empty() {
            std::task::ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        } else {
            let count = this.ahead.len().min(buf.remaining());
            buf.put_slice(&this.ahead[..count]);
            this.ahead.advance(count);
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
        self.timed(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.timed(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.timed(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.timed(cx, closed)
    }
}
