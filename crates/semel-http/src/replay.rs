//! Last step: the stored answer, once more.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Response;
use http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use semel_core::Timestamp;
use semel_core::key::Dialect;
use semel_core::transition::Replay;

use crate::answer::{Refusal, never_again};
use crate::cache::Answer;
use crate::reason;
use crate::rules::Rules;
use crate::{spans, stored};

/// Until when a retry is answered.
const EXPIRES: HeaderName = HeaderName::from_static("idempotency-key-expires");

/// What the store remembered, ready to be sent; or what a client is told where it is not all
/// there any more.
pub(crate) fn from_store(found: Replay, now: Timestamp) -> Result<Answer, Box<Refusal>> {
    let gone = |location| {
        Box::new(Refusal {
            resource: found.resource.clone(),
            location,
            ..Refusal::new(&reason::NOT_STORED).operation(found.id)
        })
    };
    let Some(head) = stored::head(&found.response) else {
        spans::logged(found.id, None, None)
            .in_scope(|| tracing::error!(id = %found.id, "a stored response is no response"));
        return Err(gone(None));
    };
    // The body's time is over at its instant, whether or not somebody came to remove it.
    let over = found.body_expires_at.is_some_and(|at| at <= now);
    let Some(body) = found.response.body.filter(|_| !over) else {
        return Err(gone(head.headers().get(LOCATION).cloned()));
    };
    let (head, ()) = head.into_parts();
    Ok(Answer {
        id: found.id,
        status: head.status,
        headers: head.headers,
        body,
        expires_at: found.expires_at,
        expires: expiry(found.expires_at),
        body_expires_at: found.body_expires_at,
    })
}

/// The stored answer, to a retry.
pub(crate) fn respond(rules: &Rules, found: Answer) -> Response<Bytes> {
    let mut response = first(found);
    let is_failure = response.status().is_server_error();
    let headers = response.headers_mut();
    headers.insert(rules.replayed.clone(), HeaderValue::from_static("true"));
    if rules.dialect == Dialect::Stripe && is_failure {
        never_again(headers);
    }
    response
}

/// The stored answer, to the client whose request was executed: it is no replay.
pub(crate) fn first(found: Answer) -> Response<Bytes> {
    let mut response = Response::new(found.body);
    *response.status_mut() = found.status;
    let headers = response.headers_mut();
    *headers = found.headers;
    headers.insert(EXPIRES, found.expires);
    response
}

/// Tells the client until when a retry is answered.
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
