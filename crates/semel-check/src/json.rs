//! Edits JSON as text, so that every other byte stays: a parser could change a number.

use std::ops::Range;

use serde_json::Value;

/// The same object with its members in reverse order and other whitespace between them.
pub(crate) fn reordered(body: &str) -> Option<String> {
    if !serde_json::from_str::<Value>(body).ok()?.is_object() {
        return None;
    }
    let open = body.find('{')?;
    let close = body.rfind('}')?;
    let mut members = split(&body[open + 1..close]);
    if members.len() < 2 {
        return None;
    }
    members.reverse();
    Some(format!("{{ {} }}", members.join(",\n  ")))
}

/// A different request: the first number changed. `None` without a number.
pub(crate) fn other(body: &str) -> Option<String> {
    serde_json::from_str::<Value>(body).ok()?;
    let place = first_number(body)?;
    let number = &body[place.clone()];
    let changed = match number.parse::<i64>() {
        Ok(number) => number.checked_add(1)?.to_string(),
        // A leading digit changes any number.
        Err(_) => match number.strip_prefix('-') {
            Some(digits) => format!("-1{digits}"),
            None => format!("1{number}"),
        },
    };
    Some(format!(
        "{}{changed}{}",
        &body[..place.start],
        &body[place.end..]
    ))
}

/// The members of an object, or the elements of an array, without what is around them.
fn split(inner: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (at, character) in outside_strings(inner) {
        match character {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(inner[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = inner[start..].trim();
    if !last.is_empty() {
        parts.push(last);
    }
    parts
}

fn first_number(body: &str) -> Option<Range<usize>> {
    let starts = |(at, character): &(usize, char)| {
        let before = body[..*at].chars().next_back();
        (character.is_ascii_digit() || *character == '-')
            && !before.is_some_and(char::is_alphanumeric)
    };
    let (start, _) = outside_strings(body).find(starts)?;
    let part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
    let length = body[start..]
        .find(|c| !part(c))
        .unwrap_or(body.len() - start);
    Some(start..start + length)
}

/// Every character that is not within a string.
fn outside_strings(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut within, mut escaped) = (false, false);
    text.char_indices().filter(move |(_, character)| {
        if escaped {
            escaped = false;
            return false;
        }
        match character {
            '\\' if within => escaped = true,
            '"' => within = !within,
            _ => return !within,
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reordering_keeps_every_member_byte_for_byte() {
        let body = r#"{"a": 1.10, "b": {"x": [1, 2], "y": "},\""}, "c": 9007199254740993}"#;
        assert_eq!(
            reordered(body).unwrap(),
            "{ \"c\": 9007199254740993,\n  \"b\": {\"x\": [1, 2], \"y\": \"},\\\"\"},\n  \"a\": 1.10 }"
        );
        for not in ["[1, 2]", "{\"a\": 1}", "{}", "no", "\"{,}\""] {
            assert_eq!(reordered(not), None, "{not}");
        }
    }

    #[test]
    fn a_different_request_differs_in_its_first_number() {
        for (body, changed) in [
            (
                r#"{"a":"1","amount":1000,"n":2}"#,
                r#"{"a":"1","amount":1001,"n":2}"#,
            ),
            ("[-1]", "[0]"),
            (r#"{"a1":1.5e3}"#, r#"{"a1":11.5e3}"#),
            (r#"{"a":-0.5}"#, r#"{"a":-10.5}"#),
            ("7", "8"),
        ] {
            assert_eq!(other(body).as_deref(), Some(changed), "{body}");
        }
        for not in [r#"{"a":"1"}"#, "no", "amount=1000"] {
            assert_eq!(other(not), None, "{not}");
        }
    }
}
