//! Adapts the tower service to hyper: validates requests, adds the peer, tracks activity.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::activity::{Activity, Busy};
use super::progress::ResponseProgress;
use super::{Incoming, Peer, ResponseBody};
use crate::hygiene::inbound::{self, Refusal};

/// The service for one connection.
pub(super) struct Bridge<S> {
    pub(super) service: S,
    pub(super) peer: Peer,
    pub(super) activity: Arc<Activity>,
    pub(super) body_idle_timeout: Duration,
    pub(super) max_header_bytes: usize,
    /// Requests that have begun.
    pub(super) requests: AtomicU64,
}

impl<S, RB> hyper::service::Service<Request<hyper::body::Incoming>> for Bridge<S>
where
    S: Service<Request<Incoming>, Response = Response<RB>, Error = Infallible> + Clone,
    RB: ResponseBody,
{
    type Response = Response<TrackedBody<RB>>;
    type Error = Infallible;
    type Future = Reply<S, S::Future>;

    fn call(&self, request: Request<hyper::body::Incoming>) -> Self::Future {
        let busy = Some(self.activity.begin());
        let number = self.requests.fetch_add(1, Relaxed) + 1;
        let (mut parts, body) = request.into_parts();
        // First: the head was cut off, and must not be read.
        let refusal = if self.activity.has_large_head(number) {
            Some(Refusal::LargeHead)
        } else {
            inbound::check_parts(&parts, self.max_header_bytes).err()
        };
        if let Some(refusal) = refusal {
            return Reply::Refused {
                text: refusal.render(self.max_header_bytes),
                status: refusal.status(),
                version: parts.version,
                busy,
            };
        }
        parts.extensions.insert(self.peer.clone());
        let activity = Arc::clone(&self.activity);
        let body = Incoming::new(body, self.body_idle_timeout, activity, number);
        Reply::Waiting {
            service: self.service.clone(),
            request: Some(Request::from_parts(parts, body)),
            number,
            busy,
        }
    }
}

pin_project! {
    /// The response to one request, as a future without a box.
    #[project = ReplyProjection]
    pub(super) enum Reply<S, F> {
        Refused { text: String, status: StatusCode, version: Version, busy: Option<Busy> },
        // tower's contract: `poll_ready` before `call`.
        Waiting { service: S, request: Option<Request<Incoming>>, number: u64, busy: Option<Busy> },
        Running { #[pin] response: F, activity: Arc<Activity>, number: u64, busy: Option<Busy> },
    }
}

impl<S, RB> Future for Reply<S, S::Future>
where
    S: Service<Request<Incoming>, Response = Response<RB>, Error = Infallible>,
    RB: ResponseBody,
{
    type Output = Result<Response<TrackedBody<RB>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let next = match self.as_mut().project() {
                ReplyProjection::Refused {
                    text,
                    status,
                    version,
                    busy,
                } => {
                    let text = std::mem::take(text);
                    return Poll::Ready(Ok(refused(text, *status, *version, busy.take())));
                }
                ReplyProjection::Waiting {
                    service,
                    request,
                    number,
                    busy,
                } => {
                    match ready!(service.poll_ready(cx)) {
                        Ok(()) => {}
                        Err(never) => match never {},
                    }
                    // Taken once: the next state replaces this one.
                    let (Some(request), Some(busy)) = (request.take(), busy.take()) else {
                        return Poll::Pending;
                    };
                    Reply::Running {
                        response: service.call(request),
                        activity: busy.activity(),
                        number: *number,
                        busy: Some(busy),
                    }
                }
                ReplyProjection::Running {
                    response,
                    activity,
                    number,
                    busy,
                } => {
                    let mut response = match ready!(response.poll(cx)) {
                        Ok(response) => response,
                        Err(never) => match never {},
                    };
                    let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                    if is_upgrade {
                        activity.go_raw();
                    }
                    let busy = busy.take();
                    // Whatever became of the request: its sender must not take it for understood.
                    if activity.has_malformed_body(*number) {
                        let refusal = Refusal::Chunk;
                        let text = refusal.render(0);
                        let version = Version::HTTP_11;
                        return Poll::Ready(Ok(refused(text, refusal.status(), version, busy)));
                    }
                    // hyper closes the connection, but may send the head before it knows. A client
                    // that does not learn it would send its next request into the close.
                    // The same where the server is about to close it.
                    if activity.has_unread_body(*number) || (activity.is_closing() && !is_upgrade) {
                        let close = HeaderValue::from_static("close");
                        response.headers_mut().insert(CONNECTION, close);
                    }
                    let progress = activity.follow_response();
                    return Poll::Ready(Ok(response.map(|body| TrackedBody {
                        body: Some(body),
                        text: Bytes::new(),
                        progress,
                        busy,
                    })));
                }
            };
            self.set(next);
        }
    }
}

fn refused<RB>(
    text: String,
    status: StatusCode,
    version: Version,
    busy: Option<Busy>,
) -> Response<TrackedBody<RB>> {
    let mut response = Response::new(TrackedBody {
        body: None,
        text: Bytes::from(text),
        progress: None,
        busy,
    });
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    // The bytes that follow an ambiguous request may be ambiguous as well.
    if version != Version::HTTP_2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

pin_project! {
    /// A response body. The connection counts as busy until it is dropped.
    #[derive(Debug)]
    pub struct TrackedBody<RB> {
        #[pin]
        body: Option<RB>,
        // A refusal; or, on HTTP/2, the rest of a frame that is handed out in pieces.
        text: Bytes,
        progress: Option<Arc<ResponseProgress>>,
        busy: Option<Busy>,
    }

    impl<RB> PinnedDrop for TrackedBody<RB> {
        fn drop(this: Pin<&mut Self>) {
            if let Some(progress) = this.project().progress {
                progress.set_drained();
            }
        }
    }
}

impl<RB: Body<Data = Bytes>> Body for TrackedBody<RB> {
    type Data = Bytes;
    type Error = RB::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RB::Error>>> {
        let this = self.project();
        if this.text.is_empty() {
            let frame = match this.body.as_pin_mut() {
                Some(body) => body.poll_frame(cx),
                None => Poll::Ready(None),
            };
            let Some(progress) = this.progress else {
                return frame;
            };
            match frame {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    Ok(data) => *this.text = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                nothing @ (Poll::Pending | Poll::Ready(None | Some(Err(_)))) => {
                    progress.set_drained();
                    return nothing;
                }
            }
        }
        let piece = match this.progress {
            Some(progress) => progress.next_piece(this.text),
            None => std::mem::take(this.text),
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_empty() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let text = self.text.len() as u64;
        let Some(body) = &self.body else {
            return SizeHint::with_exact(text);
        };
        let body = body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower().saturating_add(text));
        if let Some(upper) = body.upper() {
            hint.set_upper(upper.saturating_add(text));
        }
        hint
    }
}
