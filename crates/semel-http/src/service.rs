//! The layer around one service.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use semel_core::Store;
use semel_core::key::Dialect;

use crate::answer::Refusal;
use crate::body::{RequestBody, ResponseBody, Settled};
use crate::extract::{Extracted, extract};
use crate::guarded::guarded;
use crate::layer::Layer;
use crate::outcome::{Ending, Outcome, Words, strip};
use crate::{reason, resource, together};

/// Any error of a body or a service.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A service that the layer can stand in front of: `B` is the client's body, `R` its own.
///
/// Implemented for every service of the right shape; it only gives the shape a name.
pub(crate) trait Inner<B, R>:
    tower_service::Service<
        Request<RequestBody<B>>,
        Response = Response<R>,
        Error: Into<BoxError>,
        Future: Send + 'static,
    > + Send
    + 'static
{
}

impl<T, B, R> Inner<B, R> for T where
    T: tower_service::Service<
            Request<RequestBody<B>>,
            Response = Response<R>,
            Error: Into<BoxError>,
            Future: Send + 'static,
        > + Send
        + 'static
{
}

/// A body that the layer can read or pass on.
pub(crate) trait Flow: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static {}

impl<T> Flow for T where T: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static {}

/// What [`Layer`] makes of a service.
#[derive(Debug)]
pub struct Service<S, I> {
    layer: Layer<S>,
    inner: I,
}

pin_project! {
    /// The answer to a request.
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
        Passed { #[pin] inner: F, dialect: Dialect },
        Guarded { inner: Pin<Box<dyn Future<Output = Response<ResponseBody<B>>> + Send>> },
        Refused { answer: Option<Response<Bytes>> },
    }
}

impl<S, I> Service<S, I> {
    pub(crate) fn new(layer: Layer<S>, inner: I) -> Self {
        Self { layer, inner }
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
        let kind = match extract(rules, &request) {
            Extracted::Pass => Kind::Passed {
                inner: self.inner.call(request.map(RequestBody::streaming)),
                dialect: rules.dialect,
            },
            Extracted::Refuse(refusal) => Kind::Refused {
                answer: Some(refusal.render(rules.dialect)),
            },
            Extracted::Guard(guard, key, line) => {
                // The one that was polled ready is the one that is called.
                let clone = self.inner.clone();
                let inner = std::mem::replace(&mut self.inner, clone);
                let answer = guarded(self.layer.clone(), guard, key, line, request, inner);
                Kind::Guarded {
                    inner: Box::pin(answer),
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
            KindProjection::Passed { inner, dialect } => {
                let response = ready!(inner.poll(context))?;
                Poll::Ready(Ok(passed(response, *dialect)))
            }
            KindProjection::Guarded { inner } => inner.as_mut().poll(context).map(Ok),
            KindProjection::Refused { answer } => {
                let answer = answer.take().unwrap_or_default();
                Poll::Ready(Ok(settled(answer)))
            }
        }
    }
}

/// An answer of the layer's own.
pub(crate) fn settled<B>(answer: Response<Bytes>) -> Response<ResponseBody<B>> {
    answer.map(|body| ResponseBody::settled(Settled::whole(body, None)))
}

/// An answer to a request that is not guarded: as it is, unless whoever gave it left the
/// words to the layer.
fn passed<B>(mut response: Response<B>, dialect: Dialect) -> Response<ResponseBody<B>> {
    if together::take(&mut response).is_some() {
        // Its rows are rolled back, so it must not say that they are there.
        tracing::error!(
            "a request that is not guarded was answered with a transaction, and there is nothing to complete"
        );
        return settled(Refusal::new(&reason::NOT_EXECUTED).render(dialect));
    }
    let _ = resource::take(&mut response);
    let reason = match strip(&mut response) {
        Some(Outcome {
            words: Words::Unreachable,
            ..
        }) => &reason::UPSTREAM_UNREACHABLE,
        Some(Outcome {
            words: Words::Layer,
            ending,
            ..
        }) => match ending {
            Ending::Unknown => &reason::UPSTREAM_FAILED,
            Ending::NotExecuted | Ending::Forget => &reason::NOT_EXECUTED,
            Ending::Completed => return response.map(ResponseBody::passed),
        },
        Some(Outcome {
            words: Words::Application,
            ..
        })
        | None => return response.map(ResponseBody::passed),
    };
    settled(Refusal::new(reason).render(dialect))
}
