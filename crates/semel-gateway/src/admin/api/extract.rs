//! What a request says, or the problem with it. Handlers take these and no extractor of axum's own,
//! whose refusals are no problems in the sense of RFC 9457.

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

/// The `{id}` of the path, which may be no id at all.
pub(super) struct Id(pub(super) String);

/// The query.
pub(super) struct Asked<T>(pub(super) T);

/// The body, which is JSON. Nothing at all is `{}`.
pub(super) struct Sent<T>(pub(super) T);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        // What is no text is nobody's id, as is the empty one.
        let id = Path::<String>::from_request_parts(parts, state).await;
        Ok(Self(id.map_or_else(|_| String::new(), |Path(id)| id)))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(asked)) => Ok(Self(asked)),
            Err(refused) => Err(Problem::query(refused.body_text())),
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Sent<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        // Before anything is read: a browser on another site can post a form, and not JSON.
        if !is_json(request.headers()) {
            return Err(Problem::media_type());
        }
        let body = Bytes::from_request(request, state)
            .await
            .map_err(|refused| unread(&refused))?;
        let body = if body.is_empty() { &b"{}"[..] } else { &body };
        let sent = serde_json::from_slice(body);
        sent.map(Self)
            .map_err(|error| Problem::decision(error.to_string()))
    }
}

/// A whole number as JSON has them, where `201.0` is one, too.
pub(in crate::admin) struct Count<T>(pub(in crate::admin) T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Count<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        let whole = number.as_u64().or_else(|| number.as_f64().and_then(whole));
        whole
            .and_then(|whole| T::try_from(whole).ok())
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("{number} is not a number that can be here")))
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what would be lost was looked for before"
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

fn unread(refused: &BytesRejection) -> Problem {
    if refused.status() == StatusCode::PAYLOAD_TOO_LARGE {
        Problem::too_large(MAX_DECISION)
    } else {
        Problem::incomplete()
    }
}
