//! Classifies responses. Every probe judges by these kinds, never by a status of its own.

use serde_json::Value;

use crate::wire::Response;

/// What a response says about an operation and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    /// The operation was done; or accepted, where the API never says more.
    Success,
    /// The operation is in progress: retry later.
    Pending,
    /// Refused because of the request or its key; or the outcome is withheld.
    Refusal,
    /// Says nothing about the key: a rate limiter, a login, a route, a failure, or no response at
    /// all. Any request could have got it, so neither a refusal nor "not executed" follows.
    Inconclusive,
}

/// The kind of an answer. `accepted` is whether new operations are answered with 202 and
/// `Retry-After` here: elsewhere that says that an earlier attempt is still under way.
pub(crate) fn of(answer: &Result<Response, String>, accepted: bool) -> ResponseKind {
    let Ok(answer) = answer else {
        return ResponseKind::Inconclusive;
    };
    let ended = is_for_good(answer);
    match answer.status {
        202 if is_accepted(answer) && !accepted && !ended => ResponseKind::Pending,
        200..300 => ResponseKind::Success,
        // A response that is stored with a key is an outcome, whatever its status.
        _ if answer.is_marked() => ResponseKind::Refusal,
        401 | 403 | 404 | 405 | 407 | 408 | 429 => ResponseKind::Inconclusive,
        409 | 423 | 425 if !ended => ResponseKind::Pending,
        400..500 => ResponseKind::Refusal,
        500.. if ended => ResponseKind::Refusal,
        _ => ResponseKind::Inconclusive,
    }
}

/// Taken on, with the outcome to come.
pub(crate) fn is_accepted(answer: &Response) -> bool {
    answer.status == 202 && answer.header("retry-after").is_some()
}

/// Whether the response says that a retry is of no use.
fn is_for_good(answer: &Response) -> bool {
    let has = |name: &str, value: &str| answer.text_of(name).is_some_and(|is| is.trim() == value);
    let body = || serde_json::from_slice::<Value>(&answer.body).ok();
    has("stripe-should-retry", "false")
        || answer.is_marked()
        || body().and_then(|body| body.get("retryable").and_then(Value::as_bool)) == Some(false)
}

/// Whether a retry cannot change the response.
pub(crate) fn is_final(answer: &Result<Response, String>, accepted: bool) -> bool {
    match (of(answer, accepted), answer) {
        (ResponseKind::Success | ResponseKind::Refusal, _) => true,
        (ResponseKind::Pending, _) | (ResponseKind::Inconclusive, Err(_)) => false,
        // A missing login or route stays missing; the others may succeed later.
        (ResponseKind::Inconclusive, Ok(answer)) => !matches!(answer.status, 408 | 429 | 500..),
    }
}

/// Whether the request may have been executed without the response saying so. A rate limiter
/// refuses before execution.
pub(crate) fn is_doubtful(answer: &Result<Response, String>) -> bool {
    let late = |answer: &Response| matches!(answer.status, 408 | 500..);
    of(answer, false) == ResponseKind::Inconclusive && answer.as_ref().map_or(true, late)
}

/// Whether the response seems to be the application's own: proxies send 502, 503 and 504.
pub(crate) fn is_own(answer: &Result<Response, String>) -> bool {
    let broke = |answer: &Response| answer.status >= 500 && !matches!(answer.status, 502..=504);
    of(answer, false) != ResponseKind::Inconclusive || answer.as_ref().is_ok_and(broke)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, header: Option<(&str, &str)>, body: &str) -> Response {
        let header = header.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        Response {
            status,
            headers: header.into_iter().collect(),
            body: body.as_bytes().to_vec(),
            shown: String::new(),
        }
    }

    #[test]
    fn only_responses_about_the_key_are_conclusive() {
        for (kind, statuses) in [
            (ResponseKind::Success, &[200, 201, 202, 204][..]),
            (ResponseKind::Pending, &[409, 423, 425]),
            (ResponseKind::Refusal, &[400, 402, 410, 412, 413, 422, 431]),
            (
                ResponseKind::Inconclusive,
                &[
                    301, 401, 403, 404, 405, 407, 408, 429, 500, 501, 502, 503, 504, 599,
                ],
            ),
        ] {
            for status in statuses {
                assert_eq!(of(&Ok(answer(*status, None, "")), false), kind, "{status}");
            }
        }
        assert_eq!(
            of(&Err("reset".to_owned()), false),
            ResponseKind::Inconclusive
        );
    }

    #[test]
    fn a_response_that_rules_out_retries_is_a_refusal() {
        let marked = Some(("idempotent-replayed", "true"));
        let stripe = Some(("stripe-should-retry", "false"));
        for (answer, kind) in [
            (answer(409, stripe, ""), ResponseKind::Refusal),
            (
                answer(409, None, r#"{"retryable":false}"#),
                ResponseKind::Refusal,
            ),
            (
                answer(409, None, r#"{"retryable":true}"#),
                ResponseKind::Pending,
            ),
            (
                answer(503, None, r#"{"retryable":false}"#),
                ResponseKind::Refusal,
            ),
            (answer(500, marked, ""), ResponseKind::Refusal),
            (answer(403, marked, ""), ResponseKind::Refusal),
            // A failed login is final, but not about the key.
            (
                answer(403, None, r#"{"retryable":false}"#),
                ResponseKind::Inconclusive,
            ),
        ] {
            assert_eq!(of(&Ok(answer.clone()), false), kind, "{answer:?}");
        }
    }

    #[test]
    fn a_202_is_a_success_only_where_new_operations_get_it() {
        let later = Ok(answer(202, Some(("retry-after", "1")), ""));
        assert_eq!(of(&later, false), ResponseKind::Pending);
        assert!(!is_final(&later, false));
        assert_eq!(of(&later, true), ResponseKind::Success);
        assert!(is_final(&later, true));
    }

    #[test]
    fn only_responses_that_may_change_are_retried() {
        for status in [201, 401, 404, 422] {
            assert!(is_final(&Ok(answer(status, None, "")), false), "{status}");
        }
        for status in [408, 409, 429, 500, 503] {
            assert!(!is_final(&Ok(answer(status, None, "")), false), "{status}");
        }
        assert!(!is_final(&Err("reset".to_owned()), false));
    }

    #[test]
    fn a_response_is_doubtful_if_the_request_may_have_been_executed() {
        let reset = Err("reset".to_owned());
        assert!(is_doubtful(&reset) && !is_own(&reset));
        for (status, doubtful, own) in [
            (500, true, true),
            (503, true, false),
            (504, true, false),
            (429, false, false),
            (401, false, false),
            (409, false, true),
            (201, false, true),
        ] {
            let answer = Ok(answer(status, None, ""));
            assert_eq!(is_doubtful(&answer), doubtful, "{status}");
            assert_eq!(is_own(&answer), own, "{status}");
        }
    }
}
