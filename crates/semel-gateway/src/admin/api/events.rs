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

use super::{Shared, Whole};
use crate::admin::document::Refused;
use crate::observed::Transition;

/// How often a quiet stream says that it is alive: proxies end one that is silent for a minute.
const ALIVE: Duration = Duration::from_secs(15);

#[derive(Serialize)]
struct Shown {
    id: String,
    attempt: u32,
    status: Option<&'static str>,
    verb: &'static str,
    at_us: i64,
}

/// Every transition that this process makes, from now on.
///
/// A listener that is too slow gets the event `missed` with the number of those it did not get.
#[utoipa::path(
    get,
    path = "/events",
    operation_id = "stream_events",
    tag = "operations",
    responses(
        (
            status = 200,
            description = "Without an end: `transition` with an object, or `missed` with a number.",
            body = String,
            content_type = "text/event-stream",
        ),
        Refused,
    ),
)]
pub(super) async fn stream<S: Whole>(State(api): Shared<S>) -> Response {
    let transitions = stream::unfold(api.events.listen(), |mut listening| async move {
        let event = match listening.recv().await {
            Ok(transition) => Event::default()
                .event("transition")
                .data(shown(&transition)),
            Err(RecvError::Lagged(missed)) => {
                Event::default().event("missed").data(missed.to_string())
            }
            Err(RecvError::Closed) => return None,
        };
        Some((Ok::<_, Infallible>(event), listening))
    });
    Sse::new(transitions)
        .keep_alive(KeepAlive::new().interval(ALIVE))
        .into_response()
}

fn shown(transition: &Transition) -> String {
    let shown = Shown {
        id: transition.fence.id.to_string(),
        attempt: transition.fence.attempt,
        status: transition.status.map(Status::as_str),
        verb: transition.verb,
        at_us: transition.at.as_micros(),
    };
    // A struct of texts and numbers can always be written.
    serde_json::to_string(&shown).unwrap_or_default()
}
