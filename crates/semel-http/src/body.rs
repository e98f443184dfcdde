//! Request and response bodies, and reading one within a bound.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full};
use pin_project_lite::pin_project;

use crate::budget::{ByteBudget, HeldBytes};

pin_project! {
    /// The body of a request to the inner service. A guarded request's was read in full before
    /// anything was reserved; any other is streamed.
    #[derive(Debug)]
    pub struct RequestBody<B> {
        #[pin]
        kind: RequestKind<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = RequestKindProjection]
    enum RequestKind<B> {
        Buffered { #[pin] body: Full<Bytes> },
        Streaming { #[pin] body: B },
    }
}

pin_project! {
    /// The body of a response to the client. A guarded request's is sent after its outcome was
    /// recorded; any other is streamed.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: ResponseKind<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = ResponseKindProjection]
    enum ResponseKind<B> {
        Recorded { body: FinalBody<B> },
        Passed { #[pin] body: B },
    }
}

/// A body that is sent after its outcome was written to the record.
#[derive(Debug)]
pub(crate) struct FinalBody<B> {
    content: Content<B>,
    /// Counts the body while it is here.
    _held: Option<Arc<HeldBytes>>,
}

#[derive(Debug)]
enum Content<B> {
    /// In memory: a replay, a refusal, a response that was stored. Only the first caller gets
    /// trailers.
    Whole(Option<Bytes>, Option<HeaderMap>),
    /// What was read before the response turned out too large to store, then the rest.
    Over(VecDeque<Frame<Bytes>>, Pin<Box<B>>),
}

/// A response that was read as far as the bound allows.
pub(crate) enum Collected<B> {
    Whole(Bytes, Option<HeaderMap>, Option<Arc<HeldBytes>>),
    Over(FinalBody<B>),
}

/// Why a request's body could not be read.
#[derive(Debug)]
pub(crate) enum ReadError<E> {
    TooLarge,
    /// All requests together hold as many bytes as they may.
    NoRoom,
    Broken(E),
}

impl<B> Collected<B> {
    /// A body that is streamed whatever its size.
    pub(crate) fn streaming(body: B) -> Self {
        Self::Over(FinalBody {
            content: Content::Over(VecDeque::new(), Box::pin(body)),
            _held: None,
        })
    }
}

impl<B> RequestBody<B> {
    pub(crate) fn buffered(body: Bytes) -> Self {
        let body = Full::new(body);
        Self {
            kind: RequestKind::Buffered { body },
        }
    }

    pub(crate) fn streaming(body: B) -> Self {
        Self {
            kind: RequestKind::Streaming { body },
        }
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes>,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            RequestKindProjection::Buffered { body } => body
                .poll_frame(context)
                .map(|frame| frame.map(|frame| frame.map_err(never))),
            RequestKindProjection::Streaming { body } => body.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            RequestKind::Buffered { body } => body.is_end_stream(),
            RequestKind::Streaming { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            RequestKind::Buffered { body } => body.size_hint(),
            RequestKind::Streaming { body } => body.size_hint(),
        }
    }
}

fn never<T>(never: Infallible) -> T {
    match never {}
}

impl<B> FinalBody<B> {
    pub(crate) fn whole(body: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self {
            content: Content::Whole((!body.is_empty()).then_some(body), trailers),
            _held: None,
        }
    }

    pub(crate) fn counted(self, held: Option<Arc<HeldBytes>>) -> Self {
        Self {
            _held: held,
            ..self
        }
    }
}

impl<B> Body for FinalBody<B>
where
    B: Body<Data = Bytes>,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.content {
            Content::Whole(body, trailers) => {
                let frame = body.take().map(Frame::data);
                Poll::Ready(
                    frame
                        .or_else(|| trailers.take().map(Frame::trailers))
                        .map(Ok),
                )
            }
            Content::Over(read, rest) => match read.pop_front() {
                Some(frame) => Poll::Ready(Some(Ok(frame))),
                None => rest.as_mut().poll_frame(context),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(body, trailers) => body.is_none() && trailers.is_none(),
            Content::Over(read, rest) => read.is_empty() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(body, _) => {
                SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64))
            }
            Content::Over(read, rest) => {
                let read: u64 = read
                    .iter()
                    .filter_map(|frame| frame.data_ref().map(|data| data.len() as u64))
                    .sum();
                let rest = rest.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(read.saturating_add(rest.lower()));
                if let Some(upper) = rest.upper() {
                    hint.set_upper(read.saturating_add(upper));
                }
                hint
            }
        }
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn recorded(body: FinalBody<B>) -> Self {
        Self {
            kind: ResponseKind::Recorded { body },
        }
    }

    pub(crate) fn passed(body: B) -> Self {
        Self {
            kind: ResponseKind::Passed { body },
        }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes>,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            ResponseKindProjection::Recorded { body } => Pin::new(body).poll_frame(context),
            ResponseKindProjection::Passed { body } => body.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            ResponseKind::Recorded { body } => body.is_end_stream(),
            ResponseKind::Passed { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            ResponseKind::Recorded { body } => body.size_hint(),
            ResponseKind::Passed { body } => body.size_hint(),
        }
    }
}

/// A response of the layer's own. Its extensions may say that it is counted.
pub(crate) fn from_bytes<B>(mut response: Response<Bytes>) -> Response<ResponseBody<B>> {
    let held = response.extensions_mut().remove::<Arc<HeldBytes>>();
    response.map(|body| ResponseBody::recorded(FinalBody::whole(body, None).counted(held)))
}

/// Reads a request's body in full. Its trailers are dropped: an application behind a buffer cannot
/// rely on them, and they are not part of the fingerprint.
/// It counts against the budget as long as what is returned with it.
pub(crate) async fn read<B>(
    body: B,
    limit: usize,
    budget: &Arc<ByteBudget>,
) -> Result<(Bytes, HeldBytes), ReadError<B::Error>>
where
    B: Body<Data = Bytes>,
{
    if is_over(&body, limit) {
        return Err(ReadError::TooLarge);
    }
    let mut held = budget.hold();
    let mut body = std::pin::pin!(body);
    // Nearly every body is one frame, and is not copied.
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(ReadError::Broken)?.into_data() else {
            continue;
        };
        let length = first.len().max(all.len()) + data.len();
        if length > limit {
            return Err(ReadError::TooLarge);
        }
        if !held.try_grow(data.len()) {
            return Err(ReadError::NoRoom);
        }
        if length == data.len() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
    }
    let whole = if all.is_empty() { first } else { all.freeze() };
    Ok((whole, held))
}

