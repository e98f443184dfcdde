//! The section about the deterministic simulation.

use std::fmt::Write as _;

use serde_json::Value;

use super::text::{Table, count, decimal, list, members, said, word};

pub(super) fn section(content: &Value) -> String {
    let mut text = format!(
        "## The simulation\n\nThe core, the layer and the worker in one process, over the store in \
         memory, with a clock, delays and an order of turns that a seed decides. Store calls fail, \
         succeed and report a failure, or arrive late. {} seeds{}, {} steps in {} s. {} of the \
         seeds were run twice and compared.\n\n",
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
            table.row([said(what), shown]);
        }
        text.push_str(&table.done());
    }
    for lacking in list(&content["too_little"]) {
        // Writing to a String cannot fail.
        let _ = write!(text, "**Too little of {}.**\n\n", word(lacking));
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

/// Which seeds they were, in words that let anybody run them again.
fn which(content: &Value) -> String {
    let first = count(&content["first_seed"]);
    match content["base"].as_u64() {
        Some(base) => format!(" (the first two thousand, and others from {base} on)"),
        None => format!(" from {first} on"),
    }
}
