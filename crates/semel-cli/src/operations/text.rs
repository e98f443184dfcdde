//! Stored text on a terminal. Keys, tenants, reasons, evidence and bodies come from clients and
//! providers: printed as they are, they could move the cursor, set the title, hide a line, or show
//! an amount backwards.

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::fmt::rfc2822;

/// On one line. What a terminal obeys or does not show is spelled out, as `\u{1b}` or `\n`; a
/// backslash is doubled, so that two texts never look the same.
pub(crate) fn line(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' => safe.push(character),
            // All that is not printable, the marks that turn text around among it.
            other => safe.extend(other.escape_debug()),
        }
    }
    safe
}

/// On lines of its own, each after `indent`. Here a backslash stays one: it is mostly JSON.
pub(crate) fn block(text: &str, indent: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for part in text.lines() {
        safe.push_str(indent);
        let parts: Vec<String> = part.split('\\').map(line).collect();
        safe.push_str(&parts.join("\\"));
        safe.push('\n');
    }
    safe
}

/// A JSON document that says the same, and whose text no terminal obeys. Whatever is outside
/// ASCII, and DEL, can only be inside of strings, where an escape means the same.
pub(crate) fn document(json: &str) -> String {
    let mut safe = String::with_capacity(json.len() + 1);
    for character in json.trim_end().chars() {
        let shown = character.is_ascii() && character != '\u{7f}';
        if shown || character.escape_debug().len() == 1 {
            safe.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(safe, "\\u{unit:04x}");
            }
        }
    }
    safe.push('\n');
    safe
}

/// At most so many characters; what was cut shows.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// A time as the API writes it.
pub(crate) fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// A time as HTTP writes it.
pub(crate) fn date(text: &str) -> Option<Timestamp> {
    let parsed = rfc2822::DateTimeParser::new().parse_timestamp(text);
    parsed.ok()
}

/// How long ago, in the unit that fits. By the gateway's clock, which the records are from.
pub(crate) fn age(since: &str, now: Option<Timestamp>) -> String {
    let (Some(since), Some(now)) = (time(since), now) else {
        return "?".to_owned();
    };
    let seconds = (now.as_second() - since.as_second()).max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing that a terminal obeys, nor what shows something else than it is.
    fn harmless(text: &str) -> bool {
        let hidden = |c: char| {
            c.is_control()
                || ('\u{200b}'..='\u{200f}').contains(&c)
                || ('\u{2028}'..='\u{202e}').contains(&c)
                || ('\u{2060}'..='\u{206f}').contains(&c)
                || ('\u{e0000}'..='\u{e007f}').contains(&c)
                || ['\u{ad}', '\u{61c}', '\u{feff}'].contains(&c)
        };
        !text.chars().any(hidden)
    }

    const HOSTILE: [&str; 10] = [
        "\u{1b}]0;all is well\u{7}",
        "\u{1b}[2J\u{1b}[1;1Hcompleted",
        "\u{9b}31mred\u{9c}",
        "two\nlines\r\tand a tab",
        "pay\u{202e}0001\u{202c}",
        "\u{2066}isolated\u{2069}\u{200f}\u{61c}",
        "zero\u{200b}width\u{feff}\u{ad}",
        "tag\u{e0041}",
        "\0\u{8}\u{7f}",
        "line\u{2028}separator\u{85}",
    ];

    #[test]
    fn nothing_that_a_terminal_obeys_is_printed() {
        for hostile in HOSTILE {
            assert!(!harmless(hostile), "{hostile:?}");
            assert!(harmless(&line(hostile)), "{hostile:?}");
            let block = block(hostile, "  ");
            assert!(block.lines().all(harmless), "{block:?}");
            assert!(
                block.lines().all(|line| line.starts_with("  ")),
                "{block:?}"
            );
        }
        assert_eq!(line("a\u{1b}[1mb\nc"), "a\\u{1b}[1mb\\nc");
        assert_eq!(line(r#"{"it's": 1}"#), r#"{"it's": 1}"#);
        assert_eq!(line("Zoë 支払い"), "Zoë 支払い");
    }

    #[test]
    fn two_texts_never_look_the_same_on_a_line() {
        assert_ne!(line("a\nb"), line(r"a\nb"));
        assert_eq!(
            block("{\"a\": \"\\n\"}\nb", "> "),
            "> {\"a\": \"\\n\"}\n> b\n"
        );
    }

    #[test]
    fn a_document_says_the_same_and_is_harmless() {
        for hostile in HOSTILE {
            let written = serde_json::to_string(&[hostile]).unwrap();
            let safe = document(&written);
            assert!(harmless(safe.trim_end()), "{safe:?}");
            let read: Vec<String> = serde_json::from_str(&safe).unwrap();
            assert_eq!(read, [hostile]);
        }
        assert_eq!(document("{\"a\": \"é\\n\"}\n\n"), "{\"a\": \"é\\n\"}\n");
    }

    #[test]
    fn ages_are_read_at_a_glance() {
        let now = date("Mon, 16 Nov 2026 07:00:00 GMT");
        assert!(now.is_some());
        for (since, age_then) in [
            ("2026-11-16T07:00:00Z", "0s"),
            ("2026-11-16T06:59:01.5Z", "59s"),
            ("2026-11-16T06:00:01Z", "59m"),
            ("2026-11-14T07:00:01Z", "47h"),
            ("2026-11-14T07:00:00Z", "2d"),
            // Another machine's clock.
            ("2026-11-16T07:00:09Z", "0s"),
            ("yesterday", "?"),
        ] {
            assert_eq!(age(since, now), age_then, "{since}");
        }
        assert_eq!(age("2026-11-16T07:00:00Z", None), "?");
    }

    #[test]
    fn what_is_cut_shows() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde…");
    }
}
