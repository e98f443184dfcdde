//! Transitions as they happen, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use semel_core::Status;
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;

use super::{FullStore, Shared};
use crate::admin::access::Caller;
use crate::admin::openapi::AuthProblems;
use crate::observed::Transition;

/// How soon a stream ends after the session that opened it.
const SESSION_CHECK: Duration = Duration::from_secs(1);

/// The keep-alive interval. Proxies often close a stream that is silent for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Serialize)]
struct TransitionView {
    id: String,
    attempt: u32,
    status: Option<&'static str>,
    verb: &'static str,
    at_us: i64,
}

/// Stream the transitions of this process as server-sent events.
///
/// The stream ends with the session of its caller. A client that is too slow receives the event `missed` with the number of skipped transitions.
#[utoipa::path(
    get,
    path = "/events",
    operation_id = "stream_events",
    tag = "operations",
    responses(
        (
            status = 200,
            description = "An endless stream: `transition` with an object, or `missed` with a number.",
            body = String,
            content_type = "text/event-stream",
        ),
        AuthProblems,
    ),
)]
pub(super) async fn stream<S: FullStore>(State(api): Shared<S>, caller: Caller) -> Response {
    let listening = (api.events.listen(), caller, api.store.clock());
    let transitions = stream::unfold(listening, |(mut receiver, caller, clock)| async move {
        let received = loop {
            tokio::select! {
                received = receiver.recv() => break received,
                () = tokio::time::sleep(SESSION_CHECK) => {}
            }
            if !caller.is_live(clock.now()) {
                return None;
            }
        };
        if !caller.is_live(clock.now()) {
            return None;
        }
        let event = match received {
            Ok(transition) => Event::default()
                .event("transition")
                .data(to_json(&transition)),
            Err(RecvError::Lagged(missed)) => {
                Event::default().event("missed").data(missed.to_string())
            }
            Err(RecvError::Closed) => return None,
        };
        Some((Ok::<_, Infallible>(event), (receiver, caller, clock)))
    });
    Sse::new(transitions)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response()
}

fn to_json(transition: &Transition) -> String {
    let view = TransitionView {
        id: transition.fence.id.to_string(),
        attempt: transition.fence.attempt,
        status: transition.status.map(Status::as_str),
        verb: transition.verb,
        at_us: transition.at.as_micros(),
    };
    // Serializing a struct of strings and numbers cannot fail.
    serde_json::to_string(&view).unwrap_or_default()
}
