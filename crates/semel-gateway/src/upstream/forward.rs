use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use semel_http::{Operation, Outcome};
use tower_service::Service;

use super::error::BoxError;
use super::{Body, Error, Stage, Upstream};
use crate::telemetry;

/// Forwards each request to the upstream once. A failure becomes an [`Outcome`] that says whether
/// anything was sent; the layer turns it into the client's response.
#[derive(Debug, Clone)]
pub struct Forward {
    upstream: Upstream,
    timeout: Duration,
}

impl Forward {
    /// Forwards to `upstream`. `timeout` bounds the wait for the response head of unguarded requests;
    /// guarded requests are bounded by the layer.
    pub fn new(upstream: Upstream, timeout: Duration) -> Self {
        Self { upstream, timeout }
    }
}

impl<B> Service<Request<B>> for Forward
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Self { upstream, timeout } = self.clone();
        let operation = request.extensions().get::<Operation>().cloned();
        Box::pin(async move {
            telemetry::request::inject_parent(request.headers_mut());
            let sending = upstream.send(request);
            let answer = if operation.is_some() {
                sending.await
            } else {
                match tokio::time::timeout(timeout, sending).await {
                    Ok(answer) => answer,
                    Err(elapsed) => Err(Error::sent(elapsed)),
                }
            };
            Ok(answer.unwrap_or_else(|error| failed(&error, operation)))
        })
    }
}

fn failed(error: &Error, operation: Option<Operation>) -> Response<Body> {
    let id = operation.map(|operation| tracing::field::display(operation.id()));
    let reason = &error.source;
    match error.stage {
        Stage::NothingSent => {
            tracing::warn!(id, reason, "cannot reach the upstream; nothing was sent");
            Outcome::unreachable().into_response()
        }
        Stage::Sent => {
            tracing::warn!(
                id,
                reason,
                "no response from the upstream; the outcome is unknown"
            );
            Outcome::unknown("upstream_broke_off").into_response()
        }
    }
}
