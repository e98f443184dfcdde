//! The section about the deterministic simulation.

use std::fmt::Write as _;

use serde_json::Value;

use super::text::{Table, count, decimal, humanize, list, members, text_of};

pub(super) fn section(content: &Value) -> String {
    let mut text = format!(
        "## The simulation\n\nThe simulation runs the core, the layer and the worker in one \
         process, over the memory store. A seed decides the clock, the delays and the schedule. \
         Store calls fail, succeed and report a failure, or arrive late. {} seeds{}, {} steps in \
         {} s. {} of the seeds were run twice and compared.\n\n",
        count(&content["seeds"]),
        which(content),
        count(&content["steps"]),
        decimal(&content["seconds"], 0),
        count(&content["replayed_twice"]),
    );
    for (title, name) in [
        ("what must never happen", "violations"),
        ("fault", "faults"),
        ("outcome", "outcomes"),
    ] {
        let mut table = Table::new(&[title, "times"]);
        for (what, times) in members(&content[name]) {
            let broken = name == "violations" && *times != 0;
            let shown = count(times);
            let shown = if broken {
                format!("**{shown}**")
            } else {
                shown
            };
            table.row([humanize(what), shown]);
        }
        text.push_str(&table.done());
    }
    for lacking in list(&content["too_little"]) {
        // Writing to a String cannot fail.
        let _ = write!(text, "**Too rare: {}.**\n\n", text_of(lacking));
    }
    let failing: Vec<String> = list(&content["failing"])
        .iter()
        .map(Value::to_string)
        .collect();
    if !failing.is_empty() {
        let _ = write!(text, "**Seeds that failed: {}.**\n\n", failing.join(", "));
    }
    text
}

/// The range of the seeds, for reproducing the run.
fn which(content: &Value) -> String {
    let first = count(&content["first_seed"]);
    match content["base"].as_u64() {
        Some(base) => format!(" (the first two thousand, and others from {base} on)"),
        None => format!(" from {first} on"),
    }
}
