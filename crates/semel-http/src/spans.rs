//! What a trace shows of a guarded request, and what every log line of an execution carries.
//!
//! ```text
//! guard                    the whole request: command, operation, attempt, decision
//! ├── reserve              each time the store, or a copy of its answer, is asked
//! ├── execute              the handler or the upstream
//! └── complete             until the end is written
//! ```
//!
//! These four are of level `DEBUG`: where nobody collects them, they are not made. [`LOGGED`] is
//! made for each execution, at a level that every log has: it is what puts the operation on its
//! lines, and no part of a trace.
//!
//! **Invariant:** neither a key nor a tenant is a field of a span.

use http::Response;
use semel_core::{Decision, Fence, OperationId};
use tracing::field::{Empty, display};
use tracing::{Span, debug_span, error_span};

use crate::outcome::{Ending, Outcome, Words};
use crate::route::Guard;

/// The name of the span that is for logs only: a collector of traces leaves it out.
pub const LOGGED: &str = "operation";

/// The operation's public name.
const ID: &str = "semel.operation.id";
/// Which grant of it this is.
const ATTEMPT: &str = "semel.attempt";
/// What the store said to the request.
const DECISION: &str = "semel.decision";
/// What becomes of the record.
const OUTCOME: &str = "semel.outcome";
/// As the HTTP conventions call it.
const STATUS: &str = "http.response.status_code";
/// Read by whoever makes OpenTelemetry's spans of these.
const FAILED: (&str, &str) = ("otel.status_code", "ERROR");

/// Around a guarded request, until its answer is there.
pub(crate) fn guard(guard: &Guard) -> Span {
    debug_span!(
        "guard",
        http.route = guard.path.as_deref(),
        semel.operation = guard.route.operation.as_deref(),
        semel.operation.id = Empty,
        semel.attempt = Empty,
        semel.decision = Empty,
    )
}

/// Around one question for the right to execute.
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

/// Around the writing down of an end.
pub(crate) fn complete(fence: Fence) -> Span {
    debug_span!(
        "complete",
        semel.operation.id = %fence.id,
        semel.attempt = fence.attempt,
        semel.outcome = Empty,
    )
}

/// Around everything that is done for an operation once it is known which one it is.
pub(crate) fn logged(id: OperationId, attempt: Option<u32>, operation: Option<&str>) -> Span {
    // Of the level of the worst line, so that no filter takes it from the lines that it lets
    // through. All fields at once: adding one later means writing them all again.
    error_span!(
        LOGGED,
        semel.operation.id = %id,
        semel.attempt = attempt,
        semel.operation = operation,
    )
}

/// What was decided about a request, on the spans that want to know.
pub(crate) fn decided(spans: [&Span; 2], decision: &Decision) {
    if spans.iter().all(|span| span.is_disabled()) {
        return;
    }
    let (word, id, attempt) = match decision {
        Decision::Execute(grant) => ("execute", grant.fence.id, Some(grant.fence.attempt)),
        Decision::Resume(grant) => ("resume", grant.fence.id, Some(grant.fence.attempt)),
        Decision::Replay(found) => ("replay", found.id, None),
        Decision::InProgress(found) => ("in_progress", found.fence.id, Some(found.fence.attempt)),
        Decision::Unknown(found) => ("unknown", found.id, None),
        Decision::KeyMisuse { id } => ("key_misuse", *id, None),
        Decision::Expired(found) => ("expired", found.id, None),
    };
    for span in spans {
        span.record(DECISION, word).record(ID, display(id));
        if let Some(attempt) = attempt {
            span.record(ATTEMPT, attempt);
        }
    }
}

/// What nobody asked for is resumed.
#[cfg(feature = "axum")]
pub(crate) fn granted(guard: &Span, fence: Fence) {
    guard
        .record(ID, display(fence.id))
        .record(ATTEMPT, fence.attempt);
    guard.record(DECISION, "resume");
}

/// A decision that nobody had to ask the store for.
pub(crate) fn decided_at_once(guard: &Span, decision: &Decision) {
    if !guard.is_disabled() {
        decided([guard, &reserve()], decision);
    }
}

/// The same, for an answer that was kept in this process.
pub(crate) fn replayed_at_once(guard: &Span, id: OperationId) {
    if !guard.is_disabled() {
        for span in [guard, &reserve()] {
            span.record(DECISION, "replay").record(ID, display(id));
        }
    }
}

/// What the application answered; nothing where it did not.
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

/// Whether it says no more than that there was no answer: then its status is nobody's word.
fn is_failure<B>(response: &Response<B>) -> bool {
    let outcome = response.extensions().get::<Outcome>();
    outcome.is_some_and(|outcome| match (outcome.words, outcome.ending) {
        (Words::Unreachable, _) | (Words::Layer, Ending::Unknown | Ending::NotExecuted) => true,
        (Words::Application, _) | (Words::Layer, Ending::Completed | Ending::Forget) => false,
    })
}

/// What becomes of the record.
pub(crate) fn ended(span: &Span, outcome: &str) {
    span.record(OUTCOME, outcome);
}

/// It did not come to its end.
pub(crate) fn failed(span: &Span) {
    span.record(FAILED.0, FAILED.1);
}
