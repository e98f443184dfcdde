//! The section about the peers.

mod performance;
mod probes;

use std::fmt::Write as _;

use serde_json::Value;

use super::text::{cut, list, plain, text_of};

/// The length to which a reason is cut.
const MAX_REASON: usize = 240;

pub(super) fn section(content: &Value) -> String {
    let subjects = list(&content["subjects"]);
    let mut text = String::from(
        "## Comparison with peers\n\nThe same load and the same black-box probes run against Semel \
         and its peers, one at a time, on the machine above. The peers come from their registries, \
         and small applications of this project use them; experts in a peer may configure it \
         better. Every adapter requires a key and makes the caller part of it, with code of this \
         project where the library has no option for it. [lab/peers](../lab/peers/README.md) \
         describes how each is set up, and why.\n\n",
    );
    text.push_str(&performance::render(subjects));
    text.push_str(&probes::render(subjects));
    text.push_str(&versions(content, subjects));
    text.push_str(&absent(subjects));
    text
}

/// The versions that ran, as reported by the programs and installations.
fn versions(content: &Value, subjects: &[Value]) -> String {
    let mut all: Vec<String> = Vec::new();
    let mut add = |value: &Value| {
        let version = plain(text_of(value));
        if !version.is_empty() && !all.contains(&version) {
            all.push(version);
        }
    };
    for (interpreter, name) in [("node", "Node"), ("python", "")] {
        let version = text_of(&content["interpreters"][interpreter]);
        add(&format!("{name} {version}").trim().into());
    }
    for subject in subjects {
        list(&subject["servers"]).iter().for_each(&mut add);
        list(&subject["installed"]).iter().for_each(&mut add);
    }
    let ended = match text_of(&content["ended"]) {
        "" => String::new(),
        ended => format!("It ended at {ended}. "),
    };
    if all.is_empty() {
        return ended;
    }
    format!(
        "{ended}Versions, as the programs report them: {}. The versions of the Rust libraries are \
         in the adapters' lock files.\n\n",
        all.join("; ")
    )
}

fn absent(subjects: &[Value]) -> String {
    let mut text = String::new();
    for subject in subjects {
        let reason = text_of(&subject["reason"]);
        if subject["ran"] != true || !reason.is_empty() {
            let reason = plain(&cut(reason, MAX_REASON));
            let what = if subject["ran"] == true {
                "ran in part"
            } else {
                "could not run"
            };
            let (name, store) = (name(subject), text_of(&subject["store"]));
            let _ = writeln!(text, "- {name}, {store}, {what}: {reason}");
        }
    }
    if text.is_empty() {
        return "All peers ran.\n\n".to_owned();
    }
    format!("### Peers that did not run, or ran in part\n\n{text}\n")
}

fn name(subject: &Value) -> String {
    let name = text_of(&subject["name"]);
    if subject["ours"] == true {
        return format!("**{name}**");
    }
    name.to_owned()
}
