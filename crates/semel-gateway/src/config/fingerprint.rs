//! `fingerprint = { … }` of a route.

use std::ops::Range;

use http::HeaderName;
use semel_core::fingerprint::{Error, Options, Precision, Rules};
use serde_json::Value;
use toml::Spanned;
use toml::de::DeValue;

use super::problem::Problems;
use super::table::{Table, choice, type_name};

/// Tracing headers: they differ on every attempt.
const TRACE_HEADERS: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// Reads the rules. `key_header` is the name of the key header, which cannot be in `headers`.
pub(super) fn read(mut table: Table<'_>, key_header: &HeaderName) -> Options {
    let problems = table.problems;
    let headers = table.list("headers", |name| {
        if key_header.as_str().eq_ignore_ascii_case(name) {
            return Err(format!(
                "header {name:?}: the key is never part of a fingerprint"
            ));
        }
        if TRACE_HEADERS
            .iter()
            .any(|trace| trace.eq_ignore_ascii_case(name))
        {
            return Err(format!(
                "header {name:?} differs on every retry, so no retry would match"
            ));
        }
        check_rule(&Options {
            headers: vec![name.to_owned()],
            ..Options::default()
        })?;
        Ok(name.to_owned())
    });
    let ignore = pointers(&mut table, "ignore", |ignore| Options {
        ignore,
        ..Options::default()
    });
    let decimals = pointers(&mut table, "decimals", |decimals| Options {
        decimals,
        ..Options::default()
    });
    let fields = pointers(&mut table, "fields", |fields| Options {
        fields,
        ..Options::default()
    });
    if let Some(span) = table
        .key_span("fields")
        .filter(|_| table.is_empty_list("fields"))
    {
        let message =
            "`fields` is empty, so every body would be the same: add a pointer, or remove it";
        problems.at(span, message);
    }
    let enums = pointers(&mut table, "enums", |enums| Options {
        enums,
        ..Options::default()
    });
    let timestamps = table
        .table("timestamps", "`timestamps`")
        .map(|timestamps| read_timestamps(&timestamps))
        .unwrap_or_default();
    let defaults = table
        .table("defaults", "`defaults`")
        .map(|defaults| read_defaults(&defaults))
        .unwrap_or_default();
    let span = table.span();
    table.finish();

    let lists = [&ignore, &decimals, &fields, &enums];
    let mut spans: Vec<Spanned<String>> = lists.into_iter().flatten().cloned().collect();
    spans.extend(defaults.iter().map(|(pointer, _)| pointer.clone()));
    spans.extend(timestamps.iter().map(|(pointer, _)| pointer.clone()));
    let options = Options {
        headers: unspanned(headers),
        ignore: unspanned(ignore),
        defaults: defaults
            .into_iter()
            .map(|(pointer, json)| (pointer.into_inner(), json))
            .collect(),
        decimals: unspanned(decimals),
        fields: unspanned(fields),
        enums: unspanned(enums),
        timestamps: timestamps
            .into_iter()
            .map(|(pointer, precision)| (pointer.into_inner(), precision))
            .collect(),
    };
    if let Err(error) = Rules::new(&options) {
        report_conflict(&error, &spans, span, problems);
    }
    options
}

/// A list of pointers, each valid by itself as the rule that `options` makes of it.
fn pointers(
    table: &mut Table<'_>,
    key: &'static str,
    options: impl Fn(Vec<String>) -> Options,
) -> Vec<Spanned<String>> {
    table.list(key, |pointer| {
        check_rule(&options(vec![pointer.to_owned()]))?;
        Ok::<_, String>(pointer.to_owned())
    })
}

fn unspanned(list: Vec<Spanned<String>>) -> Vec<String> {
    list.into_iter().map(Spanned::into_inner).collect()
}

/// Each rule is valid by itself, so the error is a conflict between two of them.
fn report_conflict(
    error: &Error,
    spans: &[Spanned<String>],
    table: Range<usize>,
    problems: &Problems,
) {
    // Other errors cannot occur here.
    let named = |span: &&Spanned<String>| {
        let text = span.get_ref();
        matches!(error, Error::Overlap { one, other } if [one, other].contains(&text))
            || matches!(error, Error::FieldsAndIgnore { pointer } if pointer == text)
            || matches!(error, Error::OutsideFields { pointer } if pointer == text)
    };
    let mut conflicting: Vec<_> = spans.iter().filter(named).map(Spanned::span).collect();
    conflicting.sort_by_key(|span| span.start);
    let mut conflicting = conflicting.into_iter();
    let (first, second) = (conflicting.next(), conflicting.next());
    let at = second.clone().or(first.clone()).unwrap_or(table);
    let problem = problems.problem(super::Origin::File(at), error.to_string());
    problems.add(match (first, second) {
        (Some(first), Some(_)) => problem.with_related(first, "conflicts with this"),
        _ => problem,
    });
}

fn check_rule(options: &Options) -> Result<(), String> {
    Rules::new(options)
        .map(|_| ())
        .map_err(|error| error.to_string())
}

fn read_timestamps(table: &Table<'_>) -> Vec<(Spanned<String>, Precision)> {
    let names = Precision::ALL.map(|precision| (precision.as_str(), precision));
    let mut timestamps = Vec::new();
    for (pointer, value) in table.entries() {
        let name = (*pointer.get_ref()).to_owned();
        let precision = match value.get_ref().as_str() {
            Some(text) => choice(text, &names),
            None => Err(format!(
                "the precision of {name} must be a string, for example \"second\""
            )),
        };
        let precision = match precision {
            Ok(precision) => precision,
            Err(problem) => {
                table.problems.at(value.span(), problem);
                continue;
            }
        };
        match check_rule(&Options {
            timestamps: vec![(name.clone(), precision)],
            ..Options::default()
        }) {
            Ok(()) => timestamps.push((Spanned::new(pointer.span(), name), precision)),
            Err(problem) => table.problems.at(pointer.span(), problem),
        }
    }
    timestamps
}

fn read_defaults(table: &Table<'_>) -> Vec<(Spanned<String>, String)> {
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
        match check_rule(&Options {
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
            .ok_or_else(|| "JSON cannot represent this number".to_owned()),
        DeValue::Array(array) => array.iter().map(|item| json(item.get_ref())).collect(),
        DeValue::Table(table) => table
            .iter()
            .map(|(name, value)| Ok((name.get_ref().to_string(), json(value.get_ref())?)))
            .collect::<Result<_, String>>()
            .map(Value::Object),
        DeValue::Datetime(_) => Err(format!(
            "JSON has no type for {}; write it as a string",
            type_name(value)
        )),
    }
}
