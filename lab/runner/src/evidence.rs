//! Records the results of the verification tools, and writes `docs/evidence.md`, `docs/performance.md` and
//! `docs/scale.md` from them.

mod campaign;
mod cluster;
mod compare;
mod machine;
mod mutants;
mod performance;
mod plot;
mod scale;
mod simulation;
mod text;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use text::{Table, text_of};

/// The directory of the recorded parts.
const PLACE: &str = "target/evidence";
/// The parts, in the order of the report.
const PARTS: [&str; 5] = ["campaign", "cluster", "simulation", "mutants", "compare"];
const REPORT: &str = "docs/evidence.md";
const TIMELINE: &str = "docs/images/evidence-timeline.svg";
const CLUSTER: &str = "docs/images/evidence-cluster.svg";
const THROUGHPUT: &str = "docs/images/evidence-throughput.svg";
/// Pathspecs without the generated pages: a change to them does not make the tree dirty.
const NOT_OURS: [&str; 6] = [
    ".",
    ":(exclude)docs/evidence.md",
    ":(exclude)docs/images/evidence-*.svg",
    ":(exclude)docs/performance.md",
    ":(exclude)docs/scale.md",
    ":(exclude)docs/images/performance-*.svg",
];
/// The length of an abbreviated commit.
const SHORT_COMMIT: usize = 12;
const NOT_TESTED: &str = include_str!("evidence/not_tested.md");

/// The result of `cargo xtask bench`, which has pages of its own.
const BENCH: &str = "bench";
const PERFORMANCE: &str = "docs/performance.md";
const SCALE: &str = "docs/scale.md";

/// Records the result of one part: `campaign`, `cluster`, `simulation`, `mutants`, `compare` or `bench`.
///
/// `began` is the result of [`began`] before the part was run; `content` is the part's result.
pub(crate) fn record(root: &Path, part: &str, began: &Value, content: &Value) -> Result<()> {
    let place = root.join(PLACE);
    fs::create_dir_all(&place)?;
    let whole = json!({ "part": part, "run": began, "content": content });
    let path = place.join(format!("{part}.json"));
    fs::write(&path, serde_json::to_vec_pretty(&whole)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Where and when a part begins: commit, whether the tree was clean, date, machine.
pub(crate) fn began(root: &Path, command: &str) -> Result<Value> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        command_output(git.args(arguments).current_dir(root))
    };
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(NOT_OURS);
    // Also works in a tree without git, such as an archive; the commit is unknown then.
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_else(|_| "unknown".to_owned());
    Ok(json!({
        "command": command,
        "commit": commit,
        "clean": git(&status).is_ok_and(|changes| changes.is_empty()),
        "date": command_output(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))?,
        "machine": machine::read_machine(),
    }))
}

/// Writes `docs/evidence.md` and its plots from the recorded parts.
pub(crate) fn report(root: &Path) -> Result<()> {
    let mut parts = Vec::new();
    for name in PARTS {
        parts.push((name, recorded(root, name)?));
    }
    let bench = recorded(root, BENCH)?;
    let evidence = Evidence { parts };
    let has_evidence = evidence.runs().next().is_some();
    if !has_evidence && bench.is_null() {
        bail!(
            "nothing is recorded: run `cargo xtask campaign`, `mutants`, `compare` or `bench` first"
        );
    }
    let hidden = machine::places(root);
    let write = |path: &str, content: String| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(&path, machine::without(&content, &hidden))
            .with_context(|| format!("cannot write {}", path.display()))
    };
    if let (Some(run), Some(content)) = (bench.get("run"), bench.get("content")) {
        write(PERFORMANCE, performance::page(run, content))?;
        write(SCALE, scale::page(run, content)?)?;
        for store in performance::STORES {
            if let Some(svg) = performance::curves(content, store) {
                let path = format!("docs/images/performance-{}.svg", store.to_lowercase());
                write(&path, svg)?;
            }
        }
        println!("{PERFORMANCE}, {SCALE}: written");
    }
    if !has_evidence {
        return Ok(());
    }
    if let Some(campaign) = evidence.content("campaign") {
        write(TIMELINE, plot::timeline(campaign))?;
    }
    if let Some(cluster) = evidence.content("cluster") {
        write(CLUSTER, plot::timeline(cluster))?;
    }
    if let Some(compare) = evidence.content("compare") {
        write(THROUGHPUT, plot::throughput(compare))?;
    }
    write(REPORT, evidence.page())?;
    for warning in evidence.warnings() {
        println!("WARNING: {warning}");
    }
    println!("{REPORT}: written");
    Ok(())
}

