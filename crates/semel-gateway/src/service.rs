//! Routes each request: paths under `/.semel/` are answered here, everything else goes through the
//! layer to the upstream.

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

use crate::admin::FullStore;
use crate::error_pages::{self, ERROR_PATH};
use crate::regions::{self, Sender};
use crate::server::Incoming;
use crate::telemetry::request;
use crate::upstream::{Body, Forward};
use crate::webhooks::WEBHOOK_PATH;

/// Path prefix of the status endpoint, on the gateway listener.
pub const STATUS_PATH: &str = "/.semel/operations/";

/// Requests below this prefix are never sent to the upstream.
const INTERNAL_PREFIX: &str = "/.semel/";

/// The layer in use. A configuration reload replaces it; requests that already started keep the
/// layer they started with.
pub type CurrentLayer<S> = Arc<ArcSwap<Layer<S>>>;

/// The state behind the routes that the gateway answers itself, other than the status endpoint.
#[derive(Debug)]
pub struct InternalRoutes<S> {
    /// Receives webhook events.
    pub store: S,
    /// The configured webhook sources. A reload replaces them.
    pub sources: ArcSwap<Sources>,
}

/// The gateway as a tower service: one per worker thread, with that worker's upstream connections.
#[derive(Debug)]
pub struct GatewayService<S> {
    layer: CurrentLayer<S>,
    internal: Arc<InternalRoutes<S>>,
    upstream: Forward,
}

impl<S> GatewayService<S> {
    /// Puts `layer` in front of `upstream`.
    pub fn new(
        layer: CurrentLayer<S>,
        internal: Arc<InternalRoutes<S>>,
        upstream: Forward,
    ) -> Self {
        Self {
            layer,
            internal,
            upstream,
        }
    }
}

impl<S> Clone for GatewayService<S> {
    fn clone(&self) -> Self {
        Self {
            layer: Arc::clone(&self.layer),
            internal: Arc::clone(&self.internal),
            upstream: self.upstream.clone(),
        }
    }
}

type Answer = Response<Either<ResponseBody<Body>, Full<Bytes>>>;

impl<S: FullStore> Service<Request<Incoming>> for GatewayService<S> {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let Some(peers) = self.upstream.peers() else {
            return self.route(request, Sender::Client);
        };
        let regions = Arc::clone(peers.regions());
        let sender = regions.sender(request.headers_mut());
        let answered = match &sender {
            Sender::Client => return self.route(request, sender),
            Sender::Region(from) => {
                request.extensions_mut().insert(from.clone());
                self.route(request, sender)
            }
            Sender::Refused { detail, has_token } => {
                tracing::debug!(detail, "refused a request in the name of another region");
                let refused = self.layer.load().region_mismatch(*detail);
                let mut refused = refused.map(|body| Either::Right(Full::new(body)));
                if *has_token {
                    regions.mark(refused.headers_mut());
                }
                return Box::pin(std::future::ready(Ok(refused)));
            }
        };
        Box::pin(async move {
            let mut answer = answered.await?;
            regions.mark(answer.headers_mut());
            Ok(answer)
        })
    }
}

impl<S: FullStore> GatewayService<S> {
    fn route(
        &self,
        request: Request<Incoming>,
        sender: Sender,
    ) -> <Self as Service<Request<Incoming>>>::Future {
        let peers = self.upstream.peers().cloned();
        if request.uri().path().starts_with(WEBHOOK_PATH) {
            let internal = Arc::clone(&self.internal);
            return Box::pin(async move {
                let (store, sources) = (&internal.store, internal.sources.load());
                let peers = peers.as_ref();
                let answer =
                    regions::answer_webhook(store, &sources, peers, &sender, request).await;
                Ok(answer.map(|body| Either::Right(Full::new(body))))
            });
        }
        if request.uri().path().starts_with(ERROR_PATH) {
            let answer = error_pages::answer(request.method(), request.uri().path());
            let answer = answer.map(|body| Either::Right(Full::new(body)));
            return Box::pin(std::future::ready(Ok(answer)));
        }
        if request.uri().path().starts_with(INTERNAL_PREFIX) {
            let layer = self.layer.load_full();
            return Box::pin(async move {
                let (head, _) = request.into_parts();
                let answer = regions::answer_status(&layer, peers.as_ref(), &sender, &head).await;
                let answer = answer.unwrap_or_else(not_found);
                Ok(answer.map(|body| Either::Right(Full::new(body))))
            });
        }
        let span = request::span(&request);
        let answer = span.in_scope(|| self.layer.load().layer(self.upstream.clone()).call(request));
        Box::pin(async move {
            let answer = answer.instrument(span.clone()).await?;
            request::record_status(&span, answer.status());
            Ok(answer.map(Either::Left))
        })
    }
}

fn not_found() -> Response<Bytes> {
    let mut answer = Response::new(Bytes::new());
    *answer.status_mut() = StatusCode::NOT_FOUND;
    answer
}
