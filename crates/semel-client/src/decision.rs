//! The decision table: what a response means for the request that it answers.
//!
//! Pure functions, without I/O and time, so that the table can be read and tested row by row. The file
//! `packages/scenarios/README.md` has the table in prose.

use http::HeaderMap;
use http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use serde_json::Value;

use crate::profile::{Profile, RefusalForm};
use crate::request::Response;

/// What came back for a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A complete response.
    Response(Response),
    /// No response, or a truncated one; and why. The server may have received the request.
    Nothing(String),
    /// No connection, and why. The server did not receive the request.
    NotSent(String),
}

/// What an answer means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The response is the result.
    Final,
    /// The key was used for another request.
    KeyReused,
    /// The operation was executed too long ago for its response to be repeated.
    KeyExpired,
    /// The operation was executed, and its response is not stored.
    ResponseNotStored,
    /// The operation may or may not have been executed. Ask slowly, with the same key.
    Unknown {
        /// The server's id of the operation.
        operation_id: Option<String>,
    },
    /// The server asks to come back. Costs no quota.
    Wait {
        /// `Location` of the operation's status.
        status_resource: Option<String>,
    },
    /// A failure that may pass. A retry costs quota.
    Failure,
    /// This request was refused before its key was looked at, and an earlier one with the key may have been executed. The call
    /// ends, and the intent stays open.
    Refused,
    /// The request may have been executed by a server that does not know its key, so that a retry would execute again: nothing is
    /// sent with it any more.
    Unprotected,
}

/// Codes of Semel's refusals of a request as it is, before its key is looked up.
const UNRELATED_CODES: [&str; 5] = [
    "idempotency_key_malformed",
    "idempotency_key_missing",
    "path_ambiguous",
    "request_invalid",
    "request_malformed",
];

/// Whether a rejection says nothing of an earlier request with the key: a proxy, a gateway, a limit or a check of credentials gives it
/// before the operation is looked up. Any other comes from the server that knows the key.
fn is_unrelated(status: u16, code: Option<&str>) -> bool {
    matches!(
        status,
        300..=399 | 401 | 403..=405 | 407 | 408 | 413 | 421 | 425 | 429 | 431 | 451 | 500..
    ) || code.is_some_and(|code| UNRELATED_CODES.contains(&code))
}

/// What the answer of a status resource means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Not over: poll again.
    InProgress,
    /// The outcome is unknown: poll again, slowly.
    Unknown {
        /// The server's id of the operation.
        operation_id: Option<String>,
    },
    /// It is over: send the request again, and get its response.
    Over,
    /// No usable answer: send the request again after a delay.
    Failure,
}

/// What the answer to a request means. The first rule that matches decides. `is_repeated`: an earlier request with this key may have
/// reached the server.
pub fn decide(profile: &Profile, answer: &Answer, is_repeated: bool) -> Verdict {
    let response = match answer {
        Answer::Response(response) => response,
        Answer::Nothing(_) | Answer::NotSent(_) => return Verdict::Failure,
    };
    let wait = Verdict::Wait {
        status_resource: None,
    };
    let refusal = Refusal::read(profile, response);
    match refusal.code.as_deref() {
        Some("idempotency_key_in_progress") => return wait,
        Some("idempotency_outcome_unknown") => {
            return Verdict::Unknown {
                operation_id: operation_id(response),
            };
        }
        Some("idempotency_key_reused") => return Verdict::KeyReused,
        Some("idempotency_key_expired") => return Verdict::KeyExpired,
        Some("idempotency_response_not_stored") => return Verdict::ResponseNotStored,
        Some("upstream_failed") => return Verdict::Unprotected,
        Some(_) | None => {}
    }
    if refusal.is_stripe_misuse {
        return Verdict::KeyReused;
    }
    let status = response.status;
    let is_replayed = header(&response.headers, "idempotent-replayed") == Some("true");
    let code = refusal.code.as_deref();
    let last = if is_repeated && !is_replayed && is_unrelated(status, code) {
        Verdict::Refused
    } else {
        Verdict::Final
    };
    let should_retry = header(&response.headers, "stripe-should-retry");
    if should_retry == Some("false") || refusal.retryable == Some(false) {
        return last;
    }
    if should_retry == Some("true") || refusal.retryable == Some(true) {
        return if matches!(status, 408 | 409 | 425 | 429) {
            wait
        } else {
            Verdict::Failure
        };
    }
    if profile.replayed_is_final && is_replayed {
        return Verdict::Final;
    }
    if status == 202 && is_in_progress(response) {
        return Verdict::Wait {
            status_resource: header(&response.headers, LOCATION.as_str()).map(str::to_owned),
        };
    }
    // The IETF draft has 409 for a request that is outstanding, without a code or `Retry-After`: after an earlier request it is that.
    let is_conflict_in_progress = status == 409
        && (profile.conflict_waits || is_repeated || response.headers.contains_key(RETRY_AFTER));
    if profile.wait.contains(&status) || is_conflict_in_progress {
        return wait;
    }
    if (profile.fails)(status) {
        return Verdict::Failure;
    }
    last
}

