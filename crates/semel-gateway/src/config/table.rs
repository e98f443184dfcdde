//! A TOML table that is asked for its keys by name and type, and says what is wrong with them.

use std::fmt::Display;
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Problems;
use super::units;

/// Words this alike, of 1, are taken for slips of the finger.
const ALIKE: f64 = 0.8;

/// A table on its way to a validated type. Keys that nobody asked for are unknown.
pub(super) struct Table<'a> {
    entries: &'a DeTable<'a>,
    /// As it is called in messages, such as `[policy]`.
    name: &'static str,
    span: Range<usize>,
    asked: Vec<&'static str>,
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
            asked: Vec::new(),
            problems,
        }
    }

    /// Of the table's header.
    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Of the key itself, if it is there.
    pub(super) fn key_span(&self, key: &str) -> Option<Range<usize>> {
        self.entries.get_key_value(key).map(|(key, _)| key.span())
    }

    pub(super) fn text(&mut self, key: &'static str) -> Option<Spanned<&'a str>> {
        let value = self.value(key)?;
        match value.get_ref().as_str() {
            Some(text) => Some(Spanned::new(value.span(), text)),
            None => self.wrong(key, "a string", value),
        }
    }

    /// A string that means something.
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

    /// A duration of which nothing would come if it were zero.
    pub(super) fn some_time(&mut self, key: &'static str) -> Option<Spanned<Duration>> {
        self.parsed(key, |text| match units::duration(text) {
            Ok(Duration::ZERO) => Err(format!("`{key}` must be longer than zero")),
            other => other,
        })
    }

    pub(super) fn size(&mut self, key: &'static str, most: u64) -> Option<Spanned<u64>> {
        self.parsed(key, |text| match units::size(text) {
            Ok(size) if size > most => Err(format!("`{key}` is at most {most} bytes")),
            other => other,
        })
    }

    pub(super) fn boolean(&mut self, key: &'static str) -> Option<Spanned<bool>> {
        let value = self.value(key)?;
        match value.get_ref().as_bool() {
            Some(boolean) => Some(Spanned::new(value.span(), boolean)),
            None => self.wrong(key, "true or false", value),
        }
    }

    pub(super) fn integer(
        &mut self,
        key: &'static str,
        range: std::ops::RangeInclusive<usize>,
    ) -> Option<Spanned<usize>> {
        let value = self.value(key)?;
        let DeValue::Integer(integer) = value.get_ref() else {
            return self.wrong(key, "a whole number", value);
        };
        match usize::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) if range.contains(&number) => Some(Spanned::new(value.span(), number)),
            _ => {
                let (least, most) = range.into_inner();
                let message = format!("`{key}` is a whole number from {least} to {most}");
                self.problems.at(value.span(), message);
                None
            }
        }
    }

    /// Strings that mean something each.
    pub(super) fn list<T, E: Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<Spanned<T>> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let DeValue::Array(array) = value.get_ref() else {
            self.wrong::<()>(key, "an array of strings", value);
            return Vec::new();
        };
        let mut list = Vec::new();
        for item in array {
            match item.get_ref().as_str().map(&parse) {
                Some(Ok(parsed)) => list.push(Spanned::new(item.span(), parsed)),
                Some(Err(problem)) => self.problems.at(item.span(), problem.to_string()),
                None => {
                    self.wrong::<()>(key, "an array of strings", item);
                }
            }
        }
        list
    }

    /// One string that means something, or several.
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

    /// A value whose type its reader judges.
    pub(super) fn raw(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.value(key)
    }

    pub(super) fn table(&mut self, key: &'static str, name: &'static str) -> Option<Table<'a>> {
        let value = self.value(key)?;
        match value.get_ref().as_table() {
            Some(entries) => Some(Table::new(entries, name, value.span(), self.problems)),
            None => self.wrong(key, "a table", value),
        }
    }

    pub(super) fn tables(&mut self, key: &'static str, name: &'static str) -> Vec<Table<'a>> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let DeValue::Array(array) = value.get_ref() else {
            let expected = "an array of tables: write its header in double brackets";
            self.wrong::<()>(key, expected, value);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in array {
            match item.get_ref().as_table() {
                Some(entries) => {
                    tables.push(Table::new(entries, name, item.span(), self.problems));
                }
                None => {
                    self.wrong::<()>(key, "an array of tables", item);
                }
            }
        }
        tables
    }

    /// The entries, whose keys are the writer's own.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        self.entries
            .iter()
            .map(|(key, value)| (Spanned::new(key.span(), key.get_ref().as_ref()), value))
    }

    /// Reports the keys that nobody asked for.
    pub(super) fn finish(self) {
        for (key, _) in self.entries() {
            let name = *key.get_ref();
            if self.asked.contains(&name) {
                continue;
            }
            let message = format!("unknown key `{name}` in {}", self.name);
            let message = match alike(name, self.asked.iter().copied()) {
                Some(meant) => format!("{message}; did you mean `{meant}`?"),
                None => message,
            };
            let known = format!("known here: {}", self.asked.join(", "));
            let problem = self
                .problems
                .problem(super::Origin::File(key.span()), message);
            self.problems.add(problem.help(known));
        }
    }

    fn value(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.push(key);
        self.entries.get(key)
    }

    fn wrong<T>(&self, key: &str, expected: &str, found: &Spanned<DeValue<'_>>) -> Option<T> {
        let kind = kind(found.get_ref());
        let message = format!("`{key}` is {expected}, and this is {kind}");
        self.problems.at(found.span(), message);
        None
    }
}

/// A key and its value.
pub(super) type Entry<'a> = (Spanned<&'a str>, &'a Spanned<DeValue<'a>>);

/// One of several words.
pub(super) fn choice<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let quoted: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
    let message = format!("{text:?} is none of {}", quoted.join(", "));
    Err(match alike(text, words.iter().map(|(word, _)| *word)) {
        Some(meant) => format!("{message}; did you mean {meant:?}?"),
        None => message,
    })
}

/// What the type of a value is called.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
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

fn alike<'w>(text: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    words
        .map(|word| (strsim::jaro_winkler(text, word), word))
        .filter(|(likeness, _)| *likeness > ALIKE)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, word)| word)
}
