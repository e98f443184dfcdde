//! The bytes to and from the upstream, with or without TLS, and a count of those written.

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

/// A connection's bytes.
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

/// What a connection has written.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Bytes the kernel took, over the connection's life.
    written: AtomicU64,
    /// The next read asks the kernel, whatever the runtime believes.
    probe: AtomicBool,
}

/// A socket that counts. Under TLS it is below it, and counts what really leaves.
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