/// What the answer of a status resource means.
pub fn decide_poll(answer: &Answer) -> Poll {
    let Answer::Response(response) = answer else {
        return Poll::Failure;
    };
    if response.status != 200 {
        return Poll::Failure;
    }
    let body = json(response);
    match body.as_ref().and_then(|body| body.get("status")?.as_str()) {
        Some("in_progress") => Poll::InProgress,
        Some("unknown") => Poll::Unknown {
            operation_id: operation_id(response),
        },
        Some(_) => Poll::Over,
        None => Poll::Failure,
    }
}

/// What a refusal says of itself.
#[derive(Default)]
struct Refusal {
    code: Option<String>,
    retryable: Option<bool>,
    is_stripe_misuse: bool,
}

impl Refusal {
    fn read(profile: &Profile, response: &Response) -> Self {
        // A success of the application is none, whatever its body.
        if response.status < 400 {
            return Self::default();
        }
        let Some(body) = json(response) else {
            return Self::default();
        };
        let is_problem = media_type(response) == "application/problem+json";
        let error = body.get("error");
        let kind = error.and_then(|error| error.get("type")?.as_str());
        let is_stripe = profile.refusals == RefusalForm::Stripe;
        Self {
            // In both forms whatever the profile: with the wrong one, an unknown outcome must not look final.
            code: is_problem
                .then(|| problem_code(&body))
                .flatten()
                .or_else(|| error.and_then(|error| error.get("code")?.as_str()))
                .map(str::to_owned),
            retryable: (is_problem && !is_stripe)
                .then(|| body.get("retryable")?.as_bool())
                .flatten(),
            is_stripe_misuse: is_stripe
                && response.status == 400
                && kind == Some("idempotency_error"),
        }
    }
}

/// The member `code` of a problem, else the end of its `type`, which is the address of the code's page.
fn problem_code(body: &Value) -> Option<&str> {
    let member = |name| body.get(name).and_then(Value::as_str);
    let code = member("code");
    code.or_else(|| member("type")?.rsplit('/').next())
}

/// Whether a 202 is Semel's "in progress", and not the application's own.
fn is_in_progress(response: &Response) -> bool {
    json(response).is_some_and(|body| {
        body.get("status").and_then(Value::as_str) == Some("in_progress")
            && body.get("operation_id").is_some_and(Value::is_string)
    })
}

/// From the body, else from the `Location` of the operation's status.
fn operation_id(response: &Response) -> Option<String> {
    let from_body = || {
        let body = json(response)?;
        Some(body.get("operation_id")?.as_str()?.to_owned())
    };
    let from_location = || {
        let location = header(&response.headers, LOCATION.as_str())?;
        let (_, id) = location.split_once("/.semel/operations/")?;
        (!id.is_empty()).then(|| id.to_owned())
    };
    from_body().or_else(from_location)
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn media_type(response: &Response) -> String {
    let value = header(&response.headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    let media = value.split(';').next().unwrap_or_default();
    media.trim().to_ascii_lowercase()
}

/// The body of a JSON response.
fn json(response: &Response) -> Option<Value> {
    let media = media_type(response);
    let is_json = media == "application/json" || media.ends_with("+json");
    if !is_json {
        return None;
    }
    serde_json::from_slice(&response.body).ok()
}
