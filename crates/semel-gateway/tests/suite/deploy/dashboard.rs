//! `deploy/grafana/semel.json`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::deploy::metrics::{Kind, Metrics};
use crate::deploy::{promql, text};

/// Variables that Grafana defines.
const BUILT_IN_VARIABLES: [&str; 2] = ["__rate_interval", "__range"];

fn dashboard() -> Value {
    serde_json::from_str(&text("deploy/grafana/semel.json")).unwrap()
}

/// Panels that are not rows.
fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    let all = dashboard["panels"].as_array().unwrap();
    all.iter().filter(|panel| panel["type"] != "row")
}

fn texts<'a>(values: &'a Value, member: &'a str) -> impl Iterator<Item = &'a str> {
    let values = values.as_array().unwrap().iter();
    values.map(move |value| value[member].as_str().unwrap())
}

/// The names in `{{…}}`.
pub(crate) fn braced(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split("{{").skip(1);
    parts.map(|part| part.split("}}").next().unwrap().trim())
}

#[test]
fn the_dashboard_queries_existing_metrics_and_labels() {
    let (metrics, dashboard) = (Metrics::read(), dashboard());
    let variables: BTreeSet<&str> = texts(&dashboard["templating"]["list"], "name")
        .chain(BUILT_IN_VARIABLES)
        .collect();
    for panel in panels(&dashboard) {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let labels = promql::check(expression, &metrics);
            for label in braced(target["legendFormat"].as_str().unwrap()) {
                assert!(labels.contains(label), "{label:?} of {expression}");
            }
            for variable in promql::uses(expression).variables {
                assert!(variables.contains(&*variable), "${variable}: {expression}");
            }
            assert_eq!(target["datasource"]["uid"], "${DS_PROMETHEUS}");
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let Some(query) = variable["definition"].as_str() else {
            assert_eq!(variable["type"], "datasource");
            continue;
        };
        let inside = query.strip_prefix("label_values(").unwrap();
        let (series, label) = inside.strip_suffix(')').unwrap().rsplit_once(", ").unwrap();
        assert!(promql::check(series, &metrics).contains(label), "{query}");
    }
}

#[test]
fn the_dashboard_shows_every_metric() {
    let dashboard = dashboard();
    let queried: BTreeSet<String> = panels(&dashboard)
        .flat_map(|panel| texts(&panel["targets"], "expr"))
        .flat_map(|expression| promql::uses(expression).metrics)
        .map(|(name, _)| name)
        .collect();
    for (name, metric) in Metrics::read().written {
        let name = match metric.kind {
            Kind::Histogram => format!("{name}_bucket"),
            Kind::Counter | Kind::Gauge => name,
        };
        assert!(queried.contains(&name), "no panel shows {name}");
    }
}

#[test]
fn panels_do_not_overlap() {
    let dashboard = dashboard();
    let all = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = all
        .iter()
        .map(|panel| panel["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids.len(), all.len(), "duplicate id");
    let mut taken = BTreeSet::new();
    for panel in all {
        let side = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        assert!(side("x") + side("w") <= 24, "{}", panel["title"]);
        for x in side("x")..side("x") + side("w") {
            for y in side("y")..side("y") + side("h") {
                assert!(
                    taken.insert((x, y)),
                    "{} overlaps another panel",
                    panel["title"]
                );
            }
        }
    }
}
