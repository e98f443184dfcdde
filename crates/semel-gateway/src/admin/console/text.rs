//! Display of untrusted text, times, numbers and statuses.
//!
//! Clients and providers write keys, tenants, reasons, evidence and bodies. The templates escape
//! them for HTML; [`Text`] makes control and invisible characters visible.

use std::fmt::{self, Write as _};

use semel_core::{Code, Status, Timestamp};
use semel_http::rfc3339;

/// Untrusted text in which every character is visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text(String);

impl Text {
    /// One line: line breaks and tabs are shown as symbols.
    pub(super) fn line(text: &str) -> Self {
        Self(visible(text, false))
    }

    /// Several lines: line breaks and tabs stay.
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
            // The control pictures are in the order of the control characters.
            '\0'..='\x1f' => shown.extend(char::from_u32(0x2400 + u32::from(c))),
            '\x7f' => shown.push('\u{2421}'),
            c if is_invisible(c) => {
                // Writing to a string cannot fail.
                let _ = write!(shown, "⟦U+{:04X}⟧", u32::from(c));
            }
            c => shown.push(c),
        }
    }
    shown
}

/// C1 controls and characters that reorder, join or hide text.
fn is_invisible(c: char) -> bool {
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

/// A time: machine-readable, readable, and relative.
#[derive(Clone, Debug)]
pub(super) struct TimeLabel {
    pub(super) iso: String,
    pub(super) shown: String,
    pub(super) ago: String,
}

impl TimeLabel {
    pub(super) fn new(at: Timestamp, now: Timestamp) -> Self {
        let micros = now.as_micros().saturating_sub(at.as_micros());
        let ago = if micros < 0 {
            format!("in {}", span(micros.saturating_neg()))
        } else {
            format!("{} ago", span(micros))
        };
        Self {
            iso: rfc3339(at),
            shown: format_utc(at, "%Y-%m-%d %H:%M:%S"),
            ago,
        }
    }
}

/// A time in UTC, formatted by `strftime`.
pub(super) fn format_utc(at: Timestamp, form: &str) -> String {
    jiff::Timestamp::from_microsecond(at.as_micros())
        .map_or_else(|_| "never".to_owned(), |at| at.strftime(form).to_string())
}

/// The time since `since`.
pub(super) fn age(since: Timestamp, now: Timestamp) -> String {
    span(now.as_micros().saturating_sub(since.as_micros()).max(0))
}

/// A duration in at most two units.
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

/// A number with thousands separators.
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

/// A status as CSS class, symbol and label. The colour adds no information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatusBadge {
    pub(super) class: &'static str,
    pub(super) sign: &'static str,
    pub(super) label: &'static str,
}

impl StatusBadge {
    pub(super) fn new(status: Status, dead_lettered: bool) -> Self {
        let (class, sign, label) = match status {
            Status::InProgress => ("running", "◐", "in progress"),
            Status::Completed => ("good", "✓", "completed"),
            Status::FailedRetryable => ("open", "↻", "released"),
            Status::Unknown if dead_lettered => ("bad", "!", "dead-lettered"),
            Status::Unknown => ("doubt", "?", "unknown"),
            Status::Expired => ("gone", "○", "expired"),
        };
        Self { class, sign, label }
    }
}

/// The meaning of a code; `None` for codes that an application defines.
pub(super) fn meaning(code: &Code) -> Option<&'static str> {
    Some(match code.as_str() {
        "execution_timed_out" => {
            "The application took longer than upstream_timeout; the outcome is not known."
        }
        "upstream_broke_off" => {
            "The connection to the application closed before a response arrived."
        }
        "response_truncated" => "The application's response was truncated.",
        "status_502" | "status_503" | "status_504" => {
            "The application, or a proxy in front of it, returned a status that does not say whether the operation was executed."
        }
        "application_said_so" => "The application reported that it does not know the outcome.",
        "in_progress_lock_expired" => {
            "The lease expired: the process that executed it crashed, or stopped for longer than its lease."
        }
        "shut_down_while_executing" => "The gateway shut down during execution.",
        "reconcile_attempts_exhausted" => {
            "All configured reconcile attempts are used up; no answer from the provider settled the outcome."
        }
        "no_way_to_find_out" => {
            "No process has a reconciler for the operation, so its outcome cannot be looked up automatically."
        }
        "reconcile_timed_out" => "The provider did not answer in time.",
        "reconcile_panicked" => "The reconciler panicked.",
        "operator_decided" => "Decided by an operator.",
        "poll_status_404" => "The provider has no such operation, or does not have it yet.",
        "poll_unaskable" => "The poll request to the provider could not be built.",
        _ => return None,
    })
}

/// A path with a query string.
pub(super) fn link_to(path: &str, query: &[(&str, &str)]) -> String {
    let mut link = path.to_owned();
    for (name, value) in query.iter().filter(|(_, value)| !value.is_empty()) {
        link.push(if link.len() == path.len() { '?' } else { '&' });
        link.push_str(name);
        link.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                link.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(link, "%{byte:02X}");
            }
        }
    }
    link
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_shown() {
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
    fn durations_and_numbers_are_formatted() {
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
    fn query_values_are_percent_encoded() {
        assert_eq!(
            link_to(
                "/operations",
                &[("key", "a&b=c d\"<é"), ("tenant", ""), ("x", "1")]
            ),
            "/operations?key=a%26b%3Dc%20d%22%3C%C3%A9&x=1"
        );
    }
}
