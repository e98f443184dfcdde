//! The section about the fault campaign.

use std::fmt::Write as _;

use serde_json::Value;

use super::text::{Table, count, counts, list, members, plain, said, word};

/// What each rule of the checker means, in its order.
const RULES: [(&str, &str); 11] = [
    (
        "duplicate_effects",
        "the provider was asked more often for a payment than it was wanted",
    ),
    (
        "executed_again",
        "an operation was given to the application once more than it may be, whether or not money \
         moved",
    ),
    (
        "lost_acknowledgements",
        "a client was told an end that the ledger or a later answer knows nothing of",
    ),
    (
        "altered_replays",
        "two final answers to one operation differ",
    ),
    (
        "answers_across_tenants",
        "a client was given something of somebody else's operation",
    ),
    (
        "stuck_keys",
        "an operation has no end after everything was healed",
    ),
    (
        "effects_never_surfaced",
        "money moved and nobody was ever told, or the application was asked for what nobody wanted",
    ),
    (
        "misuse_accepted",
        "a used key with another body, or nonsense, was answered as if it were right",
    ),
    (
        "effects_of_refused_calls",
        "something was done although every call that can have done it said that nothing was",
    ),
    (
        "needless_decisions",
        "a person had to decide what the application could have told",
    ),
    (
        "crashes",
        "a process ended by itself while its disk was not full",
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
        "Three gateways, a worker, the payments example and clients that retry, while things \
         break. The provider's ledger is a file of its own, synced after every charge. The network \
         in front of the application writes down every execution that it sees go by. A checker \
         without any of Semel's code compares what the clients saw with both. One key in five goes \
         to a provider that recognises a repeated charge, where only that network shows a second \
         execution; the others show it as a second charge. In the end every gateway is killed, the \
         cache is emptied, and every operation that ever ended is asked for once more. The schedule \
         comes from a seed: `cargo xtask campaign {short}--seed {seed}` repeats it. What the \
         clients meet depends on the machine's timing as well, so counts differ a little.\n\n\
         {} operations, {} calls: {} with a final answer, {} certainly not executed, {} that \
         nobody could tell from the call alone; {} executions. {} kills, {} stops past the lease, \
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
    text.push_str("### Whether the run counts\n\nA quiet run proves little. So much has to have happened:\n\n");
    text.push_str(&requirements(content));
    text.push_str("### Phases\n\n");
    text.push_str(&phases(content));
    text.push_str("### Faults\n\n");
    let mut faults = Table::new(&["fault", "times"]);
    for (name, times) in members(&content["faults"]) {
        faults.row([said(name), count(times)]);
    }
    text.push_str(&faults.done());
    let _ = write!(
        text,
        "Operations that nobody could find the truth of were decided as an operator would, by \
         the ledger: {}. The ledger has {} charges, {} of them declined.\n\n",
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
        let (phase, reason) = (word(&skipped["phase"]), word(&skipped["reason"]));
        let _ = writeln!(
            text,
            "- The phase `{phase}` of this very run: {}.",
            plain(reason)
        );
    }
    text
}

fn violations(content: &Value) -> String {
    let mut table = Table::new(&["what must never happen", "times"]);
    let found = &content["violations"];
    // A rule that is new in the checker is shown as well.
    let others = members(found).filter(|(name, _)| !RULES.iter().any(|(rule, _)| rule == name));
    let rules = RULES.into_iter().chain(others.map(|(name, _)| (name, "")));
    for (rule, meaning) in rules {
        let name = format!("{}: {meaning}", said(rule));
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
            let (op, what) = (&example["op"], word(&example["what"]));
            let _ = writeln!(text, "- {}, operation {op}: {}", said(rule), plain(what));
        }
    }
    if text.ends_with("\n\n") {
        return text;
    }
    text + "\n"
}

fn requirements(content: &Value) -> String {
    let mut table = Table::new(&["what", "at least", "seen", ""]);
    for requirement in list(&content["requirements"]) {
        let met = if requirement["met"] == true {
            "met"
        } else {
            "**NOT MET**"
        };
        table.row([
            said(word(&requirement["name"])),
            count(&requirement["at_least"]),
            count(&requirement["seen"]),
            met.to_owned(),
        ]);
    }
    table.done()
}

fn phases(content: &Value) -> String {
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
        let row = [said(word(&phase["name"]))].into_iter().chain(numbers);
        table.row(row.chain([counts(&phase["faults"])]));
    }
    table.done()
}
