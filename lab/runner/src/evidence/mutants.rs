//! The section about the mutants.

use serde_json::Value;

use super::text::{Table, count, cut, humanize, list, quoted, text_of};

/// The length to which a test's failure message is cut.
const MAX_MESSAGE: usize = 160;

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
        "## The mutants\n\nThe mutants check that the tests detect a missing guard. \
         Each mutant is Semel with one guard removed, in a copy of the tree. {caught} of {} \
         were caught, each by tests that pass without the mutant, fail with it, and fail \
         with the expected message. {seen} of them also broke an invariant in the simulation, and \
         {campaign} in phases of the short campaign, which passed without them.\n\n",
        mutants.len()
    );
    let head = [
        "mutant",
        "guard removed",
        "why it matters",
        "caught by",
        "failure message",
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
            quoted(text_of(&mutant["name"])),
            text_of(&mutant["guard"]).to_owned(),
            text_of(&mutant["why"]).to_owned(),
            by,
            quoted(&cut(text_of(&mutant["said"]), MAX_MESSAGE)),
            simulated(&mutant["simulation"]),
            mutant["campaign"]
                .as_str()
                .map_or_else(|| "–".to_owned(), humanize),
        ]);
    }
    text.push_str(&table.done());
    text
}

/// The invariants that were broken in the simulation, where it was run.
fn simulated(found: &Value) -> String {
    let broken: Vec<String> = list(&found["broken"])
        .iter()
        .map(|name| humanize(text_of(name)))
        .collect();
    if broken.is_empty() {
        return "–".to_owned();
    }
    format!("{} ({} seeds)", broken.join(", "), count(&found["seeds"]))
}

/// One name, or a list of them.
fn names(by: &Value) -> String {
    let one = by.as_str().into_iter();
    let many = list(by).iter().map(text_of);
    let names: Vec<String> = one.chain(many).map(quoted).collect();
    names.join(", ")
}
