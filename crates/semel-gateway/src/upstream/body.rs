use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;

use super::error::{BoxError, Error};
use super::link::{Link, quiet};
use super::pool::Pool;

/// A request body, as every pooled connection can take it.
#[derive(Debug)]
pub(super) enum Outgoing {
    Empty,
    Streamed(UnsyncBoxBody<Bytes, BoxError>),
}

impl Outgoing {
    pub(super) fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if body.is_end_stream() {
            Self::Empty
        } else {
            Self::Streamed(body.map_err(Into::into).boxed_unsync())
        }
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Streamed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Streamed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Streamed(body) => body.size_hint(),
        }
    }
}

/// The body of an answer. It moves the connection on while it is read, and gives it back to the
/// pool when the exchange is over; dropped before, it closes it.
///
/// A body that ends before its length, or without its last chunk, ends with an error.
#[derive(Debug)]
pub struct Body {
    source: Source,
    /// Until the connection is given back or lost.
    link: Option<Box<Link>>,
    pool: Option<Arc<Pool>>,
    truncated: bool,
}

#[derive(Debug)]
enum Source {
    Incoming(Incoming),
    /// An answer of our own, or an end.
    Text(Bytes),
}

impl Body {
    pub(super) fn empty() -> Self {
        Self::text(Bytes::new())
    }

    pub(super) fn text(text: Bytes) -> Self {
        Self {
            source: Source::Text(text),
            link: None,
            pool: None,
            truncated: false,
        }
    }

    pub(super) fn new(incoming: Incoming, link: Box<Link>, pool: &Arc<Pool>) -> Self {
        if link.is_idle() {
            // A short answer has come whole with its head: the bytes are in `incoming`, and the
            // connection is free.
            pool.check_in(link);
            return Self {
                source: Source::Incoming(incoming),
                link: None,
                pool: None,
                truncated: false,
            };
        }
        if incoming.is_end_stream() {
            // Answered before the request was read to its end. Dropping the link closes it.
            return Self::empty();
        }
        let pool = Some(Arc::clone(pool));
        Self {
            source: Source::Incoming(incoming),
            link: Some(link),
            pool,
            truncated: false,
        }
    }

    /// Whether the body broke off before its end.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    fn poll_incoming(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.source {
            Source::Incoming(incoming) => Pin::new(incoming).poll_frame(cx),
            Source::Text(text) if text.is_empty() => Poll::Ready(None),
            Source::Text(text) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text))))),
        }
    }

    /// The next frame: what has arrived, or what the connection brings now.
    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.link.is_none() {
            return self.poll_incoming(cx);
        }
        let arrived = self.poll_incoming(&mut quiet(cx));
        if arrived.is_ready() {
            return arrived;
        }
        if let Some(link) = &mut self.link
            && link.poll_drive(cx).is_ready()
        {
            // Dropped, it tells `incoming` that nothing more will come.
            self.link = None;
            return self.poll_incoming(cx);
        }
        self.poll_incoming(&mut quiet(cx))
    }

    /// Gives the connection back if the exchange is over.
    fn settle(&mut self, cx: &mut Context<'_>, ended: bool) {
        if let Some(mut link) = self.link.take_if(|link| ended || link.is_idle()) {
            if !link.is_idle() && link.poll_drive(cx).is_ready() {
                return;
            }
            if let Some(pool) = &self.pool {
                pool.check_in(link);
            }
        }
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        match this.poll_next(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.settle(cx, this.is_end_stream());
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                this.link = None;
                this.source = Source::Text(Bytes::new());
                this.truncated = true;
                Poll::Ready(Some(Err(Error::sent(error))))
            }
            Poll::Ready(None) => {
                this.settle(cx, true);
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Incoming(incoming) => incoming.is_end_stream(),
            Source::Text(text) => text.is_empty() && !self.truncated,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Incoming(incoming) => incoming.size_hint(),
            Source::Text(text) => SizeHint::with_exact(text.len() as u64),
        }
    }
}
