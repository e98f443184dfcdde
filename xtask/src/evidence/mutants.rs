//! The section about the mutants.

use serde_json::Value;

use super::text::{Table, count, cut, list, quoted, said, word};

/// The first words of a failed test say what it saw; the rest is for who runs it.
const MAX_SAID: usize = 160;

pub(super) fn section(content: &Value) -> String {
    let mutants = list(&content["mutants"]);
    let caught = mutants
        .iter()
        .filter(|mutant| mutant["caught"] == true)
        .count();
    let seen = mutants
        .iter()
        .filter(|mutant| !list(&mutant["simulation"]["broken"]).is_empty())
        .count();
    let campaign = mutants
        .iter()
        .filter(|mutant| mutant["campaign"].is_string())
        .count();
    let mut text = format!(
        "## The mutants\n\nA green run proves something only if a broken system would have been \
         red. Each mutant is Semel with one guard removed, in a copy of the tree. {caught} of {} \
         were caught, each by tests that pass without the mutant, fail with it, and say what was \
         expected of them. {seen} of them also broke a promise in simulated worlds, and {campaign} in \
         phases of the short campaign, which passed without them.\n\n",
        mutants.len()
    );
    let head = [
        "mutant",
        "guard removed",
        "why it matters",
        "caught by",
        "what it said",
        "broken in the simulation",
        "broken in the campaign",
    ];
    let mut table = Table::new(&head);
    for mutant in mutants {
        let by = if mutant["caught"] == true {
            names(&mutant["by"])
        } else {
            "**SURVIVED**".to_owned()
        };
        table.row([
            quoted(word(&mutant["name"])),
            word(&mutant["guard"]).to_owned(),
            word(&mutant["why"]).to_owned(),
            by,
            quoted(&cut(word(&mutant["said"]), MAX_SAID)),
            simulated(&mutant["simulation"]),
            mutant["campaign"]
                .as_str()
                .map_or_else(|| "–".to_owned(), said),
        ]);
    }
    text.push_str(&table.done());
    text
}

/// The promises that the simulation saw broken, where it was asked.
fn simulated(found: &Value) -> String {
    let broken: Vec<String> = list(&found["broken"])
        .iter()
        .map(|name| said(word(name)))
        .collect();
    if broken.is_empty() {
        return "–".to_owned();
    }
    format!("{} ({} seeds)", broken.join(", "), count(&found["seeds"]))
}

/// One name, or a list of them.
fn names(by: &Value) -> String {
    let one = by.as_str().into_iter();
    let many = list(by).iter().map(word);
    let names: Vec<String> = one.chain(many).map(quoted).collect();
    names.join(", ")
}
