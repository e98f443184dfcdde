//! What a handler in axum can take and return.

use axum::extract::FromRequestParts;
use axum::response::IntoResponse;
use http::StatusCode;
use http::request::Parts;

use crate::{Operation, Outcome};

/// A handler that takes an [`Operation`] runs only where the layer granted one.
impl<T: Sync> FromRequestParts<T> for Operation {
    type Rejection = NotGuarded;

    async fn from_request_parts(head: &mut Parts, _: &T) -> Result<Self, NotGuarded> {
        head.extensions.get().copied().ok_or(NotGuarded)
    }
}

/// Without a key on a route where it is optional, there is no operation.
impl<T: Sync> axum::extract::OptionalFromRequestParts<T> for Operation {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(head: &mut Parts, _: &T) -> Result<Option<Self>, Self::Rejection> {
        Ok(head.extensions.get().copied())
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
