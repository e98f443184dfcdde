//! `deploy/prometheus/semel.rules.yml`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use crate::deploy::dashboard::braced;
use crate::deploy::metrics::Metrics;
use crate::deploy::{path, promql, text};

const FILE: &str = "deploy/prometheus/semel.rules.yml";
/// Where the pages of `docs/` are on the web, without their `.md`.
const PAGES: &str = "https://docs.example/semel/";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[serde(rename = "name")]
    _name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    record: Option<String>,
    alert: Option<String>,
    expr: String,
    #[serde(rename = "for")]
    _for: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

fn rules() -> Vec<Rule> {
    let file: File = serde_saphyr::from_str(&text(FILE)).unwrap();
    file.groups
        .into_iter()
        .flat_map(|group| group.rules)
        .collect()
}

#[test]
fn the_rules_query_existing_metrics_and_labels() {
    let mut metrics = Metrics::read();
    for rule in rules() {
        let labels = promql::check(&rule.expr, &metrics);
        if let Some(name) = rule.record {
            assert!(name.starts_with("semel:"), "{name}");
            metrics.recorded.insert(name, labels);
            continue;
        }
        for text in rule.annotations.values() {
            for label in braced(text).filter_map(|inside| inside.strip_prefix("$labels.")) {
                assert!(labels.contains(label), "{:?}: {text}", rule.alert);
            }
        }
    }
}

#[test]
fn every_alert_has_a_severity_and_a_runbook() {
    let page = text("docs/deploy.md");
    let mut names = BTreeSet::new();
    for rule in rules() {
        let Some(name) = rule.alert else { continue };
        assert!(
            page.contains(&format!("`{name}`")),
            "docs/deploy.md: {name}"
        );
        let severity = &*rule.labels["severity"];
        assert!(
            ["critical", "page", "warning"].contains(&severity),
            "{name}"
        );
        for annotation in ["summary", "description"] {
            assert!(!rule.annotations[annotation].is_empty(), "{name}");
        }
        check_link(&rule.annotations["runbook_url"]);
        assert!(names.insert(name), "duplicate name");
    }
}

/// Panics if the link does not lead to a page in `docs/` and a heading of it.
fn check_link(url: &str) {
    let rest = url.strip_prefix(PAGES).unwrap_or_else(|| panic!("{url}"));
    let (page, anchor) = rest.split_once('#').unwrap_or((rest, ""));
    let page = text(&format!("docs/{page}.md"));
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let mut anchors = headings.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    });
    assert!(
        anchor.is_empty() || anchors.any(|found| found == anchor),
        "{url}"
    );
}

/// The path of `promtool`, if it is installed.
pub(crate) fn promtool() -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&search)
        .map(|directory| directory.join("promtool"))
        .find(|program: &PathBuf| program.is_file());
    if found.is_none() {
        println!("SKIPPED: promtool is not installed (Debian has it in `prometheus`)");
    }
    found
}

/// `promtool` checks the syntax and runs the unit tests of the alerts.
#[test]
fn promtool_accepts_the_rules() {
    let Some(promtool) = promtool() else { return };
    for (verb, file) in [
        ("check", FILE),
        ("test", "deploy/prometheus/semel.rules.test.yml"),
    ] {
        let output = Command::new(&promtool)
            .args([verb, "rules"])
            .arg(path(file))
            .output();
        let output = output.unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{stdout}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
