//! What a handler in axum can take and return.

use std::future::IntoFuture;
use std::sync::PoisonError;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::StatusCode;
use http::request::Parts;
use http_body_util::{BodyExt as _, Limited};
use semel_core::store::Source;
use semel_core::transaction::{Conclude, Finishing};
use semel_core::{Fence, Local, Transaction};

use crate::together::Aside;
use crate::{Operation, Outcome, Phases, Stopped, Together};

/// Largest body of an answer that is found inside of a transaction. It is in memory already;
/// this stops a body that would never end.
pub const MAX_INSIDE: usize = 8 << 20;

/// A handler that takes an [`Operation`] runs only where the layer granted one.
impl<T: Sync> FromRequestParts<T> for Operation {
    type Rejection = NotGuarded;

    async fn from_request_parts(head: &mut Parts, _: &T) -> Result<Self, NotGuarded> {
        head.extensions.get().cloned().ok_or(NotGuarded)
    }
}

/// Without a key on a route where it is optional, there is no operation.
impl<T: Sync> axum::extract::OptionalFromRequestParts<T> for Operation {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(head: &mut Parts, _: &T) -> Result<Option<Self>, Self::Rejection> {
        Ok(head.extensions.get().cloned())
    }
}

/// A handler wanted an [`Operation`], and the request is not guarded: the layer is missing,
/// or the route's key is optional and the handler takes no `Option<Operation>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotGuarded;

impl IntoResponse for NotGuarded {
    fn into_response(self) -> axum::response::Response {
        tracing::error!(
            "a handler takes an Operation, and the request is not guarded: is the layer there, and the key required?"
        );
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

impl IntoResponse for Outcome {
    fn into_response(self) -> axum::response::Response {
        Self::into_response(self)
    }
}

impl IntoResponse for Stopped {
    fn into_response(self) -> axum::response::Response {
        Self::into_response(self)
    }
}

impl IntoResponse for Together<Body> {
    fn into_response(self) -> axum::response::Response {
        Self::into_response(self)
    }
}

impl Together<Body> {
    /// For a store that runs the handler's work inside its own transaction, on a thread of its
    /// own: `begin` makes that transaction, and what the work returns becomes the answer by
    /// [`Answering::answer`].
    pub fn inside<T: Transaction>(
        operation: Operation,
        begin: impl FnOnce(Answering) -> T,
    ) -> Self {
        let aside = Aside::default();
        let transaction = begin(Answering(Aside::clone(&aside)));
        Self::with_aside(operation, transaction, aside)
    }
}

impl Phases {
    /// The last phase: what the transaction wrote and the answer that it found are committed
    /// together, and the operation is over. The answer is judged as any other.
    ///
    /// `work` is as in [`phase`](Phases::phase), except that it finds an answer. An operation that
    /// ends without writing anything just returns its answer.
    ///
    /// # Errors
    /// As [`phase`](Phases::phase).
    pub async fn finish<T, L, E>(
        self,
        work: impl IntoFuture<Output = Result<L, E>>,
    ) -> Result<axum::response::Response, Stopped>
    where
        T: IntoResponse + Send + 'static,
        L: Into<Local<T>>,
        E: Into<Source>,
    {
        self.check_end()?;
        let local: Local<T> = match work.await {
            Ok(local) => local.into(),
            Err(error) => return Err(self.back_out("finish", "failed", error)),
        };
        let (transaction, found) = local.into_parts();
        let undone = self.undone();
        let together = Together::inside(self.into_operation(), |answering| Answered {
            transaction,
            answer: Box::new(move || answering.answer(found()?).ok()),
        });
        Ok(together.undone(undone).into_response())
    }
}

/// A transaction that finds something to answer with, in front of one that finds an answer.
struct Answered {
    transaction: Box<dyn Transaction>,
    answer: Box<dyn FnOnce() -> Option<semel_core::Response> + Send>,
}

impl Transaction for Answered {
    fn finish(self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing {
        let Self {
            transaction,
            answer,
        } = *self;
        transaction.finish(fence, Box::new(move |_| conclude(answer())))
    }
}

/// Makes the answer of work that runs inside of a transaction.
#[derive(Debug)]
pub struct Answering(Aside);

/// An answer whose body cannot be had at once, as one that is streamed: a transaction does not
/// wait for it.
#[derive(Debug, thiserror::Error)]
#[error("the body of the answer is not ready, broke off, or is larger than {MAX_INSIDE} bytes")]
pub struct Unready;

impl Answering {
    /// What the transaction hands to the layer. Extensions, such as an [`Outcome`] or a
    /// [`Resource`](semel_core::Resource), count as they always do.
    ///
    /// # Errors
    /// Where the body is not ready.
    pub fn answer(self, answer: impl IntoResponse) -> Result<semel_core::Response, Unready> {
        let (head, body) = answer.into_response().into_parts();
        let body = Limited::new(body, MAX_INSIDE).collect().now_or_never();
        let body = body.and_then(Result::ok).ok_or(Unready)?.to_bytes();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = head.extensions;
        let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            (
                name.as_str().into(),
                Bytes::copy_from_slice(value.as_bytes()),
            )
        };
        Ok(semel_core::Response {
            status: head.status.as_u16(),
            headers: head.headers.iter().map(line).collect(),
            body: Some(body),
            schema_version: 0,
        })
    }
}
