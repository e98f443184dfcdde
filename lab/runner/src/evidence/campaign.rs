//! The section about the fault campaign.

use std::fmt::Write as _;

use serde_json::Value;

use super::text::{Table, count, counts, humanize, list, members, plain, text_of};

/// What each rule of the checker means, in its order.
const RULES: [(&str, &str); 15] = [
    (
        "duplicate_effects",
        "the provider was called more often for a payment than it was requested",
    ),
    (
        "executed_again",
        "an operation reached the application again, whether or not money moved",
    ),
    (
        "lost_acknowledgements",
        "a client got a final answer that the ledger or a later answer contradicts",
    ),
    (
        "altered_replays",
        "two final answers to one operation differ",
    ),
    (
        "answers_across_tenants",
        "a client got the answer of another client",
    ),
    (
        "erased_answers",
        "an answer was given although an operator had erased it",
    ),
    (
        "stuck_keys",
        "an operation has no final answer after all faults were over",
    ),
    (
        "effects_never_surfaced",
        "money moved and no client got the answer, or an execution was not requested",
    ),
    (
        "misuse_accepted",
        "a used key with another body, or a malformed request, was accepted",
    ),
    (
        "effects_of_refused_calls",
        "there was an effect although every call was answered with \"not executed\"",
    ),
    (
        "needless_decisions",
        "an operator had to decide what the application could have answered",
    ),
    (
        "lost_messages",
        "a message whose transaction was committed had no effect",
    ),
    (
        "wrong_messages",
        "a message had its effect twice, or its transaction was rolled back",
    ),
    ("crashes", "a process exited although its disk was not full"),
    (
        "resources_held",
        "hostile clients made a process hold too much memory, or sockets after they left",
    ),
];

pub(super) fn section(content: &Value) -> String {
    let mut text = String::from("## The campaign\n\n");
    let short = if content["short"] == true {
        "--short "
    } else {
        ""
    };
    let seed = &content["seed"];
    let totals = &content["totals"];
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "The campaign runs three gateways, a worker, the payments example and clients that retry, \
         and injects faults. The provider's ledger is a separate file, synced after every charge. \
         A proxy in front of the application records every execution. A checker that shares no \
         code with Semel compares what the clients saw with both. One key in five goes to a \
         provider that deduplicates charges, where only the proxy shows a second execution; for \
         the others the ledger shows it as a second charge. At the end the campaign kills every \
         gateway, empties the cache, and requests every completed operation once more. The \
         schedule comes from a seed: `cargo xtask campaign {short}--seed {seed}` repeats it. \
         Counts differ slightly between runs, because they also depend on the machine's \
         timing.\n\n\
         {} operations, {} calls: {} with a final answer, {} certainly not executed, {} \
         indeterminate from the call alone; {} executions. {} kills, {} stops past the lease, \
         {} commits whose answer was lost.\n\n",
        count(&totals["operations"]),
        count(&totals["calls"]),
        count(&totals["ok"]),
        count(&totals["failed"]),
        count(&totals["indeterminate"]),
        count(&totals["executions"]),
        count(&totals["kills"]),
        count(&totals["stops"]),
        count(&totals["ambiguous_commits"]),
    );
    text.push_str(&violations(content));
    text.push_str("![Answers per second, by phase](images/evidence-timeline.svg)\n\n");
    text.push_str("### Requirements\n\nA run counts only if it reached these minimums:\n\n");
    text.push_str(&requirements(content));
    text.push_str("### Phases\n\n");
    text.push_str(&phases(content));
    text.push_str("### Faults\n\n");
    let mut faults = Table::new(&["fault", "times"]);
    for (name, times) in members(&content["faults"]) {
        faults.row([humanize(name), count(times)]);
    }
    text.push_str(&faults.done());
    let _ = write!(
        text,
        "Records that reconciliation did not settle were resolved from the ledger, as an operator would: {}. The ledger has {} charges, {} of them declined.\n\n",
        counts(&content["decisions"]),
        count(&content["ledger"]["charges"]),
        count(&content["ledger"]["declined"]),
    );
    text
}

/// What this machine could not do, for the section about what was not tested.
pub(super) fn skipped(content: &Value) -> String {
    let mut text = String::new();
    for skipped in list(&content["skipped"]) {
        let (phase, reason) = (text_of(&skipped["phase"]), text_of(&skipped["reason"]));
        let _ = writeln!(
            text,
            "- The phase `{phase}`, which this run skipped: {}.",
            plain(reason)
        );
    }
    text
}

pub(super) fn violations(content: &Value) -> String {
    let mut table = Table::new(&["what must never happen", "times"]);
    let found = &content["violations"];
    // A rule that is new in the checker is shown as well.
    let others = members(found).filter(|(name, _)| !RULES.iter().any(|(rule, _)| rule == name));
    let rules = RULES.into_iter().chain(others.map(|(name, _)| (name, "")));
    for (rule, meaning) in rules {
        let name = format!("{}: {meaning}", humanize(rule));
        let name = name.trim_end_matches(": ").to_owned();
        let times = match found[rule].as_u64() {
            None => "**not checked**".to_owned(),
            Some(0) => "0".to_owned(),
            Some(times) => format!("**{times}**"),
        };
        table.row([name, times]);
    }
    let mut text = table.done();
    for (rule, examples) in members(&content["examples"]) {
        for example in list(examples) {
            let (op, what) = (&example["op"], text_of(&example["what"]));
            let _ = writeln!(
                text,
                "- {}, operation {op}: {}",
                humanize(rule),
                plain(what)
            );
        }
    }
    if text.ends_with("\n\n") {
        return text;
    }
    text + "\n"
}

pub(super) fn requirements(content: &Value) -> String {
    let mut table = Table::new(&["what", "at least", "seen", ""]);
    for requirement in list(&content["requirements"]) {
        let met = if requirement["met"] == true {
            "met"
        } else {
            "**NOT MET**"
        };
        table.row([
            humanize(text_of(&requirement["name"])),
            count(&requirement["at_least"]),
            count(&requirement["seen"]),
            met.to_owned(),
        ]);
    }
    table.done()
}

pub(super) fn phases(content: &Value) -> String {
    let head = [
        "phase",
        "seconds",
        "operations",
        "calls",
        "ok",
        "failed",
        "indeterminate",
    ];
    let mut table = Table::new(&[&head[..], &["what was broken"]].concat());
    for phase in list(&content["phases"]) {
        let numbers = head[1..].iter().map(|name| count(&phase[*name]));
        let row = [humanize(text_of(&phase["name"]))]
            .into_iter()
            .chain(numbers);
        table.row(row.chain([counts(&phase["faults"])]));
    }
    table.done()
}
