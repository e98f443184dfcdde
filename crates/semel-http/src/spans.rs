//! The spans of a guarded request, and the one that every log line of an execution carries.
//!
//! ```text
//! guard                    the whole request: operation, record, attempt, decision
//! ├── reserve              each time the store, or the replay cache, is asked
//! ├── execute              the handler or the upstream
//! └── complete             until the outcome is written
//! ```
//!
//! These four have the level `DEBUG`, and cost nothing where no subscriber enables it.
//! [`LOG_SPAN`] is created for each execution, at a level that every log has: it puts the
//! operation on the log lines, and is not part of a trace.
//!
//! **Invariant:** neither a key nor a tenant is a field of a span.

use http::Response;
use semel_core::{Decision, Fence, OperationId};
use tracing::field::{Empty, display};
use tracing::{Span, debug_span, error_span};

use crate::outcome::{Outcome, OutcomeKind, ResponseSource};
use crate::route::Guard;

/// The name of the span that is for logs only: a collector of traces leaves it out.
pub const LOG_SPAN: &str = "operation";

/// The record's public id.
const ID: &str = "semel.operation.id";
/// The number of the attempt.
const ATTEMPT: &str = "semel.attempt";
/// What the store decided.
const DECISION: &str = "semel.decision";
/// What becomes of the record.
const OUTCOME: &str = "semel.outcome";
/// The region that the request was forwarded to.
const HOME: &str = "semel.home";
/// As the HTTP conventions call it.
const STATUS: &str = "http.response.status_code";
/// Read by OpenTelemetry exporters.
const FAILED: (&str, &str) = ("otel.status_code", "ERROR");

/// Around a guarded request.
pub(crate) fn guard(guard: &Guard) -> Span {
    debug_span!(
        "guard",
        http.route = guard.path.as_deref(),
        semel.operation = guard.route.operation.as_deref(),
        semel.operation.id = Empty,
        semel.attempt = Empty,
        semel.decision = Empty,
        semel.home = Empty,
    )
}

/// The request is answered by another region.
pub(crate) fn forwarded(span: &Span, home: &str) {
    span.record(HOME, home);
}

/// Around one reservation.
pub(crate) fn reserve() -> Span {
    debug_span!(
        "reserve",
        semel.operation.id = Empty,
        semel.attempt = Empty,
        semel.decision = Empty,
        otel.status_code = Empty,
    )
}

/// Around the handler or the upstream.
pub(crate) fn execute(fence: Fence) -> Span {
    debug_span!(
        "execute",
        semel.operation.id = %fence.id,
        semel.attempt = fence.attempt,
        http.response.status_code = Empty,
        otel.status_code = Empty,
    )
}

/// Around the final write.
pub(crate) fn complete(fence: Fence) -> Span {
    debug_span!(
        "complete",
        semel.operation.id = %fence.id,
        semel.attempt = fence.attempt,
        semel.outcome = Empty,
    )
}

/// Around everything that is done for a record.
pub(crate) fn logged(id: OperationId, attempt: Option<u32>, operation: Option<&str>) -> Span {
    // The level of an error, so that every filter that passes a line passes its span, too. All
    // fields at once: recording one later formats them all again.
    error_span!(
        LOG_SPAN,
        semel.operation.id = %id,
        semel.attempt = attempt,
        semel.operation = operation,
    )
}

/// Records a decision on two spans.
pub(crate) fn decided(spans: [&Span; 2], decision: &Decision) {
    if spans.iter().all(|span| span.is_disabled()) {
        return;
    }
    let (name, id, attempt) = match decision {
        Decision::Execute(grant) => ("execute", grant.fence.id, Some(grant.fence.attempt)),
        Decision::Resume(grant) => ("resume", grant.fence.id, Some(grant.fence.attempt)),
        Decision::Replay(found) => ("replay", found.id, None),
        Decision::InProgress(found) => ("in_progress", found.fence.id, Some(found.fence.attempt)),
        Decision::Unknown(found) => ("unknown", found.id, None),
        Decision::KeyMisuse { id } => ("key_misuse", *id, None),
        Decision::OtherRules { id, .. } => ("other_rules", *id, None),
        Decision::Expired(found) => ("expired", found.id, None),
    };
    for span in spans {
        span.record(DECISION, name).record(ID, display(id));
        if let Some(attempt) = attempt {
            span.record(ATTEMPT, attempt);
        }
    }
}

/// Records that an abandoned record is resumed.
#[cfg(feature = "axum")]
pub(crate) fn resumed(guard: &Span, fence: Fence) {
    guard
        .record(ID, display(fence.id))
        .record(ATTEMPT, fence.attempt);
    guard.record(DECISION, "resume");
}

/// Records a decision that was made without a store call.
pub(crate) fn decided_at_once(guard: &Span, decision: &Decision) {
    if !guard.is_disabled() {
        decided([guard, &reserve()], decision);
    }
}

/// Records a replay from the replay cache.
pub(crate) fn replayed_at_once(guard: &Span, id: OperationId) {
    if !guard.is_disabled() {
        for span in [guard, &reserve()] {
            span.record(DECISION, "replay").record(ID, display(id));
        }
    }
}

/// Records the status of the response, or that there was none.
pub(crate) fn answered<B>(span: &Span, response: Option<&Response<B>>) {
    if span.is_disabled() {
        return;
    }
    match response.filter(|response| !is_failure(response)) {
        Some(response) => {
            span.record(STATUS, response.status().as_u16());
        }
        None => failed(span),
    }
}

/// Whether the response only stands for a missing one: then its status means nothing.
fn is_failure<B>(response: &Response<B>) -> bool {
    let outcome = response.extensions().get::<Outcome>();
    outcome.is_some_and(|outcome| match (outcome.source, outcome.kind) {
        (ResponseSource::Unreachable, _)
        | (ResponseSource::Layer, OutcomeKind::Unknown | OutcomeKind::NotExecuted) => true,
        (ResponseSource::Application, _)
        | (ResponseSource::Layer, OutcomeKind::Completed | OutcomeKind::Forget) => false,
    })
}

/// Records the outcome.
pub(crate) fn ended(span: &Span, outcome: &str) {
    span.record(OUTCOME, outcome);
}

/// Records a failure.
pub(crate) fn failed(span: &Span) {
    span.record(FAILED.0, FAILED.1);
}
