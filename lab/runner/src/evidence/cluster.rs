//! The section about the campaign against a PostgreSQL cluster.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::campaign::{phases, requirements, violations};
use super::text::{Table, count, list, text_of};

pub(super) fn section(content: &Value) -> String {
    let mut text = String::from("## The campaign against a cluster\n\n");
    let totals = &content["totals"];
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "The same gateways, worker, application, clients and checker over three PostgreSQL servers \
         with Patroni and etcd, each in a network namespace of its own, with \
         `synchronous_mode: quorum`, strict. The leader is switched over, killed, frozen for longer than its \
         claim lasts and thawed, and cut off (from everything, from etcd, from etcd and its \
         standbys, and in one direction only); standbys are lost, the leader's disk is full, and a \
         node whose clock is off becomes the leader. `cargo xtask campaign --cluster --seed {}` \
         repeats the schedule.\n\n\
         {} operations, {} calls: {} with a final answer, {} certainly not executed, {} \
         indeterminate from the call alone; {} executions.\n\n",
        content["seed"],
        count(&totals["operations"]),
        count(&totals["calls"]),
        count(&totals["ok"]),
        count(&totals["failed"]),
        count(&totals["indeterminate"]),
        count(&totals["executions"]),
    );
    text.push_str(&violations(content));
    text.push_str("![Answers per second, by phase](images/evidence-cluster.svg)\n\n");
    text.push_str("### Pauses\n\n");
    let _ = write!(
        text,
        "The longest time after each fault in which a gateway answered no new operation. A failover \
         may take {} ms: the leader's claim has to run out first. A full disk, and the loss of both \
         standbys, last until they are repaired.\n\n",
        count(&content["pause_limit_ms"]),
    );
    text.push_str(&pauses(content));
    text.push_str("### Requirements for a cluster\n\n");
    text.push_str(&requirements(content));
    text.push_str("### Phases for a cluster\n\n");
    text.push_str(&phases(content));
    text
}

/// By kind of fault: how many, and how long.
fn pauses(content: &Value) -> String {
    let mut by_fault: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for pause in list(&content["pauses"]) {
        // Without its numbers.
        let fault = text_of(&pause["fault"]);
        let kind = fault.split(['(', ',']).next().unwrap_or_default();
        let ms = pause["worst_gateway_ms"].as_u64().unwrap_or_default();
        by_fault.entry(kind).or_default().push(ms);
    }
    let mut table = Table::new(&["fault", "times", "median ms", "longest ms"]);
    for (fault, mut all) in by_fault {
        all.sort_unstable();
        let (times, median) = (all.len(), all[all.len() / 2]);
        let longest = all.last().copied().unwrap_or_default();
        table.row([
            fault.to_owned(),
            times.to_string(),
            count(&median.into()),
            count(&longest.into()),
        ]);
    }
    table.done()
}
