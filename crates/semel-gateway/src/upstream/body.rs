use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;

use super::connection::{UpstreamConnection, without_wakeup};
use super::error::{BoxError, Error};
use super::pool::Pool;

/// A request body, type-erased so that every pooled connection accepts it.
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

/// A response body. Reading it drives the connection; at the end of the exchange it returns the
/// connection to the pool. Dropping it earlier closes the connection.
///
/// A body that ends before its length, or without its last chunk, ends with an error.
#[derive(Debug)]
pub struct Body {
    source: Source,
    /// `None` once the connection is returned or closed.
    connection: Option<Box<UpstreamConnection>>,
    pool: Option<Arc<Pool>>,
    truncated: bool,
}

#[derive(Debug)]
enum Source {
    Incoming(Incoming),
    /// A body made by the gateway; empty at its end.
    Text(Bytes),
}

impl Body {
    pub(super) fn empty() -> Self {
        Self::text(Bytes::new())
    }

    pub(super) fn text(text: Bytes) -> Self {
        Self {
            source: Source::Text(text),
            connection: None,
            pool: None,
            truncated: false,
        }
    }

    pub(super) fn new(
        incoming: Incoming,
        connection: Box<UpstreamConnection>,
        pool: &Arc<Pool>,
    ) -> Self {
        if connection.is_idle() {
            // A short response arrived completely with its head: the bytes are in `incoming`, and
            // the connection is free.
            pool.check_in(connection);
            return Self {
                source: Source::Incoming(incoming),
                connection: None,
                pool: None,
                truncated: false,
            };
        }
        if incoming.is_end_stream() {
            // The upstream responded before it read the whole request. Dropping the connection
            // closes it.
            return Self::empty();
        }
        let pool = Some(Arc::clone(pool));
        Self {
            source: Source::Incoming(incoming),
            connection: Some(connection),
            pool,
            truncated: false,
        }
    }

    /// Whether the body ended prematurely.
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

    /// The next frame: already buffered, or read from the connection now.
    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.connection.is_none() {
            return self.poll_incoming(cx);
        }
        let arrived = self.poll_incoming(&mut without_wakeup(cx));
        if arrived.is_ready() {
            return arrived;
        }
        if let Some(connection) = &mut self.connection
            && connection.poll_drive(cx).is_ready()
        {
            // Dropping the connection ends `incoming`.
            self.connection = None;
            return self.poll_incoming(cx);
        }
        self.poll_incoming(&mut without_wakeup(cx))
    }

    /// Returns the connection to the pool if the exchange is over.
    fn release_connection(&mut self, cx: &mut Context<'_>, ended: bool) {
        if let Some(mut connection) = self
            .connection
            .take_if(|connection| ended || connection.is_idle())
        {
            if !connection.is_idle() && connection.poll_drive(cx).is_ready() {
                return;
            }
            if let Some(pool) = &self.pool {
                pool.check_in(connection);
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
                this.release_connection(cx, this.is_end_stream());
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                this.connection = None;
                this.source = Source::Text(Bytes::new());
                this.truncated = true;
                Poll::Ready(Some(Err(Error::sent(error))))
            }
            Poll::Ready(None) => {
                this.release_connection(cx, true);
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
