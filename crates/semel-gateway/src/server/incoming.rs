use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::activity::Activity;

/// A request body. It ends with an error if the client pauses longer than
/// [`Limits::body_idle_timeout`](super::Limits::body_idle_timeout) or disconnects.
#[derive(Debug)]
pub struct Incoming {
    body: hyper::body::Incoming,
    is_ended: bool,
    stall: StallTimer,
    activity: Arc<Activity>,
    /// The number of the request on its connection.
    request: u64,
}

/// Why a request body ended prematurely.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The client paused for too long.
    #[error("the client paused the request body for longer than `body_idle_timeout`")]
    Stalled,
    /// The connection broke, or the body was framed wrongly.
    #[error("the request body ended prematurely")]
    Broken(#[source] hyper::Error),
}

impl Incoming {
    pub(super) fn new(
        body: hyper::body::Incoming,
        limit: Duration,
        activity: Arc<Activity>,
        request: u64,
    ) -> Self {
        Self {
            body,
            is_ended: false,
            stall: StallTimer::new(limit),
            activity,
            request,
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.is_ended && !self.body.is_end_stream() {
            let has_length = self.body.size_hint().exact().is_some();
            self.activity.note_unread_body(self.request, has_length);
        }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.stall.end();
            // A reader may stop at the trailers, which come last.
            self.is_ended |= match &frame {
                Some(Ok(frame)) => frame.is_trailers(),
                Some(Err(_)) => false,
                None => true,
            };
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Broken)));
        }
        ready!(self.stall.poll_expired(cx));
        Poll::Ready(Some(Err(BodyError::Stalled)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A limit on one wait; its timer is created at the first wait.
#[derive(Debug)]
pub(super) struct StallTimer {
    limit: Duration,
    running: bool,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl StallTimer {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            running: false,
            sleep: None,
        }
    }

    pub(super) fn end(&mut self) {
        self.running = false;
    }

    /// Starts the wait if it is not running; ready when it has lasted too long.
    pub(super) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = || Instant::now() + self.limit;
        let sleep = match &mut self.sleep {
            Some(sleep) => {
                if !self.running {
                    sleep.as_mut().reset(deadline());
                }
                sleep
            }
            none @ None => none.insert(Box::pin(tokio::time::sleep_until(deadline()))),
        };
        self.running = true;
        sleep.as_mut().poll(cx)
    }
}
