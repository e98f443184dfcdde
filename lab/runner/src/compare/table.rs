//! The results as text tables.

use std::fmt::Write as _;

use serde_json::Value;

use super::outcome::FAULTS;

/// Three tables: the rates, the probes, and the final answers to retries.
pub(super) fn render(subjects: &[Value]) -> String {
    let mut text = String::new();
    rates(&mut text, subjects);
    probes(&mut text, subjects);
    ends(&mut text, subjects);
    text
}

fn rates(text: &mut String, subjects: &[Value]) {
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        text,
        "\n{:<26}{:<27}{:>9}{:>8}{:>8}{:>11}{:>8}{:>8}{:>15}",
        "", "store", "new/s", "p50 ms", "p99 ms", "replays/s", "p50 ms", "p99 ms", "CPU µs a new",
    );
    for subject in subjects {
        let (name, store) = (text_field(subject, "name"), text_field(subject, "store"));
        let _ = write!(text, "{name:<26}{store:<27}");
        if subject["new"].is_object() {
            for (kind, width) in [("new", 9), ("replay", 11)] {
                let part = &subject[kind];
                let _ = write!(
                    text,
                    "{}{}{}",
                    number(&part["per_second"], width, 0),
                    number(&part["p50_ms"], 8, 2),
                    number(&part["p99_ms"], 8, 2),
                );
            }
            let cpu = &subject["new"]["cpu_us"];
            let of = |name: &str| cpu[name].as_f64().unwrap_or_default();
            let cost = format!("{:.0} + {:.0}", of("subject") + of("beside"), of("store"));
            let _ = write!(text, "{cost:>15}");
        }
        let _ = writeln!(text, "  {}", text_field(subject, "reason"));
    }
}

fn number(value: &Value, width: usize, digits: usize) -> String {
    value.as_f64().map_or_else(
        || format!("{:>width$}", "–"),
        |value| format!("{value:>width$.digits$}"),
    )
}

/// A row for each probe and a column for each subject that ran.
fn probes(text: &mut String, subjects: &[Value]) {
    let ran = probed(subjects);
    let Some(first) = ran.first() else {
        return;
    };
    let _ = writeln!(text);
    for (number, subject) in ran.iter().enumerate() {
        let (name, store) = (text_field(subject, "name"), text_field(subject, "store"));
        let _ = writeln!(text, "{:>3}  {name}, {store}", number + 1);
    }
    let _ = write!(text, "\n{:<26}", "");
    for number in 1..=ran.len() {
        let _ = write!(text, "{number:>6}");
    }
    let _ = writeln!(text);
    for probe in first["probes"].as_array().into_iter().flatten() {
        let _ = write!(text, "{:<26}", text_field(probe, "id"));
        for subject in &ran {
            let _ = write!(text, "{:>6}", short(subject, &probe["id"]));
        }
        let _ = writeln!(text);
    }
    let _ = writeln!(
        text,
        "\n(no: does not hold, and is not promised; – not seen: nothing to break or to count it \
         by; . does not apply)"
    );
    for subject in &ran {
        let held = subject["probes"].as_array().into_iter().flatten();
        let failed = held.filter(|probe| probe["verdict"] == "fail");
        let failed: Vec<_> = failed.map(|probe| text_field(probe, "id")).collect();
        if !failed.is_empty() {
            let (name, store) = (text_field(subject, "name"), text_field(subject, "store"));
            let _ = writeln!(text, "{name}, {store}: fails {}", failed.join(", "));
        }
    }
}

/// The final answers to retries, without a verdict.
fn ends(text: &mut String, subjects: &[Value]) {
    for subject in probed(subjects) {
        let (name, store) = (text_field(subject, "name"), text_field(subject, "store"));
        let _ = writeln!(text, "\n{name}, {store}: the final answer to a retry");
        for id in FAULTS {
            let end = found(subject, &id.into()).map_or("", |probe| text_field(probe, "end"));
            let end = if end.is_empty() { "–" } else { end };
            let _ = writeln!(text, "  {id:<26}{end}");
        }
        let _ = writeln!(
            text,
            "  {:<26}{} (documented, not seen)",
            "and then",
            text_field(subject, "and_then")
        );
    }
}

fn probed(subjects: &[Value]) -> Vec<&Value> {
    let some = |subject: &&Value| {
        let probes = subject["probes"].as_array();
        probes.is_some_and(|list| !list.is_empty())
    };
    subjects.iter().filter(some).collect()
}

fn found<'a>(subject: &'a Value, id: &Value) -> Option<&'a Value> {
    let probes = subject["probes"].as_array().into_iter().flatten();
    let mut found = probes.filter(|probe| probe["id"] == *id);
    found.next()
}

fn short(subject: &Value, id: &Value) -> &'static str {
    let excused = subject["not_promised"].as_array().into_iter().flatten();
    let excused = excused.into_iter().any(|one| one["id"] == *id);
    match found(subject, id).map_or("", |probe| text_field(probe, "verdict")) {
        "pass" => "pass",
        "fail" if excused => "no",
        "fail" => "FAIL",
        "not_seen" => "–",
        _ => ".",
    }
}

fn text_field<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_tables_have_rates_verdicts_and_reasons() {
        let rates = json!({"per_second": 1234.5, "p50_ms": 0.5, "p99_ms": 2.25,
            "cpu_us": {"subject": 40.0, "beside": 10.0, "store": 7.0}});
        let probe = |verdict| json!({"id": "replay", "verdict": verdict, "seen": "x"});
        let text = render(&[
            json!({"name": "a", "store": "SQLite", "new": rates, "replay": rates,
                   "probes": [probe("pass")]}),
            json!({"name": "b", "store": "Redis", "new": rates, "replay": rates,
                   "probes": [probe("fail")], "and_then": "an operator"}),
            json!({"name": "c", "store": "memory", "reason": "does not start", "probes": []}),
            json!({"name": "d", "store": "memory", "probes": [probe("fail"),
                   {"id": "crash_and_restart", "verdict": "pass", "end": "the answer"}],
                   "not_promised": [{"id": "replay", "reason": "documented"}]}),
        ]);
        for expected in [
            "1234",
            "2.25",
            "50 + 7",
            "does not start",
            "replay                      pass  FAIL    no",
            "b, Redis: fails replay",
            "crash_and_restart         the answer",
            "an operator (documented, not seen)",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }
}
