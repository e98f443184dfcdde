//! Stored data as people may look at it.
//!
//! Keys, tenants, reasons, evidence and bodies are written by others. The templates escape them
//! for HTML; this makes visible what would act on a reader or a terminal without being seen.

use std::fmt::{self, Write as _};

use semel_core::{Code, Status, Timestamp};
use semel_http::rfc3339;

/// Text of somebody else's, in which every character can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text(String);

impl Text {
    /// Text that has one line: what would break it is shown, too.
    pub(super) fn line(text: &str) -> Self {
        Self(visible(text, false))
    }

    /// Text with lines and tabs.
    pub(super) fn block(text: &str) -> Self {
        Self(visible(text, true))
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn visible(text: &str, block: bool) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\n' | '\t' if block => shown.push(c),
            '\r' if block && rest.peek() == Some(&'\n') => {}
            // The pictures of the controls are in the order of the controls.
            '\0'..='\x1f' => shown.extend(char::from_u32(0x2400 + u32::from(c))),
            '\x7f' => shown.push('\u{2421}'),
            c if is_unseen(c) => {
                // Writing to a string cannot fail.
                let _ = write!(shown, "⟦U+{:04X}⟧", u32::from(c));
            }
            c => shown.push(c),
        }
    }
    shown
}

/// Controls, and what reorders, joins or hides: a reader would see another text than is stored.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{80}'..='\u{9f}'
        | '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// An instant: for machines, for people, and how long ago.
#[derive(Clone, Debug)]
pub(super) struct When {
    pub(super) iso: String,
    pub(super) shown: String,
    pub(super) ago: String,
}

impl When {
    pub(super) fn new(at: Timestamp, now: Timestamp) -> Self {
        let micros = now.as_micros().saturating_sub(at.as_micros());
        let ago = if micros < 0 {
            format!("in {}", span(micros.saturating_neg()))
        } else {
            format!("{} ago", span(micros))
        };
        Self {
            iso: rfc3339(at),
            shown: clock(at, "%Y-%m-%d %H:%M:%S"),
            ago,
        }
    }
}

/// An instant in UTC, in a form of `strftime`.
pub(super) fn clock(at: Timestamp, form: &str) -> String {
    jiff::Timestamp::from_microsecond(at.as_micros())
        .map_or_else(|_| "never".to_owned(), |at| at.strftime(form).to_string())
}

/// How long ago, in words.
pub(super) fn age(since: Timestamp, now: Timestamp) -> String {
    span(now.as_micros().saturating_sub(since.as_micros()).max(0))
}

/// A span of microseconds: two units at most, since nobody decides by the third.
pub(super) fn span(micros: i64) -> String {
    let seconds = micros / 1_000_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes, seconds) {
        (0, 0, 0, 0) => format!("{} ms", micros / 1000),
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) if minutes < 10 => format!("{minutes} min {} s", seconds % 60),
        (0, 0, minutes, _) => format!("{minutes} min"),
        (0, hours, minutes, _) => format!("{hours} h {} min", minutes % 60),
        (days, hours, _, _) if days < 10 => format!("{days} d {} h", hours % 24),
        (days, _, _, _) => format!("{days} d"),
    }
}

/// A number with its thousands apart.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// A status as a mark: its class, its sign and its word. The colour says nothing that these do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) class: &'static str,
    pub(super) sign: &'static str,
    pub(super) word: &'static str,
}

impl Mark {
    pub(super) fn new(status: Status, dead_lettered: bool) -> Self {
        let (class, sign, word) = match status {
            Status::InProgress => ("running", "◐", "in progress"),
            Status::Completed => ("good", "✓", "completed"),
            Status::FailedRetryable => ("open", "↻", "may be retried"),
            Status::Unknown if dead_lettered => ("bad", "!", "dead letter"),
            Status::Unknown => ("doubt", "?", "unknown"),
            Status::Expired => ("gone", "○", "expired"),
        };
        Self { class, sign, word }
    }
}

/// What a code means, where this knows it: an application may have codes of its own.
pub(super) fn meaning(code: &Code) -> Option<&'static str> {
    Some(match code.as_str() {
        "execution_timed_out" => {
            "The application took longer than upstream_timeout, and nobody heard how it ended."
        }
        "upstream_broke_off" => "The connection to the application ended before its answer came.",
        "response_truncated" => "The application's answer was cut off in the middle.",
        "status_502" | "status_503" | "status_504" => {
            "The application, or a proxy before it, gave an answer that does not say whether it happened."
        }
        "application_said_so" => "The application itself said that it does not know the outcome.",
        "in_progress_lock_expired" => {
            "Whoever executed it fell silent: the process died, or stood still for longer than its lease."
        }
        "shut_down_while_executing" => "The gateway was stopped while it was being executed.",
        "reconcile_attempts_exhausted" => {
            "The provider was asked as often as configured, and never gave an answer that settles it."
        }
        "no_way_to_find_out" => {
            "There is no [route.reconcile] for this command, so nobody could be asked."
        }
        "reconcile_timed_out" => "The provider was asked, and did not answer in time.",
        "reconcile_panicked" => "Asking the provider failed inside the reconciler.",
        "operator_decided" => "An operator decided so.",
        "poll_status_404" => {
            "The provider was asked and does not have it. It may only not have it yet."
        }
        "poll_unaskable" => "The question to the provider could not be put together.",
        _ => return None,
    })
}

/// An address with a query.
pub(super) fn address(path: &str, query: &[(&str, &str)]) -> String {
    let mut address = path.to_owned();
    for (name, value) in query.iter().filter(|(_, value)| !value.is_empty()) {
        address.push(if address.len() == path.len() {
            '?'
        } else {
            '&'
        });
        address.push_str(name);
        address.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                address.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(address, "%{byte:02X}");
            }
        }
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_unseen_is_seen() {
        for (stored, shown) in [
            ("plain, ünïcode 支付", "plain, ünïcode 支付"),
            ("\u{1b}[31mred", "␛[31mred"),
            ("a\r\nb\tc", "a␍␊b␉c"),
            ("pay\u{202e}001", "pay⟦U+202E⟧001"),
            ("a\u{200b}b\u{feff}", "a⟦U+200B⟧b⟦U+FEFF⟧"),
            ("\u{9b}1m\u{7f}\0", "⟦U+009B⟧1m␡␀"),
            ("\u{e0041}", "⟦U+E0041⟧"),
        ] {
            assert_eq!(Text::line(stored).0, shown);
        }
        assert_eq!(Text::block("a\r\nb\tc\rd\u{7}").0, "a\nb\tc␍d␇");
    }

    #[test]
    fn spans_and_numbers_are_short() {
        for (micros, shown) in [
            (0, "0 ms"),
            (999_999, "999 ms"),
            (59_000_000, "59 s"),
            (61_000_000, "1 min 1 s"),
            (600_000_000, "10 min"),
            (3_600_000_000, "1 h 0 min"),
            (90_000_000_000, "1 d 1 h"),
            (864_000_000_000, "10 d"),
        ] {
            assert_eq!(span(micros), shown);
        }
        for (count, shown) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (5_000_000, "5,000,000"),
        ] {
            assert_eq!(number(count), shown);
        }
    }

    #[test]
    fn an_address_holds_any_value() {
        assert_eq!(
            address(
                "/operations",
                &[("key", "a&b=c d\"<é"), ("tenant", ""), ("x", "1")]
            ),
            "/operations?key=a%26b%3Dc%20d%22%3C%C3%A9&x=1"
        );
    }
}