/// The recorded part; null if it was not run.
fn recorded(root: &Path, part: &str) -> Result<Value> {
    let path = root.join(PLACE).join(format!("{part}.json"));
    if !path.exists() {
        return Ok(Value::Null);
    }
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("cannot read {}", path.display()))
}

/// All parts, each null where it was not run.
struct Evidence {
    parts: Vec<(&'static str, Value)>,
}

impl Evidence {
    fn content(&self, part: &str) -> Option<&Value> {
        let (_, whole) = self.parts.iter().find(|(name, _)| *name == part)?;
        whole.get("content")
    }

    fn runs(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.parts
            .iter()
            .filter_map(|(name, whole)| Some((*name, whole.get("run")?)))
    }

    fn page(&self) -> String {
        let mut page = "<!-- Generated by `cargo xtask evidence` of the last runs. Do not edit: \
                        run it again. -->\n# Evidence\n\n"
            .to_owned();
        for warning in self.warnings() {
            // Writing to a String cannot fail.
            let _ = write!(page, "> **WARNING: {warning}**\n\n");
        }
        page.push_str(
            "This page is generated from the results of the verification tools. Each part names the \
             command, the commit and the machine. The last section lists what was not tested.\n\n## What was run\n\n",
        );
        page.push_str(&self.what_was_run());
        let sections: [fn(&Value) -> String; 5] = [
            campaign::section,
            cluster::section,
            simulation::section,
            mutants::section,
            compare::section,
        ];
        for (part, section) in PARTS.into_iter().zip(sections) {
            if let Some(content) = self.content(part) {
                page.push_str(&section(content));
            }
        }
        page.push_str("## What was not tested\n\n");
        page.push_str(NOT_TESTED);
        for part in ["campaign", "cluster"] {
            if let Some(skipped) = self.content(part).map(campaign::skipped) {
                page.push_str(&skipped);
            }
        }
        page.trim_end().to_owned() + "\n"
    }

    fn what_was_run(&self) -> String {
        let mut table = Table::new(&["part", "command", "date", "commit", "tree"]);
        for (part, run) in self.runs() {
            let clean = if run["clean"] == true {
                "clean"
            } else {
                "**CHANGED**"
            };
            let command = format!("`{}`", text_of(&run["command"]));
            let commit = format!("`{}`", short(text_of(&run["commit"])));
            table.row([part, &command, text_of(&run["date"]), &commit, clean]);
        }
        let machines: BTreeSet<String> = self
            .runs()
            .map(|(_, run)| machine::describe_machine(run))
            .collect();
        let several = machines.len() > 1;
        let mut text = table.done();
        for machine in machines {
            let what = if several { "A machine" } else { "The machine" };
            let _ = write!(text, "{what}: {machine}.\n\n");
        }
        text
    }

    /// The warnings at the top of the report.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (part, whole) in &self.parts {
            if whole.is_null() {
                warnings.push(format!("the part `{part}` was not run."));
            }
        }
        let commits: BTreeSet<&str> = self
            .runs()
            .map(|(_, run)| text_of(&run["commit"]))
            .collect();
        if commits.len() > 1 {
            let commits: Vec<&str> = commits.into_iter().map(short).collect();
            warnings.push(format!(
                "the parts are of different commits: {}.",
                commits.join(", ")
            ));
        }
        for (part, run) in self.runs() {
            if run["clean"] != true {
                warnings.push(format!(
                    "the part `{part}` was run on a tree with changes that are in no commit."
                ));
            }
        }
        for part in PARTS {
            let Some(content) = self.content(part) else {
                continue;
            };
            if content.get("passed").is_some_and(|passed| passed != true) {
                warnings.push(format!("the part `{part}` did NOT pass."));
            }
            if content["short"] == true {
                warnings.push(format!("the part `{part}` is of a short run."));
            }
        }
        warnings
    }
}

fn short(commit: &str) -> &str {
    commit.get(..SHORT_COMMIT).unwrap_or(commit)
}

