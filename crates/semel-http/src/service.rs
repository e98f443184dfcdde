//! The layer around one service.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use semel_core::Store;
use tracing::Instrument as _;

use crate::body::{RequestBody, ResponseBody, from_bytes};
use crate::bounds::{BoxError, ByteBody, InnerService};
use crate::extract::{KeyedRoute, RouteMatch, match_route};
use crate::home::FromRegion;
use crate::layer::Layer;
use crate::outcome::{Outcome, OutcomeKind, ResponseSource, strip};
use crate::refusal::Refusal;
use crate::rules::Rules;
use crate::{commit_with, pipeline, reason, resource, schema, spans};

/// A service with a [`Layer`] around it.
#[derive(Debug)]
pub struct Service<S, I> {
    layer: Layer<S>,
    inner: I,
}

pin_project! {
    /// The response to a request.
    ///
    /// Dropping it does not stop an execution that began.
    #[project = FutureProjection]
    pub struct ResponseFuture<F, B> {
        #[pin]
        kind: Kind<F, B>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<F, B> {
        Passed { #[pin] inner: F, rules: Arc<Rules> },
        Guarded { inner: Pin<Box<dyn Future<Output = Response<ResponseBody<B>>> + Send>> },
        Refused { response: Option<Response<Bytes>> },
    }
}

impl<S: Store, I> tower_layer::Layer<I> for Layer<S> {
    type Service = Service<S, I>;

    fn layer(&self, inner: I) -> Self::Service {
        Service {
            layer: self.clone(),
            inner,
        }
    }
}

impl<S, I: Clone> Clone for Service<S, I> {
    fn clone(&self) -> Self {
        Self {
            layer: self.layer.clone(),
            inner: self.inner.clone(),
        }
    }
}

impl<S, I, B, R> tower_service::Service<Request<B>> for Service<S, I>
where
    S: Store,
    I: tower_service::Service<Request<RequestBody<B>>, Response = Response<R>>
        + Clone
        + Send
        + 'static,
    I::Future: Send + 'static,
    I::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = I::Error;
    type Future = ResponseFuture<I::Future, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rules = &self.layer.rules;
        let kind = match match_route(rules, &request) {
            // It would execute without a record, and the region that sent it guards it.
            RouteMatch::Pass if request.extensions().get::<FromRegion>().is_some() => {
                tracing::error!("another region guards a request that no route here guards");
                Kind::Refused {
                    response: Some(Refusal::new(&reason::REGION_MISMATCH).render(rules)),
                }
            }
            RouteMatch::Pass => Kind::Passed {
                inner: self.inner.call(request.map(RequestBody::streaming)),
                rules: Arc::clone(rules),
            },
            RouteMatch::Refuse(refusal) => Kind::Refused {
                response: Some(refusal.render(rules)),
            },
            RouteMatch::Guard(route) => {
                // Calls the service that was polled ready, and leaves its clone.
                let clone = self.inner.clone();
                let inner = std::mem::replace(&mut self.inner, clone);
                let response = guarded(self.layer.clone(), route, request, inner);
                Kind::Guarded {
                    inner: Box::pin(response),
                }
            }
        };
        ResponseFuture { kind }
    }
}

impl<F, B, E> Future for ResponseFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Passed { inner, rules } => {
                let response = ready!(inner.poll(context))?;
                Poll::Ready(Ok(passed(response, rules)))
            }
            KindProjection::Guarded { inner } => inner.as_mut().poll(context).map(Ok),
            KindProjection::Refused { response } => {
                let response = response.take().unwrap_or_default();
                Poll::Ready(Ok(from_bytes(response)))
            }
        }
    }
}

/// Runs the pipeline within the request's span, and echoes the key.
async fn guarded<S, I, B, R>(
    layer: Layer<S>,
    route: KeyedRoute,
    request: Request<B>,
    inner: I,
) -> Response<ResponseBody<R>>
where
    S: Store,
    I: InnerService<B, R>,
    B: ByteBody,
    R: ByteBody,
{
    let span = spans::guard(&route.guard);
    let key_line = route.key_line.clone();
    let running = pipeline::run(&layer, route, request, inner, span.clone());
    let response = running.instrument(span).await;
    let rules = &layer.rules;
    let mut response = response.unwrap_or_else(|refusal| from_bytes(refusal.render(rules)));
    response
        .headers_mut()
        .insert(rules.header.clone(), key_line);
    response
}

/// The response to a request that is not guarded: as it is, unless the application left it to the
/// layer.
fn passed<B>(mut response: Response<B>, rules: &Rules) -> Response<ResponseBody<B>> {
    if commit_with::take_pending(&mut response).is_some() {
        // The rows are rolled back, so the response must not claim them.
        tracing::error!(
            "a request that is not guarded was answered with a transaction, and there is nothing to complete"
        );
        return from_bytes(Refusal::new(&reason::NOT_EXECUTED).render(rules));
    }
    let _ = resource::take(&mut response);
    let _ = schema::take(&mut response);
    let reason = match strip(&mut response) {
        Some(Outcome {
            source: ResponseSource::Unreachable,
            ..
        }) => &reason::UPSTREAM_UNREACHABLE,
        Some(Outcome {
            source: ResponseSource::Layer,
            kind,
            ..
        }) => match kind {
            OutcomeKind::Unknown => &reason::UPSTREAM_FAILED,
            OutcomeKind::NotExecuted | OutcomeKind::Forget => &reason::NOT_EXECUTED,
            OutcomeKind::Completed => return response.map(ResponseBody::passed),
        },
        Some(Outcome {
            source: ResponseSource::Application,
            ..
        })
        | None => return response.map(ResponseBody::passed),
    };
    from_bytes(Refusal::new(reason).render(rules))
}
