//! The section about the peers.

use std::fmt::Write as _;

use serde_json::Value;

use super::text::{Table, count, cut, decimal, list, plain, quoted, word};

/// Enough of a reason to know where to look.
const MAX_REASON: usize = 240;

pub(super) fn section(content: &Value) -> String {
    let subjects = list(&content["subjects"]);
    let mut text = String::from(
        "## Beside others\n\nThe same load and the same black-box probes against Semel and its \
         peers, one at a time, on the machine above. The peers come from their registries, with \
         small applications of ours around them; a peer may do better in hands that know it \
         better. `×` is throughput beside ours on the same kind of store; below 1 the peer is \
         slower. Peers that promise less also do less for each request, which the second table \
         shows.\n\n![Throughput, on a logarithmic scale](images/evidence-throughput.svg)\n\n",
    );
    text.push_str(&figures(subjects));
    text.push_str(&probes(subjects));
    text.push_str(&absent(subjects));
    text
}

fn figures(subjects: &[Value]) -> String {
    let head = ["", "version", "store", "new/s", "×", "p50 ms", "p99 ms"];
    let replays = ["replays/s", "×", "p50 ms", "p99 ms", "beside"];
    let mut table = Table::new(&[&head[..], &replays[..]].concat());
    for subject in subjects.iter().filter(|subject| subject["new"].is_object()) {
        let ours = ours_like(subjects, subject);
        let mut row = vec![
            name(subject),
            word(&subject["version"]).to_owned(),
            word(&subject["store"]).to_owned(),
        ];
        for kind in ["new", "replay"] {
            let (figures, beside) = (&subject[kind], ours.map(|ours| &ours[kind]));
            row.extend([
                count(&figures["per_second"]),
                ratio(figures, beside),
                decimal(&figures["p50_ms"], 2),
                decimal(&figures["p99_ms"], 2),
            ]);
        }
        let beside = ours.map_or_else(|| "–".to_owned(), |ours| word(&ours["name"]).to_owned());
        row.push(beside);
        table.row(row);
    }
    table.done()
}

/// Ours with the same store, else with one of the same kind. None for ours itself.
fn ours_like<'a>(subjects: &'a [Value], subject: &Value) -> Option<&'a Value> {
    if subject["ours"] == true {
        return None;
    }
    let like = |same: &dyn Fn(&str, &str) -> bool| {
        subjects.iter().find(|ours| {
            ours["ours"] == true
                && ours["new"].is_object()
                && same(word(&ours["store"]), word(&subject["store"]))
        })
    };
    like(&|ours, theirs| ours == theirs)
        .or_else(|| like(&|ours, theirs| kind(ours) == kind(theirs)))
}

/// `PostgreSQL` of `PostgreSQL, Redis as cache`.
fn kind(store: &str) -> &str {
    store.split([',', ' ']).next().unwrap_or_default()
}

fn ratio(figures: &Value, beside: Option<&Value>) -> String {
    let rate = |figures: &Value| figures["per_second"].as_f64().filter(|rate| *rate > 0.0);
    match (rate(figures), beside.and_then(rate)) {
        (Some(theirs), Some(ours)) => format!("×{:.2}", theirs / ours),
        (_, _) => "–".to_owned(),
    }
}

/// A row for each subject and a column for each probe would be too wide: the other way round.
fn probes(subjects: &[Value]) -> String {
    let ran = |subject: &&Value| !list(&subject["probes"]).is_empty();
    let ran: Vec<&Value> = subjects.iter().filter(ran).collect();
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
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}. {}, {store}{note}", number + 1, name(subject));
    }
    let numbers: Vec<String> = (1..=ran.len()).map(|number| number.to_string()).collect();
    let head: Vec<&str> = ["probe"]
        .into_iter()
        .chain(numbers.iter().map(String::as_str))
        .collect();
    let mut table = Table::new(&head);
    for id in ids {
        let verdicts = ran.iter().map(|subject| verdict(subject, id).to_owned());
        table.row([quoted(id)].into_iter().chain(verdicts));
    }
    text.push('\n');
    text.push_str(&table.done());
    text.push_str(
        "**fail**: a guarantee did not hold. –: could not be seen from outside. Empty: does not \
         apply, or was not asked for.\n\n",
    );
    text.push_str(&failures(&ran));
    text
}

fn verdict(subject: &Value, id: &str) -> &'static str {
    let probe = list(&subject["probes"])
        .iter()
        .find(|probe| probe["id"] == id);
    match probe.map(|probe| word(&probe["verdict"])) {
        Some("pass") => "pass",
        Some("fail") => "**fail**",
        Some("not_seen") => "–",
        Some(_) | None => "",
    }
}

fn failures(ran: &[&Value]) -> String {
    let mut text = String::new();
    for subject in ran {
        for probe in list(&subject["probes"]) {
            if probe["verdict"] == "fail" {
                let _ = writeln!(
                    text,
                    "- {}, {}, {}: {}",
                    name(subject),
                    word(&subject["store"]),
                    quoted(word(&probe["id"])),
                    plain(&cut(word(&probe["seen"]), MAX_REASON)),
                );
            }
        }
    }
    text + "\n"
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