fn command_output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed: {}", errors.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(commit: &str, clean: bool) -> Value {
        json!({
            "command": "cargo xtask campaign", "commit": commit, "clean": clean,
            "date": "2026-11-16 18:00 UTC",
            "machine": { "cpu": "A CPU", "cores": 2, "memory_gib": 8, "kernel": "Linux 6.1",
                "rustc": "rustc 1.95.0" },
        })
    }

    fn made_up() -> Value {
        json!({
            "campaign": {
                "seed": 7, "short": false, "passed": true,
                "totals": { "operations": 123_456, "calls": 234_567, "ok": 150_000, "failed": 5,
                    "indeterminate": 6, "kills": 512, "stops": 20, "ambiguous_commits": 1_024 },
                "violations": { "duplicate_effects": 0, "stuck_keys": 0 },
                "requirements": [
                    { "name": "kills", "at_least": 500, "seen": 512, "met": true } ],
                "phases": [
                    { "name": "steady", "seconds": 2, "operations": 1, "calls": 2, "ok": 2,
                        "failed": 0, "indeterminate": 0, "faults": {} },
                    { "name": "kills", "seconds": 1, "operations": 1, "calls": 2, "ok": 2,
                        "failed": 0, "indeterminate": 0, "faults": { "kill": 512 } } ],
                "faults": { "kill": 512 },
                "timeline": [
                    { "second": 0, "ok": 10, "failed": 0, "indeterminate": 0, "phase": "steady" },
                    { "second": 1, "ok": 20, "failed": 1, "indeterminate": 0, "phase": "steady" },
                    { "second": 2, "ok": 5, "failed": 0, "indeterminate": 3, "phase": "kills" } ],
                "skipped": [ { "phase": "disk_full", "reason": "only root may mount" } ],
                "decisions": { "completed": 3 },
                "ledger": { "charges": 100, "declined": 2, "refunds": 0 },
            },
            "cluster": {
                "seed": 9, "short": false, "passed": true,
                "totals": { "operations": 200_001, "calls": 300_000, "ok": 250_000, "failed": 5,
                    "indeterminate": 6, "executions": 200_002 },
                "violations": { "lost_acknowledgements": 0 },
                "requirements": [
                    { "name": "cluster_kill", "at_least": 10, "seen": 10, "met": true } ],
                "phases": [], "timeline": [], "skipped": [], "pause_limit_ms": 25_000,
                "pauses": [
                    { "fault": "Freeze(30000)", "worst_gateway_ms": 21_000 },
                    { "fault": "Freeze(31000)", "worst_gateway_ms": 23_456 } ],
            },
            "simulation": {
                "first_seed": 0, "seeds": 20_000, "steps": 1_234_567, "faults": { "late": 9 },
                "outcomes": { "replayed": 8 }, "violations": { "twice": 0 },
                "replayed_twice": 200, "seconds": 61.5, "failing": [], "passed": true,
            },
            "mutants": {
                "mutants": [
                    { "name": "fence", "guard": "the fence | on complete", "why": "a late owner",
                        "file": "a.rs", "caught": true, "by": ["late_owner"], "said": "left: 1\nright: 2",
                        "seconds": 1.5 } ],
                "passed": true,
            },
            "compare": { "subjects": [
                { "name": "semel-layer", "version": "0.1.0", "language": "Rust",
                    "store": "PostgreSQL", "ours": true, "ran": true, "reason": "",
                    "new": { "per_second": 2_000.0, "p50_ms": 1.0, "p99_ms": 3.0 },
                    "replay": { "per_second": 8_000.0, "p50_ms": 0.5, "p99_ms": 1.0 },
                    "probes": [ { "id": "replay", "verdict": "pass", "seen": "1" } ] },
                { "name": "a-peer", "version": "1.0", "language": "Rust",
                    "store": "PostgreSQL", "ours": false, "ran": true, "reason": "",
                    "new": { "per_second": 1_000.0, "p50_ms": 2.0, "p99_ms": 4.0 },
                    "replay": { "per_second": 12_000.0, "p50_ms": 0.5, "p99_ms": 1.0 },
                    "probes": [ { "id": "replay", "verdict": "fail", "seen": "two effects" } ] },
                { "name": "absent", "version": "2.0", "language": "Go", "store": "Redis",
                    "ours": false, "ran": false, "reason": "no compiler", "new": null,
                    "replay": null, "probes": [] } ] },
        })
    }

    fn evidence(contents: &Value) -> Evidence {
        let parts = PARTS.map(|part| match contents.get(part) {
            None => (part, Value::Null),
            Some(content) => (
                part,
                json!({ "run": run("abcdef0123456789", true), "content": content }),
            ),
        });
        Evidence {
            parts: parts.into(),
        }
    }

    #[test]
    fn a_good_run_has_no_warning_and_says_all() {
        let evidence = evidence(&made_up());
        assert_eq!(evidence.warnings(), [""; 0]);
        let page = evidence.page();
        assert!(page.starts_with("<!-- Generated by `cargo xtask evidence`"));
        for expected in [
            "`abcdef012345`",
            "2026-11-16 18:00 UTC",
            "A CPU, 2 cores, 8 GiB",
            "--seed 7",
            "200,001",
            "| Freeze | 2 | 23,456 | 23,456 |",
            "images/evidence-cluster.svg",
            "123,456",
            "| 500 | 512 |",
            "20,000",
            "the fence \\| on complete",
            "left: 1 right: 2",
            "late_owner",
            "×0.50",
            "×1.50",
            "no compiler",
            "disk_full",
            "only root may mount",
            "images/evidence-timeline.svg",
            "images/evidence-throughput.svg",
        ] {
            assert!(page.contains(expected), "{expected}\n{page}");
        }
        assert!(!page.contains("WARNING"));
    }

    #[test]
    fn a_row_has_as_many_cells_as_its_head() {
        let page = evidence(&made_up()).page();
        let mut columns = None;
        for line in page.lines() {
            let cells = line.replace("\\|", "").matches('|').count();
            columns = line.starts_with('|').then(|| {
                assert!(columns.is_none_or(|columns| columns == cells), "{line}");
                cells
            });
        }
    }

    #[test]
    fn warnings_come_first() {
        let mut contents = made_up();
        contents["campaign"]["passed"] = false.into();
        contents["campaign"]["short"] = true.into();
        contents.as_object_mut().unwrap().remove("mutants");
        let mut evidence = evidence(&contents);
        evidence.parts[2].1["run"] = run("1234567890abcdef", false);
        let warnings = evidence.warnings().join("\n");
        for expected in [
            "`mutants` was not run",
            "different commits: 1234567890ab, abcdef012345",
            "`simulation` was run on a tree with changes",
            "`campaign` did NOT pass",
            "`campaign` is of a short run",
        ] {
            assert!(warnings.contains(expected), "{expected}\n{warnings}");
        }
        let page = evidence.page();
        let first = page.find("WARNING").unwrap();
        assert!(first < page.find("## What was run").unwrap());
    }

    #[test]
    fn a_broken_rule_is_loud() {
        let mut contents = made_up();
        contents["campaign"]["violations"]["stuck_keys"] = 3.into();
        contents["campaign"]["examples"] = json!({ "stuck_keys": [{ "op": 5, "what": "no end" }] });
        contents["mutants"]["mutants"][0]["caught"] = false.into();
        let page = evidence(&contents).page();
        assert!(page.contains("| **3** |"), "{page}");
        assert!(page.contains("no end"));
        assert!(page.contains("**SURVIVED**"));
    }

    #[test]
    fn parts_that_say_little_make_a_page_all_the_same() {
        let empty = json!({ "campaign": {}, "cluster": {}, "simulation": {}, "mutants": {}, "compare": {} });
        let page = evidence(&empty).page();
        assert!(page.contains("## What was not tested"));
        assert!(plot::timeline(&empty["campaign"]).contains("</svg>"));
        assert!(plot::throughput(&empty["compare"]).contains("</svg>"));
    }

    #[test]
    fn what_is_recorded_becomes_files_without_this_machine_s_places() {
        let root = tempfile::tempdir().unwrap();
        assert!(report(root.path()).is_err());
        let mut contents = made_up();
        let place = root.path().display().to_string();
        contents["compare"]["subjects"][2]["reason"] = format!("no {place}/target/peers/a").into();
        for part in PARTS {
            record(root.path(), part, &run("abc", true), &contents[part]).unwrap();
        }
        report(root.path()).unwrap();
        let read = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
        let page = read(REPORT);
        assert!(page.contains("no ./target/peers/a"), "{page}");
        for path in [REPORT, TIMELINE, CLUSTER, THROUGHPUT] {
            assert!(!read(path).contains(&place));
        }
    }

    #[test]
    fn a_run_says_where_it_was() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let began = began(root, "cargo xtask campaign").unwrap();
        // A release is tested without its history, too.
        let commit = text_of(&began["commit"]);
        assert!(commit.len() == 40 || commit == "unknown", "{commit}");
        assert!(machine::describe_machine(&began).contains("rustc"));
    }
}
