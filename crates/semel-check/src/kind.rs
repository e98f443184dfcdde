//! What kind of answer it is. Every probe judges by this, and none by a status of its own.

use serde_json::Value;

use crate::wire::Answer;

/// What an answer says of an operation and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It was done, or taken on where that is all that is ever said.
    Success,
    /// It is under way: come back.
    Pending,
    /// It is not done, for what the request or its key is; or its outcome is not told.
    Refusal,
    /// Nothing: a limiter, a login, a route, a failure, or no answer at all. It could have been
    /// given to any request, and says neither that a key was refused nor that nothing happened.
    Silent,
}

/// The kind of an answer. `accepted` is whether new operations are answered with 202 and
/// `Retry-After` here: elsewhere that says that an earlier attempt is still under way.
pub(crate) fn of(answer: &Result<Answer, String>, accepted: bool) -> Kind {
    let Ok(answer) = answer else {
        return Kind::Silent;
    };
    let ended = is_for_good(answer);
    match answer.status {
        202 if is_accepted(answer) && !accepted && !ended => Kind::Pending,
        200..300 => Kind::Success,
        // What is kept with a key is an outcome, whatever its number.
        _ if answer.is_marked() => Kind::Refusal,
        401 | 403 | 404 | 405 | 407 | 408 | 429 => Kind::Silent,
        409 | 423 | 425 if !ended => Kind::Pending,
        400..500 => Kind::Refusal,
        500.. if ended => Kind::Refusal,
        _ => Kind::Silent,
    }
}

/// Taken on, with the outcome to come.
pub(crate) fn is_accepted(answer: &Answer) -> bool {
    answer.status == 202 && answer.header("retry-after").is_some()
}

/// Whether it says that asking again is of no use.
fn is_for_good(answer: &Answer) -> bool {
    let told = |name: &str, value: &str| answer.text_of(name).is_some_and(|is| is.trim() == value);
    let body = || serde_json::from_slice::<Value>(&answer.body).ok();
    told("stripe-should-retry", "false")
        || answer.is_marked()
        || body().and_then(|body| body.get("retryable").and_then(Value::as_bool)) == Some(false)
}

/// Whether there is no point in asking again.
pub(crate) fn is_final(answer: &Result<Answer, String>, accepted: bool) -> bool {
    match (of(answer, accepted), answer) {
        (Kind::Success | Kind::Refusal, _) => true,
        (Kind::Pending, _) | (Kind::Silent, Err(_)) => false,
        // Time opens no account and makes no route, but it does help the others.
        (Kind::Silent, Ok(answer)) => !matches!(answer.status, 408 | 429 | 500..),
    }
}

/// Whether it was perhaps executed, for all that the answer says. A limiter turns away before.
pub(crate) fn is_doubtful(answer: &Result<Answer, String>) -> bool {
    let late = |answer: &Answer| matches!(answer.status, 408 | 500..);
    of(answer, false) == Kind::Silent && answer.as_ref().map_or(true, late)
}

/// Whether it seems to be the application's own: what stands before one says 502, 503 and 504.
pub(crate) fn is_own(answer: &Result<Answer, String>) -> bool {
    let broke = |answer: &Answer| answer.status >= 500 && !matches!(answer.status, 502..=504);
    of(answer, false) != Kind::Silent || answer.as_ref().is_ok_and(broke)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, header: Option<(&str, &str)>, body: &str) -> Answer {
        let header = header.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        Answer {
            status,
            headers: header.into_iter().collect(),
            body: body.as_bytes().to_vec(),
            shown: String::new(),
        }
    }

    #[test]
    fn only_what_is_about_the_key_says_something() {
        for (kind, statuses) in [
            (Kind::Success, &[200, 201, 202, 204][..]),
            (Kind::Pending, &[409, 423, 425]),
            (Kind::Refusal, &[400, 402, 410, 412, 413, 422, 431]),
            (
                Kind::Silent,
                &[
                    301, 401, 403, 404, 405, 407, 408, 429, 500, 501, 502, 503, 504, 599,
                ],
            ),
        ] {
            for status in statuses {
                assert_eq!(of(&Ok(answer(*status, None, "")), false), kind, "{status}");
            }
        }
        assert_eq!(of(&Err("reset".to_owned()), false), Kind::Silent);
    }

    #[test]
    fn what_is_for_good_is_an_outcome() {
        let marked = Some(("idempotent-replayed", "true"));
        let stripe = Some(("stripe-should-retry", "false"));
        for (answer, kind) in [
            (answer(409, stripe, ""), Kind::Refusal),
            (answer(409, None, r#"{"retryable":false}"#), Kind::Refusal),
            (answer(409, None, r#"{"retryable":true}"#), Kind::Pending),
            (answer(503, None, r#"{"retryable":false}"#), Kind::Refusal),
            (answer(500, marked, ""), Kind::Refusal),
            (answer(403, marked, ""), Kind::Refusal),
            // Whoever is not known is turned away for good, and not for the key.
            (answer(403, None, r#"{"retryable":false}"#), Kind::Silent),
        ] {
            assert_eq!(of(&Ok(answer.clone()), false), kind, "{answer:?}");
        }
    }

    #[test]
    fn a_202_is_what_it_is_to_new_operations() {
        let later = Ok(answer(202, Some(("retry-after", "1")), ""));
        assert_eq!(of(&later, false), Kind::Pending);
        assert!(!is_final(&later, false));
        assert_eq!(of(&later, true), Kind::Success);
        assert!(is_final(&later, true));
    }

    #[test]
    fn only_where_it_helps_is_asked_again() {
        for status in [201, 401, 404, 422] {
            assert!(is_final(&Ok(answer(status, None, "")), false), "{status}");
        }
        for status in [408, 409, 429, 500, 503] {
            assert!(!is_final(&Ok(answer(status, None, "")), false), "{status}");
        }
        assert!(!is_final(&Err("reset".to_owned()), false));
    }

    #[test]
    fn doubt_is_where_it_may_have_been_executed() {
        let nobody = Err("reset".to_owned());
        assert!(is_doubtful(&nobody) && !is_own(&nobody));
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
