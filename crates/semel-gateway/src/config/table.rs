//! Reads a TOML table key by key, and reports everything that is wrong with it.
//!
//! Why not `#[derive(Deserialize)]` with `toml::Spanned` fields:
//!
//! - A derived struct stops at its first error. A user should see all problems of a file at once.
//! - `Spanned` covers a value, never the key of a struct field. Many of our messages point at a
//!   key: it is unknown, has no effect, or excludes another one.
//! - `deny_unknown_fields` names one unknown key; `flatten` collects all of them, without spans.
//!
//! To get these back, every field would need a type that never fails to deserialize, and the keys
//! would have to be compared with the parsed document a second time. That is more code than this
//! module, so the tables are read from `toml::de::DeTable`, where keys and values have spans.

use std::fmt::Display;
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Problems;
use super::units;

/// Minimum Jaro-Winkler similarity for a "did you mean" suggestion.
const MIN_SIMILARITY: f64 = 0.8;

/// A table that is being read. The keys that are read are the known keys; all others are errors.
pub(super) struct Table<'a> {
    entries: &'a DeTable<'a>,
    /// As messages call it, such as `[policy]`.
    name: &'static str,
    span: Range<usize>,
    known_keys: Vec<&'static str>,
    pub(super) problems: &'a Problems,
}

impl<'a> Table<'a> {
    pub(super) fn new(
        entries: &'a DeTable<'a>,
        name: &'static str,
        span: Range<usize>,
        problems: &'a Problems,
    ) -> Self {
        Self {
            entries,
            name,
            span,
            known_keys: Vec::new(),
            problems,
        }
    }

    /// The span of the table's header.
    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The span of a key, if it is present.
    pub(super) fn key_span(&self, key: &str) -> Option<Range<usize>> {
        self.entries.get_key_value(key).map(|(key, _)| key.span())
    }

    /// Reports a missing key. `example` is a line that would add it.
    pub(super) fn require(&self, key: &str, example: &str) {
        if self.key_span(key).is_none() {
            let message = format!("{} has no `{key}`: add `{example}`", self.name);
            self.problems.at(self.span(), message);
        }
    }

