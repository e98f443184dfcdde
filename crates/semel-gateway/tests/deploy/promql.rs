//! Which metrics and labels an expression uses. No whole grammar: `promtool` has that.

use std::collections::BTreeSet;

use crate::metrics::{Kind, Metrics};

/// Words that are neither metrics nor functions.
const WORDS: [&str; 7] = ["and", "or", "unless", "offset", "bool", "inf", "nan"];
/// Words that a list of labels follows.
const GROUPINGS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
/// What every series has of the one who scrapes it.
const OF_TARGETS: [&str; 2] = ["job", "instance"];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Number,
    Sign(char),
}

/// What an expression uses.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Each metric with its matchers: label and value.
    pub(crate) metrics: Vec<(String, Vec<(String, String)>)>,
    /// Labels that are grouped by.
    pub(crate) grouped: BTreeSet<String>,
    /// `$name`, as Grafana has it.
    pub(crate) variables: BTreeSet<String>,
}

pub(crate) fn uses(expression: &str) -> Uses {
    let mut uses = Uses::default();
    let tokens = tokens(expression, &mut uses.variables);
    let mut rest = tokens.iter().peekable();
    while let Some(token) = rest.next() {
        let word = match token {
            Token::Word(word) => word,
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
                Token::Word(label) => Some(label.clone()),
                Token::Text(_) | Token::Number | Token::Sign(_) => None,
            }));
            continue;
        }
        let is_function = match rest.peek() {
            Some(Token::Sign('(')) => true,
            Some(Token::Word(next)) => GROUPINGS.contains(&&**next),
            Some(Token::Text(_) | Token::Number | Token::Sign(_)) | None => false,
        };
        if is_function || WORDS.contains(&&**word) {
            continue;
        }
        let mut matchers = Vec::new();
        if rest.next_if(|token| **token == Token::Sign('{')).is_some() {
            let mut label = None;
            for token in rest.by_ref() {
                match token {
                    Token::Sign('}') => break,
                    Token::Word(word) => label = Some(word.clone()),
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
                tokens.push(Token::Word(name));
            }
            c if c.is_whitespace() => {}
            c => tokens.push(Token::Sign(c)),
        }
    }
    tokens
}

/// Panics over a metric that nobody writes, or a label that it has not. Returns the labels that a
/// result may have.
pub(crate) fn check(expression: &str, metrics: &Metrics) -> BTreeSet<String> {
    let uses = uses(expression);
    assert!(!uses.metrics.is_empty(), "no metric in {expression}");
    let mut shown = BTreeSet::new();
    for (name, matchers) in &uses.metrics {
        let labels =
            labels(name, metrics).unwrap_or_else(|| panic!("nobody writes {name:?}: {expression}"));
        let matched = matchers.iter().map(|(label, _)| label);
        for label in uses.grouped.iter().chain(matched) {
            assert!(
                labels.contains(label),
                "{name} has no label {label:?}: {expression}"
            );
        }
        for (label, value) in matchers {
            for value in value.split('|').filter(|value| !value.starts_with('$')) {
                let of_target = OF_TARGETS.contains(&&**label);
                assert!(
                    of_target || metrics.literals.contains(value),
                    "no {label} of {name} is {value:?}: {expression}"
                );
            }
        }
        shown.extend(labels);
    }
    if uses.grouped.is_empty() {
        shown
    } else {
        uses.grouped
    }
}

/// The labels that a series of this name has once it is scraped.
fn labels(name: &str, metrics: &Metrics) -> Option<BTreeSet<String>> {
    let of_targets = OF_TARGETS.map(str::to_owned);
    if name == "up" {
        return Some(BTreeSet::from(of_targets));
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
        // A histogram has no series of its own name.
        (metric.kind != Kind::Histogram).then_some(metric)
    };
    let metric = part("_bucket")
        .or_else(|| part("_sum"))
        .or_else(|| part("_count"))
        .or_else(plain)?;
    let own = metric.labels.iter().map(|label| {
        // What is called as one of the target's is renamed by whoever scrapes it.
        if OF_TARGETS.contains(&&**label) {
            format!("exported_{label}")
        } else {
            label.clone()
        }
    });
    let le = name.ends_with("_bucket").then(|| "le".to_owned());
    Some(own.chain(le).chain(of_targets).collect())
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
