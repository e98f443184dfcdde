//! Every metric that the program writes, as its code and `docs/metrics.md` say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_gateway::telemetry;

use crate::{path, text};

/// How the names of all metrics begin.
const PREFIXES: [&str; 2] = ["api_idempotency_", "semel_"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Clone, Debug)]
pub(crate) struct Metric {
    pub(crate) kind: Kind,
    pub(crate) labels: BTreeSet<String>,
}

pub(crate) struct Metrics {
    /// What the program writes.
    pub(crate) written: BTreeMap<String, Metric>,
    /// What rules make of it.
    pub(crate) recorded: BTreeMap<String, BTreeSet<String>>,
    /// Every text in the code, since the value of a label is one.
    pub(crate) literals: BTreeSet<String>,
}

/// One row of a table of the page.
struct Row {
    metric: Metric,
    open_telemetry: String,
    unit: String,
}

impl Metrics {
    /// With the labels of the page, which the other tests compare with the code.
    pub(crate) fn read() -> Self {
        let rows = page().into_iter();
        Self {
            written: rows.map(|(name, row)| (name, row.metric)).collect(),
            recorded: BTreeMap::new(),
            literals: literals(),
        }
    }
}

/// The rows of `docs/metrics.md`.
fn page() -> BTreeMap<String, Row> {
    let text = text("docs/metrics.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let mut page = BTreeMap::new();
    for line in rows {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, open_telemetry, unit, meaning, _worry] = cells[..] else {
            panic!("a row of seven cells: {line}")
        };
        assert!(!meaning.is_empty(), "{line}");
        let kind = match kind {
            "counter" => Kind::Counter,
            "gauge" => Kind::Gauge,
            "histogram" => Kind::Histogram,
            _ => panic!("no type: {line}"),
        };
        let bare = |cell: &str| cell.trim_matches('`').to_owned();
        let labels = labels.split(", ").filter(|label| *label != "–");
        let row = Row {
            metric: Metric {
                kind,
                labels: labels.map(bare).collect(),
            },
            open_telemetry: bare(open_telemetry),
            unit: bare(unit),
        };
        assert!(page.insert(bare(name), row).is_none(), "twice: {line}");
    }
    page
}

/// Every text in the sources of the crates.
fn literals() -> BTreeSet<String> {
    let mut literals = BTreeSet::new();
    let mut places = vec![path("crates")];
    while let Some(place) = places.pop() {
        for entry in std::fs::read_dir(place).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                let name = path.file_name().unwrap();
                if name != "tests" && name != "target" {
                    places.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                literals.extend(literals_of(&path));
            }
        }
    }
    literals
}

fn literals_of(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    // Names and values of labels are on one line, without escapes.
    let lines = text
        .lines()
        .flat_map(|line| line.split('"').skip(1).step_by(2));
    lines.map(str::to_owned).collect()
}

/// The names that are constants somewhere in the code, whether or not anybody described them.
fn in_code() -> BTreeSet<String> {
    let is_metric = |text: &String| {
        let rest = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix));
        let suffixes = ["_total", "_seconds", "_count", "_backlog"];
        let is_name = |rest: &str| rest.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        rest.is_some_and(is_name) && suffixes.iter().any(|suffix| text.ends_with(suffix))
    };
    literals().into_iter().filter(is_metric).collect()
}

/// Writes down what is described to it.
#[derive(Clone, Default)]
struct Described(Arc<Mutex<Descriptions>>);

/// By name.
type Descriptions = BTreeMap<String, (Kind, Option<Unit>)>;

impl Described {
    fn note(&self, name: &KeyName, kind: Kind, unit: Option<Unit>) {
        let mut described = self.0.lock().unwrap();
        described.insert(name.as_str().to_owned(), (kind, unit));
    }
}

impl Recorder for Described {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.note(&name, Kind::Counter, unit);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.note(&name, Kind::Gauge, unit);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.note(&name, Kind::Histogram, unit);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn the_program_describes_and_the_page_explains_every_metric() {
    let recorder = Described::default();
    metrics::with_local_recorder(&recorder, telemetry::describe);
    let described = recorder.0.lock().unwrap().clone();
    let names: BTreeSet<String> = described.keys().cloned().collect();
    let forgotten: Vec<String> = in_code().difference(&names).cloned().collect();
    assert!(
        forgotten.is_empty(),
        "`telemetry` does not describe {forgotten:?}"
    );
    let page = page();
    let explained: BTreeSet<String> = page.keys().cloned().collect();
    assert_eq!(names, explained, "`docs/metrics.md` has what is described");
    for (name, row) in &page {
        let (kind, unit) = described[name];
        assert_eq!(row.metric.kind, kind, "{name}");
        assert_eq!(row.unit == "s", unit == Some(Unit::Seconds), "{name}");
    }
}

/// The rule that the page states.
#[test]
fn the_names_follow_from_those_of_opentelemetry() {
    for (name, row) in page() {
        let mut expected = row.open_telemetry.replace('.', "_");
        if row.unit == "s" {
            expected.push_str("_seconds");
        } else {
            assert!(
                row.unit.starts_with('{') && row.unit.ends_with('}'),
                "{name}"
            );
        }
        if row.metric.kind == Kind::Counter {
            expected.push_str("_total");
        }
        assert_eq!(name, expected);
    }
}
