//! Between the decision and `respond`: a replay that is not just the stored response.
//!
//! The layer asks the application whether the caller may still see the response, and fetches the
//! current representation, as the route's settings say. Nothing here executes the operation: where
//! the application does not answer, the retry is refused, and may come again.

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue, LOCATION};
use http::{Request, Response, StatusCode};
use semel_core::{Identity, OperationId};
use tokio::time::timeout;

use crate::bounds::BoxError;
use crate::reason;
use crate::refusal::Refusal;
use crate::replay::{self, StoredHead};
use crate::route::{Guard, ReplayCall, ReplaySource, Retry};
use crate::rules::Rules;
use crate::{spans, stored};

/// Marks a replay whose body is the current representation.
const RECONSTRUCTED: HeaderName = HeaderName::from_static("semel-reconstructed");

/// The response to a retry in place of the stored one. `None` where the stored one is sent.
pub(crate) async fn replace_stored(
    rules: &Rules,
    guard: &Guard,
    identity: &Identity,
    request: &Request<Bytes>,
    stored: impl FnOnce() -> Option<StoredHead>,
) -> Option<Response<Bytes>> {
    if guard.route.replay.is_plain() {
        return None;
    }
    // An invalid response has no head, and is refused by `respond`.
    let stored = stored()?;
    // Boxed: nearly all replays do not need the room.
    Box::pin(ask_and_fetch(rules, guard, identity, request, stored)).await
}

/// The current representation for the client whose request was executed, where another writer
/// completed the record without a body. `None` where the route does not fetch it.
pub(crate) async fn fetch_first(
    rules: &Rules,
    guard: &Guard,
    identity: &Identity,
    request: &Request<Bytes>,
    stored: StoredHead,
) -> Option<Response<Bytes>> {
    let replay = &guard.route.replay;
    let source = replay.source(stored.status, stored.schema_version);
    let fetch = replay
        .reconstruct
        .as_ref()
        .filter(|_| source == ReplaySource::Current)?;
    let retry = retry(identity, request, &stored);
    let mut response = fetch_stored(rules, guard, fetch, retry, &stored).await;
    // It is the first response, not a replay.
    response.headers_mut().remove(&rules.replayed);
    Some(response)
}

fn retry(identity: &Identity, request: &Request<Bytes>, stored: &StoredHead) -> Retry {
    Retry {
        id: stored.id,
        identity: identity.clone(),
        resource: stored.resource.clone(),
        status: stored.status,
        head: request.clone().into_parts().0,
    }
}

async fn ask_and_fetch(
    rules: &Rules,
    guard: &Guard,
    identity: &Identity,
    request: &Request<Bytes>,
    stored: StoredHead,
) -> Option<Response<Bytes>> {
    let replay = &guard.route.replay;
    let retry = || retry(identity, request, &stored);
    if let Some(ask) = &replay.authorize
        && let Some(denied) = ask_application(rules, guard, ask, retry()).await
    {
        return Some(denied);
    }
    match (
        replay.source(stored.status, stored.schema_version),
        &replay.reconstruct,
    ) {
        (ReplaySource::Stored, _) => None,
        (ReplaySource::Current, Some(fetch)) => {
            Some(fetch_stored(rules, guard, fetch, retry(), &stored).await)
        }
        // `Guard::new` refuses a route without the function.
        (ReplaySource::Refused, _) | (ReplaySource::Current, None) => {
            let refusal = Refusal {
                resource: stored.resource,
                location: stored.location,
                ..Refusal::new(&reason::NOT_STORED).operation(stored.id)
            };
            Some(refusal.render(rules))
        }
    }
}

/// Asks whether the caller may still see the response. `None`: it may.
async fn ask_application(
    rules: &Rules,
    guard: &Guard,
    ask: &ReplayCall,
    retry: Retry,
) -> Option<Response<Bytes>> {
    let id = retry.id;
    let error = match call(guard, ask, retry).await {
        Ok(answer) => match answer.status() {
            status if status.is_success() => return None,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Some(answer),
            status => format!("the answer was {status}").into(),
        },
        Err(error) => error,
    };
    Some(unavailable(rules, id, &error, "the caller's permission"))
}

/// The replay with the current representation, or a refusal.
async fn fetch_stored(
    rules: &Rules,
    guard: &Guard,
    fetch: &ReplayCall,
    retry: Retry,
    stored: &StoredHead,
) -> Response<Bytes> {
    match fetch_current(guard, fetch, retry).await {
        Ok(current) => reconstruct(rules, stored, current),
        Err(error) => unavailable(rules, stored.id, &error, "the current representation"),
    }
}

/// Fetches the current representation, as the response would be stored.
async fn fetch_current(
    guard: &Guard,
    fetch: &ReplayCall,
    retry: Retry,
) -> Result<semel_core::Response, BoxError> {
    let status = retry.status.as_u16();
    let response = call(guard, fetch, retry).await?;
    if !response.status().is_success() {
        return Err(format!("the answer was {}", response.status()).into());
    }
    if response.body().len() > guard.route.max_response {
        return Err("the answer is larger than `max_response`".into());
    }
    Ok(semel_core::Response {
        status,
        headers: guard.route.stored_headers(response.headers()),
        body: Some(response.into_body()),
        schema_version: guard.route.replay.schema,
    })
}

async fn call(
    guard: &Guard,
    function: &ReplayCall,
    retry: Retry,
) -> Result<Response<Bytes>, BoxError> {
    let bound = guard.route.execute_max;
    let answered = timeout(bound, function.call(retry)).await;
    answered.unwrap_or_else(|_| Err(format!("there was no answer within {bound:?}").into()))
}

/// The current representation, under the stored status and `Location`.
fn reconstruct(
    rules: &Rules,
    stored: &StoredHead,
    current: semel_core::Response,
) -> Response<Bytes> {
    let Some(head) = stored::head(&current) else {
        let error = "the answer has an invalid header".into();
        return unavailable(rules, stored.id, &error, "the current representation");
    };
    let mut response = head.map(|()| current.body.unwrap_or_default());
    let headers = response.headers_mut();
    if let Some(location) = &stored.location {
        headers.insert(LOCATION, location.clone());
    }
    headers.insert(RECONSTRUCTED, HeaderValue::from_static("true"));
    replay::mark(rules, headers, stored.expires.clone());
    response
}

fn unavailable(
    rules: &Rules,
    id: OperationId,
    error: &BoxError,
    asked_for: &str,
) -> Response<Bytes> {
    spans::logged(id, None, None).in_scope(
        || tracing::warn!(%id, error, asked_for, "the application did not answer for a replay; the retry is refused"),
    );
    let refusal = Refusal::new(&reason::REPLAY_UNAVAILABLE).operation(id);
    refusal.render(rules)
}
