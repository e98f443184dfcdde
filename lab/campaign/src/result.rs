//! The requirements on a run, and its summary.

use std::fmt::Write as _;
use std::path::Path;

use semel_campaign_checker::Report;
use serde_json::{Value, json};

use crate::cluster::{LONGEST_PAUSE, Pause};
use crate::plan::{Mode, Phase};

/// The minimum number of each fault, or of what the checker counts, in the long run and in the short
/// one. A run with too few faults proves nothing. Numbers that depend on the speed of the machine are
/// low for the short run.
const REQUIRED: [(&str, u64, u64); 52] = [
    ("operations", 100_000, 2_000),
    ("ok", 100_000, 2_000),
    ("replayed", 100_000, 1_000),
    ("executions", 100_000, 2_000),
    ("ok_over_tls", 50_000, 1_000),
    ("ok_over_http2", 25_000, 500),
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
    ("reset_stream", 50, 2),
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
    ("fail_over_redis", 6, 1),
    ("erasures", 200, 5),
    ("messages", 2_000, 100),
    ("redelivered", 100, 3),
    ("roll_back", 100, 5),
    ("kill_broker", 8, 1),
    ("kill_consumer", 8, 1),
    ("attack", 1, 1),
    ("other_spelling", 200, 5),
    ("other_host", 100, 2),
    ("deploy", 25, 2),
    ("roll_out", 70, 5),
    ("refused_deploy", 10, 1),
];
/// The same for a cluster.
const REQUIRED_OF_CLUSTER: [(&str, u64, u64); 11] = [
    ("operations", 200_000, 500),
    ("ok", 200_000, 500),
    ("executions", 200_000, 500),
    ("replayed", 200_000, 500),
    ("cluster_switch_over", 10, 1),
    ("cluster_kill", 10, 1),
    ("cluster_freeze", 10, 0),
    ("cluster_partition", 10, 0),
    ("cluster_lose_standby", 4, 0),
    ("cluster_fill_disk", 3, 0),
    ("cluster_move_clock", 4, 0),
];
/// The same for DynamoDB.
const REQUIRED_OF_DYNAMODB: [(&str, u64, u64); 7] = [
    ("operations", 100_000, 500),
    ("ok", 100_000, 500),
    ("executions", 100_000, 500),
    ("replayed", 50_000, 200),
    ("kills", 150, 10),
    ("crash_dynamodb", 10, 1),
    ("dynamodb_write", 1_000, 50),
];
/// Faults that only one phase injects.
const ONLY_IN: [(&str, &str); 8] = [
    ("messages", "brokers"),
    ("redelivered", "brokers"),
    ("roll_back", "brokers"),
    ("kill_broker", "brokers"),
    ("kill_consumer", "brokers"),
    ("fill_disk", "disk_full"),
    ("move_clock", "clocks"),
    ("cluster_move_clock", "cluster_clocks"),
];

/// Adds the requirements of a full run. A run of some phases only has none, and faults that this
/// machine cannot inject are not required but reported as skipped.
pub(crate) fn require(report: &mut Report, mode: Mode, short: bool, skipped: &[Skipped]) {
    let required: &[_] = match mode {
        Mode::Server => &REQUIRED,
        Mode::Cluster => &REQUIRED_OF_CLUSTER,
        Mode::Dynamodb => &REQUIRED_OF_DYNAMODB,
    };
    for &(name, long, brief) in required {
        let only_in = ONLY_IN.iter().find(|(what, _)| *what == name);
        let cannot =
            only_in.is_some_and(|(_, phase)| skipped.iter().any(|one| one.phase == *phase));
        if !cannot {
            report.require(name, if short { brief } else { long });
        }
    }
}

/// A phase that this machine does not support.
#[derive(Clone, Debug)]
pub(crate) struct Skipped {
    pub(crate) phase: &'static str,
    pub(crate) reason: String,
}

/// The result as JSON, for the evidence.
pub(crate) fn to_json(
    report: &Report,
    schedule: Vec<Value>,
    skipped: &[Skipped],
    allow_skips: bool,
) -> serde_json::Result<Value> {
    let mut result = serde_json::to_value(report)?;
    result["schedule"] = Value::from(schedule);
    result["skipped"] = skipped
        .iter()
        .map(|skipped| json!({ "phase": skipped.phase, "reason": skipped.reason }))
        .collect();
    result["passed"] = (report.passed && (allow_skips || skipped.is_empty())).into();
    Ok(result)
}

/// Adds how long the gateways had no success after each fault. A full run fails where that was too
/// long.
pub(crate) fn add_pauses(result: &mut Value, pauses: &[Pause], is_full: bool) {
    let limited = pauses.iter().filter(|pause| pause.is_limited);
    let longest = limited.map(|pause| pause.worst_gateway_ms).max();
    let longest = longest.unwrap_or_default();
    let limit = u64::try_from(LONGEST_PAUSE.as_millis()).unwrap_or(u64::MAX);
    result["pauses"] = json!(pauses);
    result["longest_pause_ms"] = longest.into();
    result["pause_limit_ms"] = limit.into();
    if is_full && longest > limit {
        result["passed"] = false.into();
    }
}

/// The text before the run. The file has every single fault.
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

/// The text at the end of the run.
pub(crate) fn summary(result: &Value) -> String {
    let mut text = String::new();
    for phase in result["phases"].as_array().into_iter().flatten() {
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
        let _ = writeln!(text, "{name}: {}", result[name]);
    }
    if let Some(longest) = result["longest_pause_ms"].as_u64() {
        let limit = &result["pause_limit_ms"];
        let _ = writeln!(text, "longest pause: {longest} ms of at most {limit} ms");
    }
    let requirements = result["requirements"].as_array().into_iter().flatten();
    for unmet in requirements.filter(|one| one["met"] == false) {
        let _ = writeln!(text, "NOT MET: {unmet}");
    }
    let _ = writeln!(text, "passed: {}", result["passed"]);
    text
}
