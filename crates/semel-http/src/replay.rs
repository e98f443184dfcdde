//! Responses from the store.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use http::{Response, StatusCode};
use semel_core::key::Dialect;
use semel_core::transition::Replay;
use semel_core::{Completion, OperationId, Resource, Timestamp};

use crate::cache::StoredResponse;
use crate::reason;
use crate::refusal::{Refusal, forbid_retry};
use crate::route::Guard;
use crate::rules::Rules;
use crate::{schema, spans, stored};

/// Until when a retry is answered.
const EXPIRES: HeaderName = HeaderName::from_static("idempotency-key-expires");

/// A stored response without its body.
pub(crate) struct StoredHead {
    pub(crate) id: OperationId,
    pub(crate) status: StatusCode,
    pub(crate) schema_version: u16,
    pub(crate) resource: Option<Resource>,
    pub(crate) location: Option<HeaderValue>,
    pub(crate) expires: HeaderValue,
}

/// The head of what the store found; `None` where it is not a valid response.
pub(crate) fn head_in_store(found: &Replay) -> Option<StoredHead> {
    let head = stored::head(&found.response)?;
    Some(StoredHead {
        id: found.id,
        status: head.status(),
        schema_version: found.response.schema_version,
        resource: found.resource.clone(),
        location: head.headers().get(LOCATION).cloned(),
        expires: expiry(found.expires_at),
    })
}

/// The head of what the replay cache found.
pub(crate) fn head_in_cache(found: &StoredResponse) -> StoredHead {
    StoredHead {
        id: found.id,
        status: found.status,
        schema_version: found.schema_version,
        resource: found.resource.clone(),
        location: found.headers.get(LOCATION).cloned(),
        expires: found.expires.clone(),
    }
}

/// The stored response, ready to be sent; or a refusal where it is not complete any more.
pub(crate) fn from_store(found: Replay, now: Timestamp) -> Result<StoredResponse, Box<Refusal>> {
    let schema_version = found.response.schema_version;
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
        schema_version,
        resource: found.resource,
        expires_at: found.expires_at,
        expires: expiry(found.body_expires_at.map_or(found.expires_at, |body| {
            // Without its body the response is not replayed.
            body.min(found.expires_at)
        })),
        body_expires_at: found.body_expires_at,
    })
}

/// The stored response to a retry, on a route with this schema version.
pub(crate) fn replay(rules: &Rules, schema: u16, found: StoredResponse) -> Response<Bytes> {
    let (stored_schema, expires) = (found.schema_version, found.expires.clone());
    let mut response = first(found);
    let is_failure = response.status().is_server_error();
    let headers = response.headers_mut();
    mark(rules, headers, expires);
    if stored_schema != schema {
        headers.insert(schema::HEADER, HeaderValue::from(stored_schema));
    }
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

/// Marks a replay.
pub(crate) fn mark(rules: &Rules, headers: &mut HeaderMap, expires: HeaderValue) {
    headers.insert(rules.replayed.clone(), HeaderValue::from_static("true"));
    headers.insert(EXPIRES, expires);
}

/// Adds the time until which a retry is replayed, if it is: a response without a stored body is
/// not, unless its body is fetched again.
pub(crate) fn disclose_expiry<B>(
    response: &mut Response<B>,
    guard: &Guard,
    completion: &Completion,
    expires_at: Timestamp,
) {
    let is_fetched = !guard.route.replay.stores_body(response.status());
    if is_fetched || completion.response.body.is_some() {
        response.headers_mut().insert(EXPIRES, expiry(expires_at));
    }
}

/// Whole seconds, rounded down: never later than the truth.
pub(crate) fn http_date(at: Timestamp) -> String {
    let micros = u64::try_from(at.as_micros()).unwrap_or(0);
    // The format has no years beyond these.
    let seconds = (micros / 1_000_000).min(253_402_300_799);
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

fn expiry(expires_at: Timestamp) -> HeaderValue {
    // A date is always a header's value.
    HeaderValue::from_maybe_shared(Bytes::from(http_date(expires_at)))
        .unwrap_or_else(|_| HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}
