//! Adapts the tower service to hyper: validates requests, adds the peer, tracks activity.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::activity::{Activity, Busy};
use super::{Incoming, Peer, ResponseBody};
use crate::hygiene::inbound::{self, Refusal};

/// The service for one connection.
pub(super) struct Bridge<S> {
    pub(super) service: S,
    pub(super) peer: Peer,
    pub(super) activity: Arc<Activity>,
    pub(super) body_idle_timeout: Duration,
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
        let (mut parts, body) = request.into_parts();
        if let Err(refusal) = inbound::check_parts(&parts) {
            return Reply::Refused {
                refusal,
                version: parts.version,
                busy,
            };
        }
        parts.extensions.insert(self.peer.clone());
        let body = Incoming::new(body, self.body_idle_timeout);
        Reply::Waiting {
            service: self.service.clone(),
            request: Some(Request::from_parts(parts, body)),
            busy,
        }
    }
}

pin_project! {
    /// The response to one request, as a future without a box.
    #[project = ReplyProjection]
    pub(super) enum Reply<S, F> {
        Refused { refusal: Refusal, version: Version, busy: Option<Busy> },
        // tower's contract: `poll_ready` before `call`.
        Waiting { service: S, request: Option<Request<Incoming>>, busy: Option<Busy> },
        Running { #[pin] response: F, activity: Arc<Activity>, busy: Option<Busy> },
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
                    refusal,
                    version,
                    busy,
                } => {
                    return Poll::Ready(Ok(refused(*refusal, *version, busy.take())));
                }
                ReplyProjection::Waiting {
                    service,
                    request,
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
                        busy: Some(busy),
                    }
                }
                ReplyProjection::Running {
                    response,
                    activity,
                    busy,
                } => {
                    let response = match ready!(response.poll(cx)) {
                        Ok(response) => response,
                        Err(never) => match never {},
                    };
                    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                        activity.go_raw();
                    }
                    let busy = busy.take();
                    return Poll::Ready(Ok(response.map(|body| TrackedBody {
                        body: Some(body),
                        text: None,
                        busy,
                    })));
                }
            };
            self.set(next);
        }
    }
}

fn refused<RB>(
    refusal: Refusal,
    version: Version,
    busy: Option<Busy>,
) -> Response<TrackedBody<RB>> {
    let text = format!(
        r#"{{"type":"about:blank","title":"Bad Request","status":400,"detail":"{}","code":"request_malformed","retryable":false}}"#,
        refusal.detail(),
    );
    let mut response = Response::new(TrackedBody {
        body: None,
        text: Some(Bytes::from(text)),
        busy,
    });
    *response.status_mut() = StatusCode::BAD_REQUEST;
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
        text: Option<Bytes>,
        busy: Option<Busy>,
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
        match this.body.as_pin_mut() {
            Some(body) => body.poll_frame(cx),
            None => Poll::Ready(this.text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Some(body) => body.is_end_stream(),
            None => self.text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(self.text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}
