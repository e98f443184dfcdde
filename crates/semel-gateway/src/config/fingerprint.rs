//! `fingerprint = { … }` of a route.

use std::ops::Range;

use http::HeaderName;
use semel_core::fingerprint::{Error, Options, Rules};
use serde_json::Value;
use toml::Spanned;
use toml::de::DeValue;

use super::problem::Problems;
use super::table::{Table, kind};

/// What tells where a request comes from, and nothing of what it means.
const TRACES: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// Reads the rules. `key_header` is the header of the key, which cannot be one of them.
pub(super) fn read(mut table: Table<'_>, key_header: &HeaderName) -> Options {
    let problems = table.problems;
    let own = |text: &str| Ok::<_, String>(text.to_owned());
    let headers = table.list("headers", |name| {
        if key_header.as_str().eq_ignore_ascii_case(name) {
            return Err(format!(
                "header {name:?}: the key is never part of a fingerprint"
            ));
        }
        if TRACES.iter().any(|trace| trace.eq_ignore_ascii_case(name)) {
            return Err(format!(
                "header {name:?}: it is another on every retry, and no retry would be one"
            ));
        }
        one(&Options {
            headers: vec![name.to_owned()],
            ..Options::default()
        })?;
        Ok(name.to_owned())
    });
    let ignore = table.list("ignore", |pointer| {
        one(&Options {
            ignore: vec![pointer.to_owned()],
            ..Options::default()
        })?;
        own(pointer)
    });
    let decimals = table.list("decimals", |pointer| {
        one(&Options {
            decimals: vec![pointer.to_owned()],
            ..Options::default()
        })?;
        own(pointer)
    });
    let defaults = table
        .table("defaults", "`defaults`")
        .map(|defaults| defaults_of(&defaults))
        .unwrap_or_default();
    let span = table.span();
    table.finish();

    let mut spans: Vec<Spanned<String>> = ignore.clone();
    spans.extend(defaults.iter().map(|(pointer, _)| pointer.clone()));
    let options = Options {
        headers: headers.into_iter().map(Spanned::into_inner).collect(),
        ignore: ignore.into_iter().map(Spanned::into_inner).collect(),
        defaults: defaults
            .into_iter()
            .map(|(pointer, json)| (pointer.into_inner(), json))
            .collect(),
        decimals: decimals.into_iter().map(Spanned::into_inner).collect(),
    };
    if let Err(error) = Rules::new(&options) {
        together(&error, &spans, span, problems);
    }
    options
}

/// Each rule is fine by itself, so what is left is wrong between them.
fn together(error: &Error, spans: &[Spanned<String>], table: Range<usize>, problems: &Problems) {
    let named = |span: &&Spanned<String>| {
        // Any other error has no place of its own among options that are fine by themselves.
        matches!(error, Error::Overlap { one, other } if [one, other].contains(&span.get_ref()))
    };
    let mut places: Vec<_> = spans.iter().filter(named).map(Spanned::span).collect();
    places.sort_by_key(|span| span.start);
    let mut places = places.into_iter();
    let (first, second) = (places.next(), places.next());
    let at = second.clone().or(first.clone()).unwrap_or(table);
    let problem = problems.problem(super::Origin::File(at), error.to_string());
    problems.add(match (first, second) {
        (Some(first), Some(_)) => problem.also(first, "and this"),
        _ => problem,
    });
}

fn one(options: &Options) -> Result<(), String> {
    Rules::new(options)
        .map(|_| ())
        .map_err(|error| error.to_string())
}

fn defaults_of(table: &Table<'_>) -> Vec<(Spanned<String>, String)> {
    let mut defaults = Vec::new();
    for (pointer, value) in table.entries() {
        let json = match json(value.get_ref()) {
            Ok(json) => json.to_string(),
            Err(problem) => {
                table.problems.at(value.span(), problem);
                continue;
            }
        };
        let name = (*pointer.get_ref()).to_owned();
        let entry = (name.clone(), json.clone());
        match one(&Options {
            defaults: vec![entry],
            ..Options::default()
        }) {
            Ok(()) => defaults.push((Spanned::new(pointer.span(), name), json)),
            Err(problem) => table.problems.at(pointer.span(), problem),
        }
    }
    defaults
}

fn json(value: &DeValue<'_>) -> Result<Value, String> {
    match value {
        DeValue::String(text) => Ok(Value::from(text.as_ref())),
        DeValue::Boolean(boolean) => Ok(Value::from(*boolean)),
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix())
            .map(Value::from)
            .map_err(|_| "the integer does not fit 64 bits; write it as a string".to_owned()),
        DeValue::Float(float) => float
            .as_str()
            .parse()
            .ok()
            .and_then(serde_json::Number::from_f64)
            .map(Value::Number)
            .ok_or_else(|| "JSON has no such number".to_owned()),
        DeValue::Array(array) => array.iter().map(|item| json(item.get_ref())).collect(),
        DeValue::Table(table) => table
            .iter()
            .map(|(name, value)| Ok((name.get_ref().to_string(), json(value.get_ref())?)))
            .collect::<Result<_, String>>()
            .map(Value::Object),
        DeValue::Datetime(_) => Err(format!(
            "JSON has no type for {}; write it as a string",
            kind(value)
        )),
    }
}
