//! Escapes stored text for a terminal. Keys, tenants, reasons, evidence and bodies come from clients
//! and providers: unescaped, they could move the cursor, set the title, hide a line, or show an
//! amount backwards.

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::fmt::rfc2822;

/// Escapes text for one line: control and invisible characters as `\u{1b}` or `\n`. A backslash is
/// doubled, so that different texts never look the same.
pub(crate) fn line(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' => safe.push(character),
            // Escapes everything unprintable, bidirectional marks included.
            other => safe.extend(other.escape_debug()),
        }
    }
    safe
}

/// Escapes text for several lines, each after `indent`. Backslashes stay single, because the text
/// is mostly JSON.
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

/// An equivalent JSON document without control or invisible characters. Non-ASCII characters and DEL
/// can only occur in strings, where an escape is equivalent.
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

/// At most `most` characters; a cut is marked with `…`.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Parses a time of the API.
pub(crate) fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Parses an HTTP date.
pub(crate) fn date(text: &str) -> Option<Timestamp> {
    let parsed = rfc2822::DateTimeParser::new().parse_timestamp(text);
    parsed.ok()
}

/// The age in one unit, by the gateway's clock.
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

    /// Whether it has no control and no invisible characters.
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
    fn control_characters_are_escaped() {
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
    fn different_texts_look_different_on_a_line() {
        assert_ne!(line("a\nb"), line(r"a\nb"));
        assert_eq!(
            block("{\"a\": \"\\n\"}\nb", "> "),
            "> {\"a\": \"\\n\"}\n> b\n"
        );
    }

    #[test]
    fn an_escaped_document_is_equivalent() {
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
    fn ages_have_one_unit() {
        let now = date("Mon, 16 Nov 2026 07:00:00 GMT");
        assert!(now.is_some());
        for (since, age_then) in [
            ("2026-11-16T07:00:00Z", "0s"),
            ("2026-11-16T06:59:01.5Z", "59s"),
            ("2026-11-16T06:00:01Z", "59m"),
            ("2026-11-14T07:00:01Z", "47h"),
            ("2026-11-14T07:00:00Z", "2d"),
            // A clock that is ahead.
            ("2026-11-16T07:00:09Z", "0s"),
            ("yesterday", "?"),
        ] {
            assert_eq!(age(since, now), age_then, "{since}");
        }
        assert_eq!(age("2026-11-16T07:00:00Z", None), "?");
    }

    #[test]
    fn a_cut_is_marked() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde…");
    }
}
