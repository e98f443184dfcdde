//! What was found, for a person to read.

use std::fmt::Write as _;

use serde_json::Value;

/// Two tables: how fast, and what holds.
pub(super) fn rendered(subjects: &[Value]) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "\n{:<21}{:<27}{:>9}{:>8}{:>8}{:>11}{:>8}{:>8}",
        "", "store", "new/s", "p50 ms", "p99 ms", "replays/s", "p50 ms", "p99 ms",
    );
    for subject in subjects {
        let _ = write!(
            text,
            "{:<21}{:<27}",
            word(subject, "name"),
            word(subject, "store")
        );
        if subject["new"].is_object() {
            let [new, replay] = [&subject["new"], &subject["replay"]];
            let _ = write!(
                text,
                "{}{}{}",
                number(&new["per_second"], 9, 0),
                number(&new["p50_ms"], 8, 2),
                number(&new["p99_ms"], 8, 2),
            );
            let _ = write!(
                text,
                "{}{}{}",
                number(&replay["per_second"], 11, 0),
                number(&replay["p50_ms"], 8, 2),
                number(&replay["p99_ms"], 8, 2),
            );
        }
        let reason = word(subject, "reason");
        let _ = writeln!(
            text,
            "{}{reason}",
            if reason.is_empty() { "" } else { "  " }
        );
    }
    probes(&mut text, subjects);
    text
}

fn number(value: &Value, width: usize, digits: usize) -> String {
    value.as_f64().map_or_else(
        || format!("{:>width$}", "–"),
        |value| format!("{value:>width$.digits$}"),
    )
}

/// A row for each probe and a column for each subject that ran.
fn probes(text: &mut String, subjects: &[Value]) {
    let ran: Vec<&Value> = subjects
        .iter()
        .filter(|subject| {
            subject["probes"]
                .as_array()
                .is_some_and(|list| !list.is_empty())
        })
        .collect();
    let Some(first) = ran.first() else {
        return;
    };
    let _ = writeln!(text);
    for (number, subject) in ran.iter().enumerate() {
        let (name, store) = (word(subject, "name"), word(subject, "store"));
        let _ = writeln!(text, "{:>3}  {name}, {store}", number + 1);
    }
    let _ = write!(text, "\n{:<26}", "");
    for number in 1..=ran.len() {
        let _ = write!(text, "{number:>6}");
    }
    let _ = writeln!(text);
    for probe in first["probes"].as_array().into_iter().flatten() {
        let _ = write!(text, "{:<26}", word(probe, "id"));
        for subject in &ran {
            let _ = write!(text, "{:>6}", short(verdict(subject, &probe["id"])));
        }
        let _ = writeln!(text);
    }
    let _ = writeln!(
        text,
        "\n(– not seen: nothing to break or to count it by; . does not apply)"
    );
    for subject in &ran {
        let held = subject["probes"].as_array().into_iter().flatten();
        let failed = held.filter(|probe| probe["verdict"] == "fail");
        let failed: Vec<_> = failed.map(|probe| word(probe, "id")).collect();
        if !failed.is_empty() {
            let (name, store) = (word(subject, "name"), word(subject, "store"));
            let _ = writeln!(text, "{name}, {store}: fails {}", failed.join(", "));
        }
    }
}

fn verdict<'a>(subject: &'a Value, id: &Value) -> &'a str {
    let probes = subject["probes"].as_array().into_iter().flatten();
    let mut found = probes.filter(|probe| probe["id"] == *id);
    found.next().map_or("", |probe| word(probe, "verdict"))
}

fn short(verdict: &str) -> &str {
    match verdict {
        "pass" => "pass",
        "fail" => "FAIL",
        "not_seen" => "–",
        _ => ".",
    }
}

fn word<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_tables_have_figures_verdicts_and_reasons() {
        let figures = json!({"per_second": 1234.5, "p50_ms": 0.5, "p99_ms": 2.25});
        let probe = |verdict| json!({"id": "replay", "verdict": verdict, "seen": "x"});
        let text = rendered(&[
            json!({"name": "a", "store": "SQLite", "new": figures, "replay": figures,
                   "probes": [probe("pass")]}),
            json!({"name": "b", "store": "Redis", "new": figures, "replay": figures,
                   "probes": [probe("fail")]}),
            json!({"name": "c", "store": "memory", "reason": "does not start", "probes": []}),
        ]);
        assert!(text.contains("1234") && text.contains("2.25"), "{text}");
        assert!(text.contains("c                    memory"), "{text}");
        assert!(text.contains("does not start"), "{text}");
        assert!(
            text.contains("replay                      pass  FAIL"),
            "{text}"
        );
        assert!(text.contains("b, Redis: fails replay"), "{text}");
    }
}
