//! Compares and describes responses.

use std::time::Duration;

use crate::secrets::hide;
use crate::target::Target;
use crate::text::cut;
use crate::wire::Response;

/// Characters of a body that reports show.
const SHOWN: usize = 120;
/// Bytes of a body that are read for that: whitespace and secrets are removed before it is cut.
const LOOKED_AT: usize = 4 << 10;
/// The longest `Retry-After` that is obeyed: a server may say 500 billion years.
const LONGEST_WAIT: Duration = Duration::from_hours(1);
/// Headers that identify what an operation created.
pub(crate) const IDENTIFYING_HEADERS: [&str; 2] = ["location", "etag"];
/// Headers that a replay must repeat.
const REPLAYED_HEADERS: [&str; 6] = [
    "content-type",
    "content-language",
    "content-encoding",
    "location",
    "etag",
    "link",
];

/// `Retry-After`, in seconds or as a date. A date is compared with the server's `Date`, since its
/// clock may differ from ours.
pub(crate) fn retry_after(answer: &Response) -> Option<Duration> {
    let text = answer.text_of("retry-after")?.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let wait = if digits {
        // Only an overflow fails to parse.
        text.parse().map_or(Duration::MAX, Duration::from_secs)
    } else {
        let then = httpdate::parse_http_date(text).ok()?;
        let now = httpdate::parse_http_date(answer.text_of("date")?.trim()).ok()?;
        then.duration_since(now).unwrap_or_default()
    };
    Some(wait.min(LONGEST_WAIT))
}

/// How two successes differ, which means two executions. A header that only one of them has is not
/// a difference.
pub(crate) fn difference(first: &Response, retry: &Response) -> Option<String> {
    if first.body != retry.body {
        return Some(format!("{} instead of {}", excerpt(retry), excerpt(first)));
    }
    let other = |name: &&str| match (first.header(name), retry.header(name)) {
        (Some(one), Some(two)) => one != two,
        (Some(_), None) | (None, Some(_) | None) => false,
    };
    let name = IDENTIFYING_HEADERS.into_iter().find(other)?;
    Some(format!("a different {name}"))
}

/// How a replay differs in status or headers from the first response.
pub(crate) fn metadata_difference(first: &Response, retry: &Response) -> Option<String> {
    if first.status != retry.status {
        return Some(format!("{} instead of {}", retry.status, first.status));
    }
    let other = REPLAYED_HEADERS
        .iter()
        .find(|name| first.header(name) != retry.header(name))?;
    Some(format!("a different {other}"))
}

/// Status and excerpt of a response.
pub(crate) fn describe(answer: &Result<Response, String>) -> String {
    match answer {
        Ok(answer) => {
            let mark = if answer.is_marked() { ", replayed" } else { "" };
            format!("{}{mark} {}", answer.status, excerpt(answer))
        }
        Err(reason) => format!("no response ({reason})"),
    }
}

/// The status of a response.
pub(crate) fn summarize(answer: &Result<Response, String>) -> String {
    match answer {
        Ok(answer) if answer.is_marked() => format!("{}, replayed", answer.status),
        Ok(answer) => answer.status.to_string(),
        Err(_) => "no response".to_owned(),
    }
}

/// Sets the excerpt that reports show. Secrets are hidden before the text is cut: half a secret
/// would not be found.
pub(crate) fn hide_secrets(mut answer: Response, target: &Target) -> Response {
    let start = &answer.body[..answer.body.len().min(LOOKED_AT)];
    let text = hide(&String::from_utf8_lossy(start), target.secrets());
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    answer.shown = cut(&text, SHOWN);
    answer
}

fn excerpt(answer: &Response) -> String {
    match answer.body.len() {
        0 => "(no body)".to_owned(),
        length if length > SHOWN => format!("{} ({length} bytes)", answer.shown),
        _ => answer.shown.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: &str = "Sun, 06 Nov 1994 12:00:00 GMT";

    fn wait(headers: &[(&str, &str)]) -> Option<u64> {
        let line = |(name, value): &(&str, &str)| ((*name).to_owned(), value.as_bytes().to_vec());
        let answer = Response {
            status: 409,
            headers: headers.iter().map(line).collect(),
            body: Vec::new(),
            shown: String::new(),
        };
        retry_after(&answer).map(|wait| wait.as_secs())
    }

    #[test]
    fn retry_after_is_read_as_seconds_or_date_and_bounded() {
        for (text, seconds) in [
            ("0", Some(0)),
            (" 7 ", Some(7)),
            ("3601", Some(3600)),
            ("18446744073709551615", Some(3600)),
            ("18446744073709551616", Some(3600)),
            ("Sun, 06 Nov 1994 12:00:30 GMT", Some(30)),
            ("Sun, 06 Nov 1994 11:00:00 GMT", Some(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(3600)),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("soon", None),
        ] {
            assert_eq!(
                wait(&[("retry-after", text), ("date", NOON)]),
                seconds,
                "{text:?}"
            );
        }
        assert_eq!(wait(&[("retry-after", NOON)]), None);
        assert_eq!(wait(&[("retry-after", NOON), ("date", "now")]), None);
        assert_eq!(wait(&[]), None);
    }
}
