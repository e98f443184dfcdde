//! Whether an HTTP/2 client reads its responses.
//!
//! On HTTP/1 a client that does not read fills the socket's buffer, and the stall timer of
//! [`Wire`](super::wire::Wire) ends the connection. An HTTP/2 client can keep reading frames and
//! still accept no data, by granting no flow-control window; its responses then wait in h2's
//! buffers. hyper does not report how far a response got, so every piece of it that is handed to
//! hyper counts as unsent until it is dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

/// The largest piece of a response that is handed to hyper at once: the default size of an HTTP/2
/// frame. A client that takes less than this in the time allowed is closed.
const PIECE: usize = 16 << 10;

/// The progress of one response.
#[derive(Debug)]
pub(super) struct ResponseProgress(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Since when the client has taken nothing although something waits for it; `None` while
    /// nothing does.
    stalled_since: Option<Instant>,
    /// Pieces that hyper holds.
    unsent: usize,
    /// The application has not produced the next frame, or the response has ended.
    is_drained: bool,
}

impl ResponseProgress {
    /// A response whose body hyper has not asked for: it does so when the client grants a window.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            stalled_since: Some(Instant::now()),
            unsent: 0,
            is_drained: false,
        })))
    }

    /// Takes the next piece off `data`.
    pub(super) fn next_piece(self: &Arc<Self>, data: &mut Bytes) -> Bytes {
        let mut state = self.lock();
        state.unsent += 1;
        state.is_drained = false;
        state.stalled_since = Some(Instant::now());
        Bytes::from_owner(Piece {
            bytes: data.split_to(data.len().min(PIECE)),
            progress: Arc::clone(self),
        })
    }

    /// hyper asked for the body, and there is nothing to send: not yet, or not any more.
    pub(super) fn set_drained(&self) {
        let mut state = self.lock();
        state.is_drained = true;
        if state.unsent == 0 {
            state.stalled_since = None;
        }
    }

    pub(super) fn stalled_since(&self) -> Option<Instant> {
        self.lock().stalled_since
    }

    // No code panics under this lock, so a poisoned state is valid.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a response that hyper holds until it is sent.
struct Piece {
    bytes: Bytes,
    progress: Arc<ResponseProgress>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut state = self.progress.lock();
        state.unsent -= 1;
        let is_waiting = state.unsent > 0 || !state.is_drained;
        state.stalled_since = is_waiting.then(Instant::now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_response_is_stalled_only_while_something_waits_for_the_client() {
        let progress = ResponseProgress::new();
        let begun = Instant::now();
        assert_eq!(progress.stalled_since(), Some(begun), "no window yet");
        let mut data = Bytes::from(vec![7; PIECE + 1]);
        let (first, second) = (
            progress.next_piece(&mut data),
            progress.next_piece(&mut data),
        );
        assert_eq!((first.len(), second.len(), data.len()), (PIECE, 1, 0));
        progress.set_drained();
        assert_eq!(progress.stalled_since(), Some(begun), "both are unsent");
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(first);
        assert_eq!(progress.stalled_since(), Some(Instant::now()));
        drop(second);
        assert_eq!(progress.stalled_since(), None, "the application is slow");
        let third = progress.next_piece(&mut Bytes::from_static(b"x"));
        drop(third);
        assert!(progress.stalled_since().is_some(), "hyper does not ask");
        progress.set_drained();
        assert_eq!(progress.stalled_since(), None);
    }
}
