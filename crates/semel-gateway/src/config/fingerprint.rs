//! `fingerprint = { … }` of a route.

use std::ops::Range;

use http::HeaderName;
use semel_core::fingerprint::{Error, Options, Rules};
use serde_json::Value;
use toml::Spanned;
use toml::de::DeValue;

use super::problem::Problems;
use super::table::{Table, type_name};

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
    let ignore = table.list("ignore", |pointer| {
        check_rule(&Options {
            ignore: vec![pointer.to_owned()],
            ..Options::default()
        })?;
        Ok::<_, String>(pointer.to_owned())
    });
    let decimals = table.list("decimals", |pointer| {
        check_rule(&Options {
            decimals: vec![pointer.to_owned()],
            ..Options::default()
        })?;
        Ok::<_, String>(pointer.to_owned())
    });
    let defaults = table
        .table("defaults", "`defaults`")
        .map(|defaults| read_defaults(&defaults))
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
        report_conflict(&error, &spans, span, problems);
    }
    options
}

/// Each rule is valid by itself, so the error is a conflict between two of them.
fn report_conflict(
    error: &Error,
    spans: &[Spanned<String>],
    table: Range<usize>,
    problems: &Problems,
) {
    let named = |span: &&Spanned<String>| {
        // Other errors cannot occur here.
        matches!(error, Error::Overlap { one, other } if [one, other].contains(&span.get_ref()))
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
