//! Lingering close: what happens to the input that arrives after the last response.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// How long the rest of a request is read and discarded.
const MAX_TIME: Duration = Duration::from_secs(2);

/// How long a client may finish a well-formed request before this side is closed. Some clients
/// (Node's `fetch`) give up when they see the end of the stream while they are sending.
const BEFORE_CLOSE: Duration = Duration::from_secs(1);

/// How much of it: twice the default of `max_request`, so that a client that is a little over the
/// limit can send all of its body.
const MAX_BYTES: usize = 16 << 20;

/// Size of one read.
const READ: usize = 16 << 10;

/// A connection that has sent its last response, and whose client may still be sending a request.
///
/// If the socket were closed while input is unread, the kernel would reset the connection, and the
/// client could lose the response that it has not read yet.
#[derive(Debug)]
pub(super) struct Linger {
    begun: Instant,
    until: Pin<Box<Sleep>>,
    discarded: usize,
}

/// What one read found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Discarded {
    Some,
    /// The client has closed its side.
    End,
    /// The time or the number of bytes is used up.
    TimeOver,
}

impl Linger {
    pub(super) fn new() -> Self {
        let begun = Instant::now();
        Self {
            begun,
            until: Box::pin(sleep_until(begun + BEFORE_CLOSE)),
            discarded: 0,
        }
    }

    /// This side is closed: waits for the rest of the time.
    pub(super) fn set_closed(&mut self) {
        self.until.as_mut().reset(self.begun + MAX_TIME);
    }

    /// Reads and discards once.
    pub(super) fn poll_discard<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut R,
        scan: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<Discarded>> {
        if self.discarded >= MAX_BYTES || self.until.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(Discarded::TimeOver));
        }
        let mut buffer = [0; READ];
        let mut buffer = ReadBuf::new(&mut buffer);
        std::task::ready!(Pin::new(input).poll_read(cx, &mut buffer))?;
        self.discarded += buffer.filled().len();
        scan(buffer.filled());
        Poll::Ready(Ok(if buffer.filled().is_empty() {
            Discarded::End
        } else {
            Discarded::Some
        }))
    }
}
