//! Helpers for Markdown.

use std::fmt::Write as _;

use serde_json::Value;

/// A table, row by row.
pub(super) struct Table {
    text: String,
}

impl Table {
    pub(super) fn new(head: &[&str]) -> Self {
        let mut table = Self {
            text: String::new(),
        };
        table.row(head);
        table.text.push_str(&"|---".repeat(head.len()));
        table.text.push_str("|\n");
        table
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        for cell in cells {
            // Writing to a String cannot fail.
            let _ = write!(self.text, "| {} ", plain(cell.as_ref()));
        }
        self.text.push_str("|\n");
    }

    pub(super) fn done(self) -> String {
        self.text + "\n"
    }
}

/// One line, with `|` escaped for a table cell.
pub(super) fn plain(text: &str) -> String {
    let parts: Vec<&str> = text.split_whitespace().collect();
    parts.join(" ").replace('|', "\\|")
}

/// Cuts a text to a number of characters.
pub(super) fn cut(text: &str, most: usize) -> String {
    let mut chars = text.chars();
    let mut cut: String = chars.by_ref().take(most).collect();
    if chars.next().is_some() {
        cut.push('…');
    }
    cut
}

/// Output of a program as inline code.
pub(super) fn quoted(text: &str) -> String {
    let text = plain(text).replace('`', "'");
    if text.is_empty() {
        return text;
    }
    format!("`{text}`")
}

/// The text of a JSON string; empty for any other value.
pub(super) fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The items of a JSON array; none for any other value.
pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The fields of a JSON object; none for any other value.
pub(super) fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let members = value.as_object().into_iter().flatten();
    members.map(|(name, value)| (name.as_str(), value))
}

/// An integer with thousands separators, or a dash.
pub(super) fn count(value: &Value) -> String {
    let whole = value.as_u64().or_else(|| {
        // Programs in other languages write 5.0.
        let rounded = value.as_f64()?.round();
        format!("{rounded:.0}").parse().ok()
    });
    let Some(number) = whole else {
        return "–".to_owned();
    };
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with a number of decimal places, or a dash.
pub(super) fn decimal(value: &Value, digits: usize) -> String {
    let number = value.as_f64();
    number.map_or_else(|| "–".to_owned(), |number| format!("{number:.digits$}"))
}

/// `name 5, other 6`, or a dash.
pub(super) fn counts(value: &Value) -> String {
    let each = members(value).map(|(name, value)| format!("{} {}", humanize(name), count(value)));
    let each: Vec<String> = each.collect();
    if each.is_empty() {
        return "–".to_owned();
    }
    each.join(", ")
}

/// A field's name with spaces.
pub(super) fn humanize(name: &str) -> String {
    name.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn thousands_are_apart() {
        let all = [
            json!(5),
            json!(999),
            json!(1_000),
            json!(1_234_567),
            json!(2_000.4),
        ];
        assert_eq!(
            all.each_ref().map(count),
            ["5", "999", "1,000", "1,234,567", "2,000"]
        );
        assert_eq!(count(&Value::Null), "–");
    }

    #[test]
    fn quoted_output_stays_in_its_cell() {
        assert_eq!(quoted("a | `b`\n c"), "`a \\| 'b' c`");
        assert_eq!(cut("abc", 2), "ab…");
        assert_eq!(cut("abc", 3), "abc");
    }
}