    /// Reports each of these keys that is present.
    pub(super) fn reject<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k str>,
        message: impl Fn(&str) -> String,
    ) {
        for key in keys {
            if let Some(span) = self.key_span(key) {
                self.problems.at(span, message(key));
            }
        }
    }

    pub(super) fn text(&mut self, key: &'static str) -> Option<Spanned<&'a str>> {
        let value = self.value(key)?;
        match value.get_ref().as_str() {
            Some(text) => Some(Spanned::new(value.span(), text)),
            None => self.type_error(key, "a string", value),
        }
    }

    /// A string that `parse` accepts.
    pub(super) fn parsed<T, E: Display>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<Spanned<T>> {
        let text = self.text(key)?;
        match parse(text.get_ref()) {
            Ok(value) => Some(Spanned::new(text.span(), value)),
            Err(problem) => {
                self.problems.at(text.span(), problem.to_string());
                None
            }
        }
    }

    pub(super) fn duration(&mut self, key: &'static str) -> Option<Spanned<Duration>> {
        self.parsed(key, units::duration)
    }

    pub(super) fn nonzero_duration(&mut self, key: &'static str) -> Option<Spanned<Duration>> {
        self.parsed(key, |text| match units::duration(text) {
            Ok(Duration::ZERO) => Err(format!("`{key}` must be longer than zero")),
            other => other,
        })
    }

    pub(super) fn size(&mut self, key: &'static str, max: u64) -> Option<Spanned<u64>> {
        self.parsed(key, |text| match units::size(text) {
            Ok(size) if size > max => Err(format!("`{key}` must be at most {max} bytes")),
            other => other,
        })
    }

    pub(super) fn boolean(&mut self, key: &'static str) -> Option<Spanned<bool>> {
        let value = self.value(key)?;
        match value.get_ref().as_bool() {
            Some(boolean) => Some(Spanned::new(value.span(), boolean)),
            None => self.type_error(key, "true or false", value),
        }
    }

    pub(super) fn integer(
        &mut self,
        key: &'static str,
        range: std::ops::RangeInclusive<usize>,
    ) -> Option<Spanned<usize>> {
        let value = self.value(key)?;
        let DeValue::Integer(integer) = value.get_ref() else {
            return self.type_error(key, "an integer", value);
        };
        match usize::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) if range.contains(&number) => Some(Spanned::new(value.span(), number)),
            _ => {
                let (min, max) = range.into_inner();
                let message = format!("`{key}` must be an integer from {min} to {max}");
                self.problems.at(value.span(), message);
                None
            }
        }
    }

    /// An array of strings that `parse` accepts. Elements with errors are reported and left out.
    pub(super) fn list<T, E: Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<Spanned<T>> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let DeValue::Array(array) = value.get_ref() else {
            self.type_error::<()>(key, "an array of strings", value);
            return Vec::new();
        };
        let mut list = Vec::new();
        for item in array {
            match item.get_ref().as_str().map(&parse) {
                Some(Ok(parsed)) => list.push(Spanned::new(item.span(), parsed)),
                Some(Err(problem)) => self.problems.at(item.span(), problem.to_string()),
                None => {
                    self.type_error::<()>(key, "an array of strings", item);
                }
            }
        }
        list
    }

    /// Whether a key is present, with an array that has no elements.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        let value = self.entries.get(key).map(Spanned::get_ref);
        value
            .and_then(DeValue::as_array)
            .is_some_and(|list| list.is_empty())
    }

    /// A string, or an array of strings.
    pub(super) fn one_or_more<T, E: Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<Spanned<T>> {
        match self.entries.get(key).map(Spanned::get_ref) {
            Some(DeValue::Array(_)) => self.list(key, parse),
            Some(_) | None => self.parsed(key, parse).into_iter().collect(),
        }
    }

    /// A value of any type.
    pub(super) fn value(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.known_keys.push(key);
        self.entries.get(key)
    }

    pub(super) fn table(&mut self, key: &'static str, name: &'static str) -> Option<Table<'a>> {
        let value = self.value(key)?;
        match value.get_ref().as_table() {
            Some(entries) => Some(Table::new(entries, name, value.span(), self.problems)),
            None => self.type_error(key, "a table", value),
        }
    }

    pub(super) fn tables(&mut self, key: &'static str, name: &'static str) -> Vec<Table<'a>> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let DeValue::Array(array) = value.get_ref() else {
            let expected = "an array of tables, with its header in double brackets";
            self.type_error::<()>(key, expected, value);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in array {
            match item.get_ref().as_table() {
                Some(entries) => {
                    tables.push(Table::new(entries, name, item.span(), self.problems));
                }
                None => {
                    self.type_error::<()>(key, "an array of tables", item);
                }
            }
        }
        tables
    }

    /// All entries, for tables whose keys the user chooses.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        self.entries
            .iter()
            .map(|(key, value)| (Spanned::new(key.span(), key.get_ref().as_ref()), value))
    }

    /// Reports the unknown keys: those that no call has read.
    pub(super) fn finish(self) {
        for (key, _) in self.entries() {
            let name = *key.get_ref();
            if self.known_keys.contains(&name) {
                continue;
            }
            let message = format!("unknown key `{name}` in {}", self.name);
            let message = match most_similar(name, self.known_keys.iter().copied()) {
                Some(similar) => format!("{message}; did you mean `{similar}`?"),
                None => message,
            };
            let known = format!("known keys: {}", self.known_keys.join(", "));
            let problem = self
                .problems
                .problem(super::Origin::File(key.span()), message);
            self.problems.add(problem.help(known));
        }
    }

    fn type_error<T>(&self, key: &str, expected: &str, found: &Spanned<DeValue<'_>>) -> Option<T> {
        let found_type = type_name(found.get_ref());
        let message = format!("`{key}` must be {expected}, not {found_type}");
        self.problems.at(found.span(), message);
        None
    }
}

/// A key and its value.
pub(super) type Entry<'a> = (Spanned<&'a str>, &'a Spanned<DeValue<'a>>);

/// The value for one of several names.
pub(super) fn choice<T: Copy>(text: &str, names: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, value)) = names.iter().find(|(name, _)| *name == text) {
        return Ok(*value);
    }
    let quoted: Vec<_> = names.iter().map(|(name, _)| format!("{name:?}")).collect();
    let message = format!("invalid value {text:?}: use one of {}", quoted.join(", "));
    Err(
        match most_similar(text, names.iter().map(|(name, _)| *name)) {
            Some(similar) => format!("{message}; did you mean {similar:?}?"),
            None => message,
        },
    )
}

/// The name of a value's type in messages.
pub(super) fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

fn most_similar<'n>(text: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    names
        .map(|name| (strsim::jaro_winkler(text, name), name))
        .filter(|(similarity, _)| *similarity > MIN_SIMILARITY)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}
