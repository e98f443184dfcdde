//! HTTP statuses: `"200"` or `200`, and classes of them: `"4xx"`.

use http::StatusCode;
use toml::Spanned;
use toml::de::DeValue;

use super::table::type_name;

/// One status, or all statuses of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusPattern {
    /// One status.
    Exact(StatusCode),
    /// The statuses with this first digit: 4 for `"4xx"`.
    Class(u16),
}

/// Parses a status or a class such as `"4xx"`.
pub(super) fn parse_pattern(text: &str) -> Result<StatusPattern, String> {
    match text {
        "2xx" => Ok(StatusPattern::Class(2)),
        "3xx" => Ok(StatusPattern::Class(3)),
        "4xx" => Ok(StatusPattern::Class(4)),
        "5xx" => Ok(StatusPattern::Class(5)),
        _ => parse(text)
            .map(StatusPattern::Exact)
            .map_err(|problem| format!("{problem}, or a class, for example \"4xx\"")),
    }
}

/// Parses a status.
pub(super) fn parse(text: &str) -> Result<StatusCode, String> {
    text.parse::<u16>()
        .ok()
        .filter(|code| text.len() == 3 && (200..600).contains(code))
        .and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or_else(|| format!("invalid status {text:?}: use 200 to 599"))
}

/// Parses a status that is a string or a number.
pub(super) fn value(value: &DeValue<'_>) -> Result<StatusCode, String> {
    match value {
        DeValue::String(text) => parse(text),
        DeValue::Integer(number) if number.radix() == 10 => parse(number.as_str()),
        DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => Err(format!(
            "a status must be a number, for example 200, not {}",
            type_name(value)
        )),
    }
}

/// Parses one status or an array of them; `report` receives the problems.
pub(super) fn list(
    value: &Spanned<DeValue<'_>>,
    mut report: impl FnMut(std::ops::Range<usize>, String),
) -> Vec<Spanned<StatusCode>> {
    let one = std::slice::from_ref(value);
    let items = match value.get_ref() {
        DeValue::Array(array) => array.iter().collect::<Vec<_>>(),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Table(_) => one.iter().collect(),
    };
    let mut statuses = Vec::new();
    for item in items {
        match self::value(item.get_ref()) {
            Ok(status) => statuses.push(Spanned::new(item.span(), status)),
            Err(problem) => report(item.span(), problem),
        }
    }
    statuses
}
