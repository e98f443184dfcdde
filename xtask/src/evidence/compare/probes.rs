//! What holds, and what a retry is told in the end.

use std::fmt::Write as _;

use serde_json::Value;

use super::super::text::{Table, cut, list, plain, quoted, word};
use super::{MAX_REASON, name};

/// The probes that break something while an operation is under way, and what their columns say.
const FAULTS: [(&str, &str); 4] = [
    ("crash_and_restart", "killed after the effect"),
    ("failed_completion", "store lost after the effect"),
    ("timeout_after_effect", "504 after the effect"),
    ("disconnect_after_effect", "client gone after the effect"),
];
const OVERSIZED: &str = "oversized_response";

pub(super) fn told(subjects: &[Value]) -> String {
    let ran = |subject: &&Value| !list(&subject["probes"]).is_empty();
    let ran: Vec<&Value> = subjects.iter().filter(ran).collect();
    holds(&ran) + &ends(&ran)
}

/// A row for each subject and a column for each probe would be too wide: the other way round.
fn holds(ran: &[&Value]) -> String {
    let mut ids: Vec<&str> = Vec::new();
    for probe in ran.iter().flat_map(|subject| list(&subject["probes"])) {
        let id = word(&probe["id"]);
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let mut text = String::from("### What holds\n\n");
    for (number, subject) in ran.iter().enumerate() {
        let note = word(&subject["notes"]);
        let note = if note.is_empty() {
            String::new()
        } else {
            format!(": {}", plain(note))
        };
        let store = word(&subject["store"]);
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
        "**fail**: it did not hold. **no**: it did not hold, and the documentation does not \
         promise it; what that says is below. –: could not be seen from outside. Empty: does not \
         apply, or was not asked for. *stored*: the answer of 4 MiB was simply kept, and given \
         again.\n\n\
         A lease that is renewed does not expire in `slow_operation`, so that nothing there says \
         what happens when it does. That Semel's own expires, under a process that is stopped and \
         goes on later, is part of the campaign above; of the peers nobody tried it.\n\n",
    );
    text.push_str(&failures(ran));
    text
}

fn verdict(subject: &Value, id: &str) -> String {
    let Some(probe) = found(subject, id) else {
        return String::new();
    };
    let end = word(&probe["end"]);
    match word(&probe["verdict"]) {
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

/// What the documentation says to a probe that does not hold.
fn excuse<'a>(subject: &'a Value, id: &str) -> Option<&'a str> {
    let mut excuses = list(&subject["not_promised"]).iter();
    let found = excuses.find(|excuse| excuse["id"] == id)?;
    Some(word(&found["reason"]))
}

fn failures(ran: &[&Value]) -> String {
    let mut text = String::new();
    for subject in ran {
        for probe in list(&subject["probes"]) {
            if probe["verdict"] != "fail" {
                continue;
            }
            let id = word(&probe["id"]);
            let excuse = excuse(subject, id).map_or_else(String::new, |excuse| {
                format!("**not promised**: {}; seen: ", plain(excuse))
            });
            let _ = writeln!(
                text,
                "- {}, {}, {}: {excuse}{}",
                name(subject),
                word(&subject["store"]),
                quoted(id),
                plain(&cut(word(&probe["seen"]), MAX_REASON)),
            );
        }
    }
    text + "\n"
}

/// A pass says that nothing happened twice. What the client has of it differs.
fn ends(ran: &[&Value]) -> String {
    let mut head = vec![""];
    head.extend(FAULTS.map(|(_, head)| head));
    head.push("and then (documented, not observed)");
    let mut table = Table::new(&head);
    for subject in ran {
        let mut row = vec![format!("{}, {}", name(subject), word(&subject["store"]))];
        row.extend(FAULTS.map(|(id, _)| {
            let end = found(subject, id).map_or("", |probe| word(&probe["end"]));
            if end.is_empty() { "–" } else { end }.to_owned()
        }));
        row.push(word(&subject["and_then"]).to_owned());
        table.row(row);
    }
    format!(
        "### What a retry is told in the end\n\nNo verdict: that nothing happens twice is one \
         thing, and that the client learns what happened is another. Each retry was repeated \
         until its answer was final, for 12 seconds at most. *The answer* is that of the one \
         execution. The last column was not tried: it is what is documented to come after \
         that.\n\n{}",
        table.done()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_never_promised_is_told_apart_and_ends_are_shown() {
        let page = told(&[json!({
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
