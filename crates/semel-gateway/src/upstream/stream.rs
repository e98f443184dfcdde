//! The socket to the upstream, with or without TLS, and a count of the bytes written to it.
//!
//! The count sits below TLS, so it counts what the kernel took. No crate offers this together with
//! the staleness check that [`Counted`] makes before the first byte of a request.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::socket::Socket;

/// A plain or TLS connection.
pub(super) type Stream = Socket<Counted, TlsStream<Counted>>;

impl Stream {
    pub(super) fn meter(&self) -> &Arc<Meter> {
        match self {
            Self::Plain(stream) => &stream.meter,
            Self::Tls(stream) => &stream.get_ref().0.meter,
        }
    }

    pub(super) fn is_secure(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(_) => true,
        }
    }
}

/// Counts what a connection has written.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Bytes accepted by the kernel since the connection was opened.
    written: AtomicU64,
    /// Whether the next read first asks the kernel if the connection is stale.
    probe: AtomicBool,
}

/// A TCP socket that counts written bytes. With TLS it is the layer below.
#[derive(Debug)]
pub(super) struct Counted {
    stream: TcpStream,
    meter: Arc<Meter>,
}

impl Meter {
    pub(super) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    pub(super) fn probe_next_read(&self) {
        self.probe.store(true, Relaxed);
    }
}

impl Counted {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            meter: Arc::default(),
        }
    }

    fn count(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = written {
            self.meter.written.fetch_add(*count as u64, Relaxed);
        }
    }

    /// Whether the upstream has closed the connection or sent unexpected bytes. The runtime notices
    /// only at its next poll of the reactor; a request sent until then would have an unknown
    /// outcome. One system call avoids that.
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
        // hyper reads before it writes, so this happens before the first byte of the request. An
        // empty read means end of stream, and hyper returns the request.
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
