//! What a run has to have seen to count, and how it is told.

use std::fmt::Write as _;
use std::path::Path;

use semel_campaign_checker::Report;
use serde_json::{Value, json};

use crate::plan::Phase;

/// At least so many, in the long run and in the short one, of a fault, or of what the checker
/// counts. A quiet run proves nothing. What depends on how fast the machine is asks little of the
/// short one, which every build runs.
const REQUIRED: [(&str, u64, u64); 36] = [
    ("operations", 100_000, 2_000),
    ("ok", 100_000, 2_000),
    ("replayed", 100_000, 1_000),
    ("executions", 100_000, 2_000),
    ("kills", 500, 25),
    ("stops", 15, 1),
    ("crash_postgres", 4, 1),
    ("terminate_backend", 60, 10),
    ("ambiguous_commits", 1_000, 30),
    ("cut_after_reserve", 50, 5),
    ("cut_after_verdict", 20, 1),
    ("hold", 20, 2),
    ("slow_store", 8, 1),
    ("freeze_store", 4, 1),
    ("fill_disk", 4, 1),
    ("move_clock", 15, 3),
    ("duplicates", 2_000, 50),
    ("hammer", 200, 5),
    ("misuse", 1_000, 30),
    ("misuse_of_unknown", 100, 1),
    ("disconnect", 400, 20),
    ("hang_up", 200, 10),
    ("slow_sender", 200, 10),
    ("no_key", 100, 2),
    ("malformed_key", 100, 2),
    ("short_key", 100, 2),
    ("two_keys", 100, 2),
    ("malformed_json", 100, 2),
    ("malformed_framing", 100, 2),
    ("oversized_body", 100, 2),
    ("reset_mid_response", 80, 1),
    ("reset_before_response", 80, 1),
    ("answer_instead", 80, 1),
    ("refuse_upstream", 20, 1),
    ("flush_redis", 10, 1),
    ("kill_redis", 3, 1),
];
/// What only one phase can make.
const ONLY_IN: [(&str, &str); 2] = [("fill_disk", "disk_full"), ("move_clock", "clocks")];

/// Asks for what a whole run must have seen. A run of some phases only is asked for nothing, and
/// for what this machine cannot break nobody is asked either: it is said that it was skipped.
pub(crate) fn require(report: &mut Report, short: bool, skipped: &[Skipped]) {
    for (name, long, brief) in REQUIRED {
        let only_in = ONLY_IN.iter().find(|(what, _)| *what == name);
        let cannot =
            only_in.is_some_and(|(_, phase)| skipped.iter().any(|one| one.phase == *phase));
        if !cannot {
            report.require(name, if short { brief } else { long });
        }
    }
}

/// What could not be broken on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Skipped {
    pub(crate) phase: &'static str,
    pub(crate) reason: String,
}

/// The part of the evidence.
pub(crate) fn whole(
    report: &Report,
    schedule: Vec<Value>,
    skipped: &[Skipped],
    allow_skips: bool,
) -> serde_json::Result<Value> {
    let mut whole = serde_json::to_value(report)?;
    whole["schedule"] = Value::from(schedule);
    whole["skipped"] = skipped
        .iter()
        .map(|skipped| json!({ "phase": skipped.phase, "reason": skipped.reason }))
        .collect();
    whole["passed"] = (report.passed && (allow_skips || skipped.is_empty())).into();
    Ok(whole)
}

/// For a person, before it begins. Every single fault is in the file.
pub(crate) fn announce(seed: u64, phases: &[Phase], schedule: &Path) -> String {
    let mut text = format!("seed {seed}, schedule in {}\n", schedule.display());
    let mut begin = 0;
    for phase in phases {
        let (name, count) = (phase.name, phase.actions.len());
        let seconds = phase.ms / 1_000;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:>4} s  {name:<20} {seconds:>3} s, {count} planned faults",
            begin / 1_000
        );
        begin += phase.ms;
    }
    let _ = writeln!(text, "{:>4} s  heal, decide, replay, check", begin / 1_000);
    text
}

/// For a person, at the end.
pub(crate) fn summary(whole: &Value) -> String {
    let mut text = String::new();
    for phase in whole["phases"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "{:<20} {:>4} s {:>7} operations {:>7} calls {:>7} ok {:>6} failed {:>6} indeterminate  {}",
            phase["name"].as_str().unwrap_or_default(),
            phase["seconds"],
            phase["operations"],
            phase["calls"],
            phase["ok"],
            phase["failed"],
            phase["indeterminate"],
            phase["faults"],
        );
    }
    for name in [
        "totals",
        "decisions",
        "ledger",
        "violations",
        "examples",
        "skipped",
    ] {
        let _ = writeln!(text, "{name}: {}", whole[name]);
    }
    let requirements = whole["requirements"].as_array().into_iter().flatten();
    for unmet in requirements.filter(|one| one["met"] == false) {
        let _ = writeln!(text, "NOT MET: {unmet}");
    }
    let _ = writeln!(text, "passed: {}", whole["passed"]);
    text
}
