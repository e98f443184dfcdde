//! Extractors whose rejections are [`Problem`]s. Handlers use these instead of axum's, which reject
//! with plain text.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Number;

use super::MAX_DECISION;
use crate::admin::problem::Problem;

/// The `{id}` of the path, not yet parsed.
pub(super) struct PathId(pub(super) String);

/// The query string.
pub(super) struct QueryParams<T>(pub(super) T);

/// The JSON body. An empty body counts as `{}`.
pub(super) struct JsonBody<T>(pub(super) T);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        // An id that is not UTF-8 becomes the empty one; neither exists.
        let id = Path::<String>::from_request_parts(parts, state).await;
        Ok(Self(id.map_or_else(|_| String::new(), |Path(id)| id)))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(params)) => Ok(Self(params)),
            Err(rejection) => Err(Problem::invalid_query(rejection.body_text())),
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        // Checked first: a form of another site cannot send JSON.
        if !is_json(request.headers()) {
            return Err(Problem::not_json());
        }
        let body = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| body_problem(&rejection))?;
        let body = if body.is_empty() { &b"{}"[..] } else { &body };
        let parsed = serde_json::from_slice(body);
        parsed
            .map(Self)
            .map_err(|error| Problem::invalid_decision(error.to_string()))
    }
}

/// An integer as JSON defines it: `201.0` is one.
pub(in crate::admin) struct JsonInteger<T>(pub(in crate::admin) T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for JsonInteger<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        let whole = number.as_u64().or_else(|| number.as_f64().and_then(whole));
        whole
            .and_then(|whole| T::try_from(whole).ok())
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("{number} is not a valid number here")))
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked before the cast"
)]
fn whole(number: f64) -> Option<u64> {
    let whole = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
    whole.then_some(number as u64)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok()?.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

fn body_problem(rejection: &BytesRejection) -> Problem {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        Problem::body_too_large(MAX_DECISION)
    } else {
        Problem::body_incomplete()
    }
}
