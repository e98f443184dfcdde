//! The metrics that the code writes and `docs/metrics.md` documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_gateway::telemetry;

use crate::deploy::{path, text};

/// The prefixes of all metric names.
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
    /// Metrics that the program writes.
    pub(crate) written: BTreeMap<String, Metric>,
    /// Series that recording rules create.
    pub(crate) recorded: BTreeMap<String, BTreeSet<String>>,
    /// Every string literal in the code; label values are among them.
    pub(crate) literals: BTreeSet<String>,
}

/// A table row of `docs/metrics.md`.
struct Row {
    metric: Metric,
    open_telemetry: String,
    unit: String,
}

impl Metrics {
    /// Reads the labels from `docs/metrics.md`; other tests compare the page with the code.
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

/// Every string literal in the sources of the crates.
fn literals() -> BTreeSet<String> {
    let mut literals = BTreeSet::new();
    let mut directories = vec![path("crates")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                let name = path.file_name().unwrap();
                if name != "tests" && name != "target" {
                    directories.push(path);
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
    // Label names and values are on one line and have no escapes.
    let lines = text
        .lines()
        .flat_map(|line| line.split('"').skip(1).step_by(2));
    lines.map(str::to_owned).collect()
}

/// The metric names in the code, described or not.
fn names_in_code() -> BTreeSet<String> {
    let is_metric = |text: &String| {
        let rest = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix));
        let suffixes = [
            "_total",
            "_seconds",
            "_count",
            "_backlog",
            "_waiting",
            "_unreconciled",
        ];
        let is_name = |rest: &str| rest.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        rest.is_some_and(is_name) && suffixes.iter().any(|suffix| text.ends_with(suffix))
    };
    literals().into_iter().filter(is_metric).collect()
}

/// A recorder that collects descriptions.
#[derive(Clone, Default)]
struct DescriptionRecorder(Arc<Mutex<Descriptions>>);

/// Kind and unit by name.
type Descriptions = BTreeMap<String, (Kind, Option<Unit>)>;

impl DescriptionRecorder {
    fn record(&self, name: &KeyName, kind: Kind, unit: Option<Unit>) {
        let mut described = self.0.lock().unwrap();
        described.insert(name.as_str().to_owned(), (kind, unit));
    }
}

impl Recorder for DescriptionRecorder {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.record(&name, Kind::Counter, unit);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.record(&name, Kind::Gauge, unit);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.record(&name, Kind::Histogram, unit);
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
fn every_metric_is_described_and_documented() {
    let recorder = DescriptionRecorder::default();
    metrics::with_local_recorder(&recorder, telemetry::describe);
    let described = recorder.0.lock().unwrap().clone();
    let names: BTreeSet<String> = described.keys().cloned().collect();
    let missing: Vec<String> = names_in_code().difference(&names).cloned().collect();
    assert!(
        missing.is_empty(),
        "`telemetry` does not describe {missing:?}"
    );
    let page = page();
    let documented: BTreeSet<String> = page.keys().cloned().collect();
    assert_eq!(
        names, documented,
        "`docs/metrics.md` lists all described metrics"
    );
    for (name, row) in &page {
        let (kind, unit) = described[name];
        assert_eq!(row.metric.kind, kind, "{name}");
        assert_eq!(row.unit == "s", unit == Some(Unit::Seconds), "{name}");
    }
}

/// The naming rule in `docs/metrics.md`.
#[test]
fn prometheus_names_derive_from_the_opentelemetry_names() {
    for (name, row) in page() {
        let mut expected = row.open_telemetry.replace('.', "_");
        match row.unit.as_str() {
            "s" => expected.push_str("_seconds"),
            "By" => expected.push_str("_bytes"),
            unit => assert!(unit.starts_with('{') && unit.ends_with('}'), "{name}"),
        }
        if row.metric.kind == Kind::Counter {
            expected.push_str("_total");
        }
        assert_eq!(name, expected);
    }
}
