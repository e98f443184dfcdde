//! The section about the mutants.

use serde_json::Value;

use super::text::{Table, cut, list, quoted, word};

/// The first words of a failed test say what it saw; the rest is for who runs it.
const MAX_SAID: usize = 160;

pub(super) fn section(content: &Value) -> String {
    let mutants = list(&content["mutants"]);
    let caught = mutants
        .iter()
        .filter(|mutant| mutant["caught"] == true)
        .count();
    let mut text = format!(
        "## The mutants\n\nA green run proves something only if a broken system would have been \
         red. Each mutant is Semel with one guard removed, in a copy of the tree. {caught} of {} \
         were caught by a test that passes without the mutant.\n\n",
        mutants.len()
    );
    let head = [
        "mutant",
        "guard removed",
        "why it matters",
        "caught by",
        "what it said",
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
        ]);
    }
    text.push_str(&table.done());
    text
}

/// One name, or a list of them.
fn names(by: &Value) -> String {
    let one = by.as_str().into_iter();
    let many = list(by).iter().map(word);
    let names: Vec<String> = one.chain(many).map(quoted).collect();
    names.join(", ")
}
