//! Terminal-safe text, wrapping, and placeholders.

use std::fmt::Write as _;

/// Fills the placeholders `{reference}` and `{key}`.
pub fn fill(template: &str, reference: &str, key: &str) -> String {
    template
        .replace("{reference}", reference)
        .replace("{key}", key)
}

/// One line without control characters, which are spelled out. A raw response could move the cursor
/// and turn a failure into a pass.
pub(crate) fn line(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => safe.push(character),
            '\n' | '\r' | '\t' => safe.push(' '),
            other => safe.extend(other.escape_debug()),
        }
    }
    safe
}

/// The same JSON document with control characters escaped.
pub(crate) fn document(json: &str) -> String {
    let mut safe = String::with_capacity(json.len() + 1);
    for character in json.chars() {
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

/// At most so many characters; `…` marks a cut.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Wraps text at a width, between words where possible.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(8);
    let mut lines = Vec::new();
    let mut current = String::new();
    let mut length = 0;
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        if length > 0 && length + 1 + word.len() > width {
            lines.push(std::mem::take(&mut current));
            length = 0;
        }
        if length > 0 {
            current.push(' ');
            length += 1;
        }
        while word.len() > width {
            lines.push(word.drain(..width).collect());
        }
        length += word.len();
        current.extend(word);
    }
    if length > 0 || lines.is_empty() {
        lines.push(current);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelled_out() {
        for hostile in [
            "\u{1b}[2Jpass",
            "\u{9b}31m",
            "a\u{202e}b",
            "\u{200b}",
            "\0\u{7f}",
            "a\rb",
        ] {
            let safe = line(hostile);
            assert!(!safe.chars().any(char::is_control), "{safe:?}");
            assert!(
                !safe.contains(['\u{202e}', '\u{200b}', '\u{9b}']),
                "{safe:?}"
            );
            let json = serde_json::to_string(hostile).unwrap();
            let safe = document(&json);
            assert!(!safe.trim_end().chars().any(char::is_control), "{safe:?}");
            assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), hostile);
        }
        assert_eq!(line(r#"{"a": "é\n"}"#), r#"{"a": "é\n"}"#);
    }

    #[test]
    fn long_text_is_wrapped_between_words() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("0123456789ab cd", 8), ["01234567", "89ab cd"]);
        assert_eq!(wrap("", 8), [""]);
    }

    #[test]
    fn placeholders_are_filled_and_long_text_is_cut() {
        assert_eq!(fill("{reference}-{key}-{other}", "r", "k"), "r-k-{other}");
        assert_eq!(cut("abcdefg", 6), "abcde…");
    }
}
