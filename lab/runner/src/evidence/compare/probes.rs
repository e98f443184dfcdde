//! Which guarantees hold, and the final answer to a retry.

use std::fmt::Write as _;

use serde_json::Value;

use super::super::text::{Table, cut, list, plain, quoted, text_of};
use super::{MAX_REASON, name};

/// The probes that inject a fault while an operation is in progress, and their column titles.
const FAULTS: [(&str, &str); 4] = [
    ("crash_and_restart", "killed after the effect"),
    ("failed_completion", "store lost after the effect"),
    ("timeout_after_effect", "504 after the effect"),
    ("disconnect_after_effect", "client gone after the effect"),
];
const OVERSIZED: &str = "oversized_response";

pub(super) fn render(subjects: &[Value]) -> String {
    let ran = |subject: &&Value| !list(&subject["probes"]).is_empty();
    let ran: Vec<&Value> = subjects.iter().filter(ran).collect();
    holds(&ran) + &ends(&ran)
}

/// A row for each probe and a column for each subject; the transposed table would be too wide.
fn holds(ran: &[&Value]) -> String {
    let mut ids: Vec<&str> = Vec::new();
    for probe in ran.iter().flat_map(|subject| list(&subject["probes"])) {
        let id = text_of(&probe["id"]);
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let mut text = String::from("### Guarantees\n\n");
    for (number, subject) in ran.iter().enumerate() {
        let note = text_of(&subject["notes"]);
        let note = if note.is_empty() {
            String::new()
        } else {
            format!(": {}", plain(note))
        };
        let store = text_of(&subject["store"]);
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "{}. {}, {store}{note}", number + 1, name(subject));
    }
    let numbers: Vec<String> = (1..=ran.len()).map(|number| number.to_string()).collect();
    let numbers = numbers.iter().map(String::as_str);
    let mut table = Table::new(&["probe"].into_iter().chain(numbers).collect::<Vec<_>>());
    for id in ids {
        let verdicts = ran.iter().map(|subject| verdict(subject, id));
        table.row([quoted(id)].into_iter().chain(verdicts));
    }
    text.push('\n');
    text.push_str(&table.done());
    text.push_str(
        "**fail**: the guarantee did not hold. **no**: it did not hold, and the documentation does \
         not promise it; the list below quotes the documentation. –: not observable from outside. \
         Empty: does not apply, or was not requested. *stored*: the response of 4 MiB was stored \
         and replayed.\n\n\
         A lease that is renewed does not expire in `slow_operation`, so that probe does not show \
         what happens when a lease expires. The campaign above stops a process of Semel for longer \
         than its lease and continues it; this was not tried with the peers.\n\n",
    );
    text.push_str(&failures(ran));
    text
}

fn verdict(subject: &Value, id: &str) -> String {
    let Some(probe) = found(subject, id) else {
        return String::new();
    };
    let end = text_of(&probe["end"]);
    match text_of(&probe["verdict"]) {
        "pass" if id == OVERSIZED && end == "stored" => "pass (stored)".to_owned(),
        "pass" => "pass".to_owned(),
        "fail" if excuse(subject, id).is_some() => "**no**".to_owned(),
        "fail" => "**fail**".to_owned(),
        "not_seen" => "–".to_owned(),
        _ => String::new(),
    }
}

fn found<'a>(subject: &'a Value, id: &str) -> Option<&'a Value> {
    let mut probes = list(&subject["probes"]).iter();
    probes.find(|probe| probe["id"] == id)
}

/// What the documentation states about a probe that does not hold.
fn excuse<'a>(subject: &'a Value, id: &str) -> Option<&'a str> {
    let mut excuses = list(&subject["not_promised"]).iter();
    let found = excuses.find(|excuse| excuse["id"] == id)?;
    Some(text_of(&found["reason"]))
}

fn failures(ran: &[&Value]) -> String {
    let mut text = String::new();
    for subject in ran {
        for probe in list(&subject["probes"]) {
            if probe["verdict"] != "fail" {
                continue;
            }
            let id = text_of(&probe["id"]);
            let excuse = excuse(subject, id).map_or_else(String::new, |excuse| {
                format!("**not promised**: {}; seen: ", plain(excuse))
            });
            let _ = writeln!(
                text,
                "- {}, {}, {}: {excuse}{}",
                name(subject),
                text_of(&subject["store"]),
                quoted(id),
                plain(&cut(text_of(&probe["seen"]), MAX_REASON)),
            );
        }
    }
    text + "\n"
}

/// A pass means that nothing was executed twice. The answer that the client gets differs.
fn ends(ran: &[&Value]) -> String {
    let mut head = vec![""];
    head.extend(FAULTS.map(|(_, head)| head));
    head.push("and then (documented, not observed)");
    let mut table = Table::new(&head);
    for subject in ran {
        let mut row = vec![format!("{}, {}", name(subject), text_of(&subject["store"]))];
        row.extend(FAULTS.map(|(id, _)| {
            let end = found(subject, id).map_or("", |probe| text_of(&probe["end"]));
            if end.is_empty() { "–" } else { end }.to_owned()
        }));
        row.push(text_of(&subject["and_then"]).to_owned());
        table.row(row);
    }
    format!(
        "### The final answer to a retry\n\nThis table has no verdict: it shows what the client \
         learns, not whether something executed twice. Each retry was repeated until its answer \
         was final, for at most 12 seconds. *The answer* is that of the one execution. The last \
         column is what the documentation says happens afterwards; it was not tested.\n\n{}",
        table.done()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_never_promised_is_told_apart_and_ends_are_shown() {
        let page = render(&[json!({
            "name": "a", "store": "Redis", "and_then": "an operator",
            "not_promised": [{ "id": "different_body", "reason": "documented: not compared" }],
            "probes": [
                { "id": "different_body", "verdict": "fail", "seen": "one" },
                { "id": "replay", "verdict": "fail", "seen": "two" },
                { "id": "oversized_response", "verdict": "pass", "end": "stored" },
                { "id": "crash_and_restart", "verdict": "pass", "end": "409, still after 12 s" },
            ],
        })]);
        for expected in [
            "| `different_body` | **no** |",
            "| `replay` | **fail** |",
            "| `oversized_response` | pass (stored) |",
            "**not promised**: documented: not compared; seen: one",
            "| a, Redis | 409, still after 12 s | – | – | – | an operator |",
        ] {
            assert!(page.contains(expected), "{expected}\n{page}");
        }
    }
}
