//! What an answer says to a client that retries.

use std::time::Duration;

use crate::secrets::hide;
use crate::target::Target;
use crate::text::cut;
use crate::wire::Answer;

/// Of a body, so much is shown.
const SHOWN: usize = 120;
/// Of a body, so much is looked at for that: blanks and secrets take room that is not shown.
const LOOKED_AT: usize = 4 << 10;
/// Nobody waits longer to ask again, whatever a server says: it may say 500 billion years.
const LONGEST_WAIT: Duration = Duration::from_hours(1);
/// Headers that name what an operation made.
pub(crate) const OWN: [&str; 2] = ["location", "etag"];
/// Headers that a replay keeps.
const KEPT: [&str; 6] = [
    "content-type",
    "content-language",
    "content-encoding",
    "location",
    "etag",
    "link",
];

/// When the server would like to be asked again: in so many seconds, or at a date. A date is
/// compared with the server's own, since its clock need not be ours.
pub(crate) fn retry_after(answer: &Answer) -> Option<Duration> {
    let text = answer.text_of("retry-after")?.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let wait = if digits {
        // Only too many of them are no number.
        text.parse().map_or(Duration::MAX, Duration::from_secs)
    } else {
        let then = httpdate::parse_http_date(text).ok()?;
        let now = httpdate::parse_http_date(answer.text_of("date")?.trim()).ok()?;
        then.duration_since(now).unwrap_or_default()
    };
    Some(wait.min(LONGEST_WAIT))
}

/// In what a success differs from another: it is of another execution then. A header that only
/// one of them has says nothing of that.
pub(crate) fn difference(first: &Answer, retry: &Answer) -> Option<String> {
    if first.body != retry.body {
        return Some(format!("{} instead of {}", shown(retry), shown(first)));
    }
    let other = |name: &&str| match (first.header(name), retry.header(name)) {
        (Some(one), Some(two)) => one != two,
        (Some(_), None) | (None, Some(_) | None) => false,
    };
    let name = OWN.into_iter().find(other)?;
    Some(format!("another {name}"))
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

/// The answer, with what may be shown of it. Secrets are hidden before the text is cut: of one
/// that is cut in two, neither half would be found.
pub(crate) fn veiled(mut answer: Answer, target: &Target) -> Answer {
    let start = &answer.body[..answer.body.len().min(LOOKED_AT)];
    let text = hide(&String::from_utf8_lossy(start), target.secrets());
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    answer.shown = cut(&text, SHOWN);
    answer
}

fn shown(answer: &Answer) -> String {
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
        let answer = Answer {
            status: 409,
            headers: headers.iter().map(line).collect(),
            body: Vec::new(),
            shown: String::new(),
        };
        retry_after(&answer).map(|wait| wait.as_secs())
    }

    #[test]
    fn servers_say_when_to_come_back_and_nobody_waits_for_ever() {
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