/// Reads a response's body up to `limit` bytes; a larger one is streamed, and so is one that the
/// budget has no room for.
pub(crate) async fn collect<B>(
    body: B,
    limit: usize,
    budget: &Arc<ByteBudget>,
) -> Result<Collected<B>, B::Error>
where
    B: Body<Data = Bytes>,
{
    if is_over(&body, limit) {
        return Ok(Collected::streaming(body));
    }
    let mut body = Box::pin(body);
    let mut read = VecDeque::new();
    let mut length = 0;
    let mut trailers = None;
    let mut held = budget.hold();
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => {
                length += data.len();
                let has_room = held.try_grow(data.len());
                read.push_back(Frame::data(data));
                if length > limit || !has_room {
                    return Ok(Collected::Over(FinalBody {
                        content: Content::Over(read, body),
                        _held: Some(Arc::new(held)),
                    }));
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok(Collected::Whole(
        concat(read, length),
        trailers,
        Some(Arc::new(held)),
    ))
}

fn concat(mut frames: VecDeque<Frame<Bytes>>, length: usize) -> Bytes {
    if frames.len() <= 1 {
        return frames
            .pop_front()
            .and_then(|frame| frame.into_data().ok())
            .unwrap_or_default();
    }
    let mut all = BytesMut::with_capacity(length);
    for frame in frames {
        if let Ok(data) = frame.into_data() {
            all.extend_from_slice(&data);
        }
    }
    all.freeze()
}

/// Whether a body's size hint is over the limit.
fn is_over(body: &impl Body, limit: usize) -> bool {
    body.size_hint().lower() > limit as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::StreamBody;

    type Parts = Vec<Result<Frame<Bytes>, &'static str>>;

    fn stream(parts: Parts) -> impl Body<Data = Bytes, Error = &'static str> {
        StreamBody::new(futures_util::stream::iter(parts))
    }

    #[allow(
        clippy::unnecessary_wraps,
        reason = "an element of a stream that may fail"
    )]
    fn data(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
        Ok(Frame::data(Bytes::from_static(text.as_bytes())))
    }

    fn room() -> Arc<ByteBudget> {
        ByteBudget::new(1000)
    }

    #[tokio::test]
    async fn a_request_is_read_whole_or_not_at_all() {
        let whole = read(
            stream(vec![data("ab"), data(""), data("cd"), data("e")]),
            5,
            &room(),
        )
        .await;
        assert_eq!(whole.unwrap().0, "abcde");
        assert_eq!(read(stream(vec![]), 0, &room()).await.unwrap().0, "");
        assert_eq!(
            read(stream(vec![data(""), data("x")]), 1, &room())
                .await
                .unwrap()
                .0,
            "x"
        );
        for parts in [
            vec![data("abcdef")],
            vec![data("abc"), data("def")],
            vec![data("ab"), data("cd"), data("ef")],
        ] {
            let refused = read(stream(parts), 5, &room()).await;
            assert!(matches!(refused, Err(ReadError::TooLarge)));
        }
        let broken = read(stream(vec![data("abc"), Err("reset")]), 5, &room()).await;
        assert!(matches!(broken, Err(ReadError::Broken("reset"))));
    }

    #[tokio::test]
    async fn a_response_over_the_bound_is_streamed_in_full() {
        for parts in [
            vec![data("abcdef"), data("gh")],
            vec![data("abc"), data("def"), data("gh")],
        ] {
            let Collected::Over(body) = collect(stream(parts), 5, &room()).await.unwrap() else {
                panic!("not over");
            };
            assert_eq!(body.collect().await.unwrap().to_bytes(), "abcdefgh");
        }
        let full = Full::new(Bytes::from_static(b"abcdef"));
        let Collected::Over(body) = collect(full, 5, &room()).await.unwrap() else {
            panic!("not over");
        };
        assert_eq!(body.size_hint().exact(), Some(6));
    }

    #[tokio::test]
    async fn a_truncated_response_is_an_error() {
        let cut = collect(stream(vec![data("abc"), Err("reset")]), 100, &room()).await;
        assert_eq!(cut.err(), Some("reset"));
    }

    #[tokio::test]
    async fn trailers_reach_the_first_caller() {
        let mut trailers = HeaderMap::new();
        trailers.insert("checksum", "7".parse().unwrap());
        let parts = vec![data("abc"), Ok(Frame::trailers(trailers.clone()))];
        let Collected::Whole(body, found, _) = collect(stream(parts), 100, &room()).await.unwrap()
        else {
            panic!("over");
        };
        assert_eq!(found.as_ref(), Some(&trailers));
        let sent = FinalBody::<Full<Bytes>>::whole(body, found);
        let sent = sent.collect().await.unwrap();
        assert_eq!(sent.trailers(), Some(&trailers));
        assert_eq!(sent.to_bytes(), "abc");
    }

    #[tokio::test]
    async fn all_requests_share_one_budget() {
        let budget = ByteBudget::new(7);
        let first = read(stream(vec![data("abc"), data("de")]), 5, &budget).await;
        let second = read(stream(vec![data("ab"), data("c")]), 5, &budget).await;
        assert!(matches!(second, Err(ReadError::NoRoom)));
        drop(first);
        let third = read(stream(vec![data("ab"), data("c")]), 5, &budget).await;
        assert_eq!(third.unwrap().0, "abc");
    }

    #[tokio::test]
    async fn a_response_without_room_is_streamed_in_full() {
        let budget = ByteBudget::new(7);
        let Collected::Whole(_, _, first) = collect(stream(vec![data("abcde")]), 5, &budget)
            .await
            .unwrap()
        else {
            panic!("over");
        };
        let parts = || vec![data("ab"), data("cd")];
        let Collected::Over(body) = collect(stream(parts()), 5, &budget).await.unwrap() else {
            panic!("not over");
        };
        assert_eq!(body.collect().await.unwrap().to_bytes(), "abcd");
        drop(first);
        let whole = collect(stream(parts()), 5, &budget).await.unwrap();
        assert!(matches!(whole, Collected::Whole(..)));
    }
}
