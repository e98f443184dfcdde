//! What an answer says to a client.

use semel_campaign_checker::history::{Call, Outcome};

use crate::http::Answer;

/// Headers that may differ between an answer and its replay. The first answer announces the end of
/// the replay window before it is recorded, so that header may be a little off; it is not part of the
/// stored answer.
const NOT_REPLAYED: [&str; 4] = [
    "date",
    "connection",
    "idempotent-replayed",
    "idempotency-key-expires",
];
/// Codes of refusals after which this call executed nothing, whatever their status. The last one is
/// the application's.
const NOT_EXECUTED: [&str; 5] = [
    "idempotency_region_mismatch",
    "idempotency_store_unavailable",
    "upstream_unreachable",
    "operation_not_executed",
    "provider_unreachable",
];
/// The part of an answer that decides what comes next.
pub(crate) struct CallResult {
    pub(crate) outcome: Outcome,
    pub(crate) status: Option<u16>,
    pub(crate) code: Option<String>,
    /// The operation's id in the store, where the application has named it.
    pub(crate) id: Option<String>,
    /// All of it, if there is one.
    pub(crate) answer: Option<Answer>,
}

/// The id in the application's answer.
pub(crate) fn operation_id(answer: &str) -> Option<String> {
    let payment: serde_json::Value = serde_json::from_str(answer).ok()?;
    Some(payment.get("operation_id")?.as_str()?.to_owned())
}

/// Copies the answer into the call's line.
pub(crate) fn record_answer(call: &mut Call, answer: &Answer) {
    call.status = Some(answer.status);
    call.body = Some(String::from_utf8_lossy(&answer.body).into_owned());
    call.replayed = answer.header("idempotent-replayed") == Some("true");
    if matches!(answer.status, 201 | 402) {
        call.outcome = Outcome::Ok;
        let repeated = answer.headers.iter();
        let repeated = repeated.filter(|(name, _)| !NOT_REPLAYED.contains(&name.as_str()));
        call.headers = repeated.cloned().collect();
        // Only the order of lines with one name matters, and a stable sort keeps it.
        call.headers.sort_by(|(one, _), (other, _)| one.cmp(other));
        return;
    }
    let problem: Option<serde_json::Value> = serde_json::from_slice(&answer.body).ok();
    call.code = problem.and_then(|problem| Some(problem.get("code")?.as_str()?.to_owned()));
    let code = call.code.as_deref().unwrap_or_default();
    let refused = matches!(
        answer.status,
        400 | 404 | 405 | 410 | 411 | 413 | 414 | 415 | 422 | 431
    );
    if refused || NOT_EXECUTED.contains(&code) {
        call.outcome = Outcome::Failed;
    }
}
