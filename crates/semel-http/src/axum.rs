//! Extractors and responses for axum handlers.

use std::future::IntoFuture;
use std::sync::{Arc, PoisonError};

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
use semel_core::{Fence, LocalPhase, Transaction};

use crate::commit_with::{CapturedExtensions, CommitWith};
use crate::operation::Operation;
use crate::outcome::Outcome;
use crate::phases::{Phases, Stopped};
use crate::route::ParsedCommand;

/// Largest body of a response that is produced inside of a transaction. It is in memory already;
/// the bound stops a body that never ends.
pub const MAX_CAPTURED_BYTES: usize = 8 << 20;

/// A handler that takes an [`Operation`] runs only where the request is guarded.
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

/// A handler takes an [`Operation`], and the request is not guarded: the layer is missing, or the
/// route's key is optional and the handler should take `Option<Operation>`.
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

/// The command of a request, parsed and validated by the layer before it reserved the key: the
/// route has to say so with [`Route::command`](crate::Route::command). The fingerprint is taken of
/// this value, so a retry is compared by what the handler is given.
///
/// ```
/// use axum::{Router, routing::post};
/// use semel_core::Memory;
/// use semel_http::{Command, Layer, Operation, tenant};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Deserialize, Serialize)]
/// struct Pay {
///     amount: u64,
///     currency: String,
///     #[serde(default)]
///     capture: bool,
/// }
///
/// fn validate(pay: &Pay) -> Result<(), &'static str> {
///     if pay.amount == 0 { Err("the amount must not be zero") } else { Ok(()) }
/// }
///
/// async fn create_payment(operation: Operation, Command(pay): Command<Pay>) -> String {
///     format!("{} {} under {}", pay.amount, pay.currency, operation.id())
/// }
///
/// let app: Router = Router::new().route("/payments", post(create_payment)).layer(
///     Layer::new(Memory::default())
///         .tenant(tenant::header("X-Account-Id"))
///         .route("POST /payments", |route| {
///             route.operation("create_payment").command_with(validate)
///         }),
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command<T>(pub T);

/// A handler takes a [`Command`] once for each guarded request.
impl<C: Send + 'static, T: Sync> FromRequestParts<T> for Command<C> {
    type Rejection = NoCommand;

    async fn from_request_parts(head: &mut Parts, _: &T) -> Result<Self, NoCommand> {
        let parsed = head.extensions.get::<ParsedCommand>();
        let command = parsed.and_then(ParsedCommand::take);
        command.map(Self).ok_or(NoCommand)
    }
}

/// A handler takes a [`Command`], and the layer has parsed none of this type: the route does not
/// call [`command`](crate::Route::command) with it, or the request is not guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCommand;

impl IntoResponse for NoCommand {
    fn into_response(self) -> axum::response::Response {
        tracing::error!(
            "a handler takes a Command, and the layer parsed none: does the route call `command` with this type, and is the key required?"
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

impl IntoResponse for CommitWith<Body> {
    fn into_response(self) -> axum::response::Response {
        Self::into_response(self)
    }
}

impl CommitWith<Body> {
    /// For a store that runs the handler's work inside its own transaction, on its own thread:
    /// `begin` creates that transaction, and the work passes its response to
    /// [`ResponseCapture::capture`].
    pub fn capture_response<T: Transaction>(
        operation: Operation,
        begin: impl FnOnce(ResponseCapture) -> T,
    ) -> Self {
        let captured = CapturedExtensions::default();
        let transaction = begin(ResponseCapture(Arc::clone(&captured)));
        Self::with_captured(operation, transaction, captured)
    }
}

impl Phases {
    /// The last phase: the rows of the transaction and the response are committed together, and the
    /// operation is over. The response is judged as any other.
    ///
    /// `work` is as in [`phase`](Phases::phase), except that its result is a response. An operation
    /// that ends without writing anything just returns its response.
    ///
    /// # Errors
    /// As [`phase`](Phases::phase).
    pub async fn finish<T, L, E>(
        self,
        work: impl IntoFuture<Output = Result<L, E>>,
    ) -> Result<axum::response::Response, Stopped>
    where
        T: IntoResponse + Send + 'static,
        L: Into<LocalPhase<T>>,
        E: Into<Source>,
    {
        self.check_end()?;
        let local: LocalPhase<T> = match work.await {
            Ok(local) => local.into(),
            Err(error) => return Err(self.back_out("finish", "failed", error)),
        };
        let (transaction, found) = local.into_parts();
        let on_rollback = self.on_rollback();
        let commit = CommitWith::capture_response(self.into_operation(), |capture| WithResponse {
            transaction,
            answer: Box::new(move || capture.capture(found()?).ok()),
        });
        Ok(commit.on_rollback(on_rollback).into_response())
    }
}

/// A transaction whose result is turned into a response.
struct WithResponse {
    transaction: Box<dyn Transaction>,
    answer: Box<dyn FnOnce() -> Option<semel_core::Response> + Send>,
}

impl Transaction for WithResponse {
    fn finish(self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing {
        let Self {
            transaction,
            answer,
        } = *self;
        transaction.finish(fence, Box::new(move |_| conclude(answer())))
    }
}

/// Captures the response of work that runs inside of a transaction.
#[derive(Debug)]
pub struct ResponseCapture(CapturedExtensions);

/// The body of the response is not in memory, for example because it is streamed: a transaction
/// does not wait for it.
#[derive(Debug, thiserror::Error)]
#[error(
    "the body of the response is streamed, incomplete, or larger than {MAX_CAPTURED_BYTES} bytes: return a body that is in memory"
)]
pub struct BodyNotReady;

impl ResponseCapture {
    /// The response as the transaction passes it to the layer. Extensions, such as an [`Outcome`] or
    /// a [`Resource`](semel_core::Resource), count as always.
    ///
    /// # Errors
    /// [`BodyNotReady`].
    pub fn capture(self, answer: impl IntoResponse) -> Result<semel_core::Response, BodyNotReady> {
        let (head, body) = answer.into_response().into_parts();
        let body = Limited::new(body, MAX_CAPTURED_BYTES)
            .collect()
            .now_or_never();
        let body = body.and_then(Result::ok).ok_or(BodyNotReady)?.to_bytes();
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
