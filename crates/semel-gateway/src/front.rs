//! What every request meets first: the paths that are Semel's own, then the layer, then the
//! upstream.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{Either, Full};
use semel_http::{Layer, ResponseBody};
use semel_worker::webhook::Sources;
use tower_layer::Layer as _;
use tower_service::Service;
use tracing::Instrument as _;

use crate::admin::Whole;
use crate::server::Incoming;
use crate::telemetry::request;
use crate::upstream::{Body, Forward};
use crate::webhooks::{self, WEBHOOK_PATH};

/// Where the status of operations is served, on the gateway's own listener.
pub const STATUS_PATH: &str = "/.semel/operations/";

/// Nothing below this is ever sent to the upstream.
const OWN: &str = "/.semel/";

/// The layer in use. Reading the configuration again puts another in its place; requests that
/// began keep theirs.
pub type Current<S> = Arc<ArcSwap<Layer<S>>>;

/// What the gateway answers by itself, besides the status of operations.
#[derive(Debug)]
pub struct Own<S> {
    /// Where events go.
    pub store: S,
    /// Who may send them.
    pub sources: ArcSwap<Sources>,
}

/// The gateway as a service: one per worker, around the worker's own upstream connections.
#[derive(Debug)]
pub struct Front<S> {
    layer: Current<S>,
    own: Arc<Own<S>>,
    upstream: Forward,
}

impl<S> Front<S> {
    /// Puts the layer in front of the upstream.
    pub fn new(layer: Current<S>, own: Arc<Own<S>>, upstream: Forward) -> Self {
        Self {
            layer,
            own,
            upstream,
        }
    }
}

impl<S> Clone for Front<S> {
    fn clone(&self) -> Self {
        Self {
            layer: Arc::clone(&self.layer),
            own: Arc::clone(&self.own),
            upstream: self.upstream.clone(),
        }
    }
}

type Answer = Response<Either<ResponseBody<Body>, Full<Bytes>>>;

impl<S: Whole> Service<Request<Incoming>> for Front<S> {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        if request.uri().path().starts_with(WEBHOOK_PATH) {
            let own = Arc::clone(&self.own);
            return Box::pin(async move {
                let answer = webhooks::answer(&own.store, &own.sources.load(), request).await;
                Ok(answer.map(|body| Either::Right(Full::new(body))))
            });
        }
        if request.uri().path().starts_with(OWN) {
            let layer = self.layer.load_full();
            return Box::pin(async move {
                let (head, _) = request.into_parts();
                let answer = layer.status(&head).await.unwrap_or_else(not_found);
                Ok(answer.map(|body| Either::Right(Full::new(body))))
            });
        }
        let span = request::span(&request);
        let answer = span.in_scope(|| self.layer.load().layer(self.upstream.clone()).call(request));
        Box::pin(async move {
            let answer = answer.instrument(span.clone()).await?;
            request::answered(&span, answer.status());
            Ok(answer.map(Either::Left))
        })
    }
}

fn not_found() -> Response<Bytes> {
    let mut answer = Response::new(Bytes::new());
    *answer.status_mut() = StatusCode::NOT_FOUND;
    answer
}
