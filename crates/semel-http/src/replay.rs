//! Responses from the store.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Response;
use http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use semel_core::Timestamp;
use semel_core::key::Dialect;
use semel_core::transition::Replay;

use crate::cache::StoredResponse;
use crate::reason;
use crate::refusal::{Refusal, forbid_retry};
use crate::rules::Rules;
use crate::{spans, stored};

/// Until when a retry is answered.
const EXPIRES: HeaderName = HeaderName::from_static("idempotency-key-expires");

/// The stored response, ready to be sent; or a refusal where it is not complete any more.
pub(crate) fn from_store(found: Replay, now: Timestamp) -> Result<StoredResponse, Box<Refusal>> {
    let gone = |location| {
        Box::new(Refusal {
            resource: found.resource.clone(),
            location,
            ..Refusal::new(&reason::NOT_STORED).operation(found.id)
        })
    };
    let Some(head) = stored::head(&found.response) else {
        spans::logged(found.id, None, None).in_scope(
            || tracing::error!(id = %found.id, "a stored response is not a valid response"),
        );
        return Err(gone(None));
    };
    // The body expires at its instant, whether or not the worker has removed it.
    let over = found.body_expires_at.is_some_and(|at| at <= now);
    let Some(body) = found.response.body.filter(|_| !over) else {
        return Err(gone(head.headers().get(LOCATION).cloned()));
    };
    let (head, ()) = head.into_parts();
    Ok(StoredResponse {
        id: found.id,
        status: head.status,
        headers: head.headers,
        body,
        expires_at: found.expires_at,
        expires: expiry(found.expires_at),
        body_expires_at: found.body_expires_at,
    })
}

/// The stored response to a retry.
pub(crate) fn replay(rules: &Rules, found: StoredResponse) -> Response<Bytes> {
    let mut response = first(found);
    let is_failure = response.status().is_server_error();
    let headers = response.headers_mut();
    headers.insert(rules.replayed.clone(), HeaderValue::from_static("true"));
    if rules.dialect == Dialect::Stripe && is_failure {
        forbid_retry(headers);
    }
    response
}

/// The stored response for the client whose request was executed: it is not a replay.
pub(crate) fn first(found: StoredResponse) -> Response<Bytes> {
    let mut response = Response::new(found.body);
    *response.status_mut() = found.status;
    let headers = response.headers_mut();
    *headers = found.headers;
    headers.insert(EXPIRES, found.expires);
    response
}

/// Adds the time until which a retry is replayed.
pub(crate) fn disclose_expiry(headers: &mut HeaderMap, expires_at: Timestamp) {
    headers.insert(EXPIRES, expiry(expires_at));
}

/// Whole seconds, rounded down: never later than the truth.
fn expiry(expires_at: Timestamp) -> HeaderValue {
    let micros = u64::try_from(expires_at.as_micros()).unwrap_or(0);
    // The format has no years beyond these.
    let seconds = (micros / 1_000_000).min(253_402_300_799);
    let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    // A date is always a header's value.
    HeaderValue::from_maybe_shared(Bytes::from(date))
        .unwrap_or_else(|_| HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}
