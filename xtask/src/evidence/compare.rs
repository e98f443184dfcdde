//! The section about the peers.

mod figures;
mod probes;

use std::fmt::Write as _;

use serde_json::Value;

use super::text::{cut, list, plain, word};

/// Enough of a reason to know where to look.
const MAX_REASON: usize = 240;

pub(super) fn section(content: &Value) -> String {
    let subjects = list(&content["subjects"]);
    let mut text = String::from(
        "## Beside others\n\nThe same load and the same black-box probes against Semel and its \
         peers, one at a time, on the machine above. The peers come from their registries, with \
         small applications of ours around them; a peer may do better in hands that know it \
         better. Every adapter requires a key and puts the caller into it, by lines of ours where \
         the library cannot. How each is set up, and why, is in \
         [evidence/peers](../evidence/peers/README.md).\n\n",
    );
    text.push_str(&figures::told(subjects));
    text.push_str(&probes::told(subjects));
    text.push_str(&versions(content, subjects));
    text.push_str(&absent(subjects));
    text
}

/// What really ran, as programs and installations say it.
fn versions(content: &Value, subjects: &[Value]) -> String {
    let mut all: Vec<String> = Vec::new();
    let mut add = |said: &Value| {
        let said = plain(word(said));
        if !said.is_empty() && !all.contains(&said) {
            all.push(said);
        }
    };
    for (interpreter, name) in [("node", "Node"), ("python", "")] {
        let said = word(&content["interpreters"][interpreter]);
        add(&format!("{name} {said}").trim().into());
    }
    for subject in subjects {
        list(&subject["servers"]).iter().for_each(&mut add);
        list(&subject["installed"]).iter().for_each(&mut add);
    }
    let ended = match word(&content["ended"]) {
        "" => String::new(),
        ended => format!("It ended at {ended}. "),
    };
    if all.is_empty() {
        return ended;
    }
    format!(
        "{ended}What ran, by its own words: {}. Those in Rust are in the adapters' lock \
         files.\n\n",
        all.join("; ")
    )
}

fn absent(subjects: &[Value]) -> String {
    let mut text = String::new();
    for subject in subjects {
        let reason = word(&subject["reason"]);
        if subject["ran"] != true || !reason.is_empty() {
            let reason = plain(&cut(reason, MAX_REASON));
            let what = if subject["ran"] == true {
                "ran in part"
            } else {
                "could not run"
            };
            let (name, store) = (name(subject), word(&subject["store"]));
            let _ = writeln!(text, "- {name}, {store}, {what}: {reason}");
        }
    }
    if text.is_empty() {
        return "All of them could run.\n\n".to_owned();
    }
    format!("### Peers that could not run, or not all of it\n\n{text}\n")
}

fn name(subject: &Value) -> String {
    let name = word(&subject["name"]);
    if subject["ours"] == true {
        return format!("**{name}**");
    }
    name.to_owned()
}
