//! What an answer says to a client that retries.

use std::time::Duration;

use serde_json::Value;

use crate::text::cut;
use crate::wire::Answer;

/// Of a body, so much is shown.
const SHOWN: usize = 120;
/// Headers that a replay keeps.
const KEPT: [&str; 6] = [
    "content-type",
    "content-language",
    "content-encoding",
    "location",
    "etag",
    "link",
];

/// Whether there is no point in asking again.
pub(crate) fn is_final(answer: &Answer) -> bool {
    let told = |name: &str, value: &str| answer.text_of(name).is_some_and(|is| is.trim() == value);
    if told("stripe-should-retry", "false") || answer.is_marked() || says_final(answer) {
        return true;
    }
    match answer.status {
        // Accepted, and where to look for the outcome.
        202 => answer.header("retry-after").is_none(),
        409 | 423 | 425 | 429 | 500.. => false,
        _ => true,
    }
}

/// Whether the answer to a duplicate says that the first is still under way.
pub(crate) fn is_pending(answer: &Answer) -> bool {
    matches!(answer.status, 409 | 423 | 425 | 429) || (answer.status == 202 && !is_final(answer))
}

fn says_final(answer: &Answer) -> bool {
    let body: Option<Value> = serde_json::from_slice(&answer.body).ok();
    body.and_then(|body| body.get("retryable").and_then(Value::as_bool)) == Some(false)
}

/// When the server would like to be asked again.
pub(crate) fn retry_after(answer: &Answer) -> Option<Duration> {
    answer
        .text_of("retry-after")?
        .trim()
        .parse()
        .ok()
        .map(Duration::from_secs)
}

/// In what a success differs from another: it is of another execution then.
pub(crate) fn difference(first: &Answer, retry: &Answer) -> Option<String> {
    (first.body != retry.body).then(|| format!("{} instead of {}", shown(retry), shown(first)))
}

/// In what a replay differs around its body from what it repeats.
pub(crate) fn around(first: &Answer, retry: &Answer) -> Option<String> {
    if first.status != retry.status {
        return Some(format!("{} instead of {}", retry.status, first.status));
    }
    let other = KEPT
        .iter()
        .find(|name| first.header(name) != retry.header(name))?;
    Some(format!("another {other}"))
}

/// An answer in a few words.
pub(crate) fn tell(answer: &Result<Answer, String>) -> String {
    match answer {
        Ok(answer) => {
            let mark = if answer.is_marked() { ", replayed" } else { "" };
            format!("{}{mark} {}", answer.status, shown(answer))
        }
        Err(reason) => format!("no answer ({reason})"),
    }
}

/// An answer in fewer words.
pub(crate) fn brief(answer: &Result<Answer, String>) -> String {
    match answer {
        Ok(answer) if answer.is_marked() => format!("{}, replayed", answer.status),
        Ok(answer) => answer.status.to_string(),
        Err(_) => "no answer".to_owned(),
    }
}

fn shown(answer: &Answer) -> String {
    let text = String::from_utf8_lossy(&answer.body);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match answer.body.len() {
        0 => "(no body)".to_owned(),
        length if length > SHOWN => format!("{} ({length} bytes)", cut(&text, SHOWN)),
        _ => text,
    }
}
