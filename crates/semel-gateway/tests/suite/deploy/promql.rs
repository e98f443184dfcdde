//! Extracts metrics and labels from `PromQL` expressions. Not a full parser; `promtool` checks the
//! syntax.

use std::collections::BTreeSet;

use crate::deploy::metrics::{Kind, Metrics};

/// Keywords that are neither metrics nor functions.
const KEYWORDS: [&str; 7] = ["and", "or", "unless", "offset", "bool", "inf", "nan"];
/// Keywords followed by a list of labels.
const GROUPINGS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
/// Labels that Prometheus adds to every series.
const TARGET_LABELS: [&str; 2] = ["job", "instance"];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    Text(String),
    Number,
    Sign(char),
}

/// The metrics, labels and variables of an expression.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Each metric with its matchers: label and value.
    pub(crate) metrics: Vec<(String, Vec<(String, String)>)>,
    /// Labels that are grouped by.
    pub(crate) grouped: BTreeSet<String>,
    /// Grafana variables (`$name`).
    pub(crate) variables: BTreeSet<String>,
}

pub(crate) fn uses(expression: &str) -> Uses {
    let mut uses = Uses::default();
    let tokens = tokens(expression, &mut uses.variables);
    let mut rest = tokens.iter().peekable();
    while let Some(token) = rest.next() {
        let word = match token {
            Token::Name(word) => word,
            // A range.
            Token::Sign('[') => {
                rest.by_ref().find(|token| **token == Token::Sign(']'));
                continue;
            }
            Token::Sign('{') => panic!("a selector without a name: {expression}"),
            Token::Text(_) | Token::Number | Token::Sign(_) => continue,
        };
        if GROUPINGS.contains(&&**word) {
            let list = rest
                .by_ref()
                .take_while(|token| **token != Token::Sign(')'));
            uses.grouped.extend(list.filter_map(|token| match token {
                Token::Name(label) => Some(label.clone()),
                Token::Text(_) | Token::Number | Token::Sign(_) => None,
            }));
            continue;
        }
        let is_function = match rest.peek() {
            Some(Token::Sign('(')) => true,
            Some(Token::Name(next)) => GROUPINGS.contains(&&**next),
            Some(Token::Text(_) | Token::Number | Token::Sign(_)) | None => false,
        };
        if is_function || KEYWORDS.contains(&&**word) {
            continue;
        }
        let mut matchers = Vec::new();
        if rest.next_if(|token| **token == Token::Sign('{')).is_some() {
            let mut label = None;
            for token in rest.by_ref() {
                match token {
                    Token::Sign('}') => break,
                    Token::Name(word) => label = Some(word.clone()),
                    Token::Text(value) => matchers.push((label.take().unwrap(), value.clone())),
                    Token::Number | Token::Sign(_) => {}
                }
            }
        }
        uses.metrics.push((word.clone(), matchers));
    }
    uses
}

fn tokens(expression: &str, variables: &mut BTreeSet<String>) -> Vec<Token> {
    let mut rest = expression.chars().peekable();
    let mut tokens = Vec::new();
    let is_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_' || *c == ':';
    while let Some(c) = rest.next() {
        let mut name = String::from(c);
        match c {
            '"' => {
                let text: String = rest.by_ref().take_while(|c| *c != '"').collect();
                assert!(!text.contains('\\'), "no escapes here: {expression}");
                variables.extend(text.strip_prefix('$').map(str::to_owned));
                tokens.push(Token::Text(text));
            }
            '$' => {
                name.clear();
                name.extend(std::iter::from_fn(|| rest.next_if(is_name)));
                variables.insert(name);
                tokens.push(Token::Number);
            }
            '0'..='9' => {
                while rest.next_if(|c| is_name(c) || *c == '.').is_some() {}
                tokens.push(Token::Number);
            }
            'a'..='z' | 'A'..='Z' | '_' => {
                name.extend(std::iter::from_fn(|| rest.next_if(is_name)));
                tokens.push(Token::Name(name));
            }
            c if c.is_whitespace() => {}
            c => tokens.push(Token::Sign(c)),
        }
    }
    tokens
}

/// Panics if a metric is not written by the program, or does not have a label. Returns the labels of
/// the result.
pub(crate) fn check(expression: &str, metrics: &Metrics) -> BTreeSet<String> {
    let uses = uses(expression);
    assert!(!uses.metrics.is_empty(), "no metric in {expression}");
    let mut result = BTreeSet::new();
    for (name, matchers) in &uses.metrics {
        let labels = labels(name, metrics)
            .unwrap_or_else(|| panic!("the program does not write {name:?}: {expression}"));
        let matched = matchers.iter().map(|(label, _)| label);
        for label in uses.grouped.iter().chain(matched) {
            assert!(
                labels.contains(label),
                "{name} has no label {label:?}: {expression}"
            );
        }
        for (label, value) in matchers {
            for value in value.split('|').filter(|value| !value.starts_with('$')) {
                let is_target_label = TARGET_LABELS.contains(&&**label);
                assert!(
                    is_target_label || metrics.literals.contains(value),
                    "no {label} of {name} is {value:?}: {expression}"
                );
            }
        }
        result.extend(labels);
    }
    if uses.grouped.is_empty() {
        result
    } else {
        uses.grouped
    }
}

/// The labels of a scraped series.
fn labels(name: &str, metrics: &Metrics) -> Option<BTreeSet<String>> {
    let target_labels = TARGET_LABELS.map(str::to_owned);
    if name == "up" {
        return Some(BTreeSet::from(target_labels));
    }
    if let Some(recorded) = metrics.recorded.get(name) {
        return Some(recorded.clone());
    }
    let part = |suffix: &str| {
        let metric = metrics.written.get(name.strip_suffix(suffix)?)?;
        (metric.kind == Kind::Histogram).then_some(metric)
    };
    let plain = || {
        let metric = metrics.written.get(name)?;
        // A histogram has no series of its bare name.
        (metric.kind != Kind::Histogram).then_some(metric)
    };
    let metric = part("_bucket")
        .or_else(|| part("_sum"))
        .or_else(|| part("_count"))
        .or_else(plain)?;
    let own = metric.labels.iter().map(|label| {
        // Prometheus renames a label that collides with one of the target.
        if TARGET_LABELS.contains(&&**label) {
            format!("exported_{label}")
        } else {
            label.clone()
        }
    });
    let le = name.ends_with("_bucket").then(|| "le".to_owned());
    Some(own.chain(le).chain(target_labels).collect())
}

#[test]
fn metrics_and_labels_are_found() {
    let found = uses(
        r#"histogram_quantile(0.99, sum by (job, le) (rate(a_bucket{job="$job",x=~"y|z"}[$__rate_interval])))
           > 2 * b:c offset 15m unless max(d) by (e) and absent(up)"#,
    );
    let matchers = |pairs: &[(&str, &str)]| {
        let owned = pairs
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
        owned.collect::<Vec<_>>()
    };
    assert_eq!(
        found.metrics,
        [
            (
                "a_bucket".to_owned(),
                matchers(&[("job", "$job"), ("x", "y|z")])
            ),
            ("b:c".to_owned(), vec![]),
            ("d".to_owned(), vec![]),
            ("up".to_owned(), vec![]),
        ]
    );
    assert_eq!(found.grouped, ["e", "job", "le"].map(str::to_owned).into());
    assert_eq!(
        found.variables,
        ["__rate_interval", "job"].map(str::to_owned).into()
    );
}
