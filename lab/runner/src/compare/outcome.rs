//! Summarises the final answer to a retry after a fault. A probe passes where nothing was executed
//! twice, whether the client then gets its answer or a 409 each time. The summary shows which.

use serde_json::Value;

/// The probes that inject a fault while an operation is in progress.
pub(super) const FAULTS: [&str; 4] = [
    "crash_and_restart",
    "failed_completion",
    "timeout_after_effect",
    "disconnect_after_effect",
];
/// The probe that shows the size limit of stored responses.
pub(super) const OVERSIZED: &str = "oversized_response";

/// The summary for a probe, if it has one.
pub(super) fn final_answer(probe: &Value, patience: &str) -> Option<String> {
    let id = probe["id"].as_str()?;
    let seen = seen(probe);
    // A probe without a verdict may still have an answer.
    if !matches!(probe["verdict"].as_str()?, "pass" | "fail") && retry(&seen).is_none() {
        return None;
    }
    if id == OVERSIZED {
        return oversized(&seen);
    }
    FAULTS.contains(&id).then(|| end(probe, &seen, patience))
}

/// The observations, from one text or a list of lines.
fn seen(probe: &Value) -> String {
    match &probe["seen"] {
        Value::String(text) => text.clone(),
        Value::Array(lines) => {
            let lines: Vec<&str> = lines.iter().filter_map(Value::as_str).collect();
            lines.join("; ")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

fn end(probe: &Value, seen: &str, patience: &str) -> String {
    let executed = last(seen, "effects: ").and_then(number);
    let line = retry(seen);
    let retry = line.or_else(|| answered_with(probe));
    let again = executed.is_some_and(|times| times > 1);
    let Some(retry) = retry else {
        return if again { "executed again" } else { "no answer" }.to_owned();
    };
    let Some(status) = number(retry) else {
        let none = format!("no answer, still after {patience}");
        return if again {
            format!("executed again, {none}")
        } else {
            none
        };
    };
    if again {
        return match status {
            200..=299 => "executed again".to_owned(),
            _ => format!("executed again, then {status}"),
        };
    }
    if (200..=299).contains(&status) {
        return match (executed, probe["verdict"].as_str()) {
            (Some(0), _) => "success, and nothing happened".to_owned(),
            (_, Some("fail")) => "another answer".to_owned(),
            _ => "the answer".to_owned(),
        };
    }
    let answer = retry.split("; ").next().unwrap_or(retry);
    let mut summary = if line.is_none() {
        status.to_string()
    } else if answer.contains(", replayed") {
        format!("the same {status}, replayed")
    } else if retry.contains(" tries)") {
        // Stored like any answer, but not marked as a replay.
        let same = last(seen, "first: ").and_then(number) == Some(status);
        let same = if same { "the same " } else { "" };
        format!("{same}{status}, still after {patience}")
    } else {
        format!("{status}, said to be final")
    };
    // A success and a later, different answer are both shown.
    if let Some(first @ 200..=299) = last(seen, "first: ").and_then(number)
        && !is_of_before(probe)
    {
        summary = format!("{summary}; the first answer was {first}");
    }
    summary
}

/// In this probe the first answer belongs to another operation, which ended before the crash.
fn is_of_before(probe: &Value) -> bool {
    probe["id"] == "crash_and_restart"
}

fn oversized(seen: &str) -> Option<String> {
    let status = number(retry(seen)?)?;
    Some(if (200..=299).contains(&status) {
        "stored".to_owned()
    } else {
        format!("not stored, {status}")
    })
}

/// The last answer to a retry.
fn retry(seen: &str) -> Option<&str> {
    let lines = ["retry: ", "retry after the end of the first: "];
    let answers = lines.into_iter().filter_map(|label| last(seen, label));
    // Each extends to the end of the text: the shortest one started last.
    answers.min_by_key(|line| line.len())
}

/// The text after the last line with this label. A line starts the text or follows a semicolon.
fn last<'a>(seen: &'a str, label: &str) -> Option<&'a str> {
    let later = seen.rfind(&format!("; {label}")).map(|at| at + 2);
    let first = seen.starts_with(label).then_some(0);
    let at = later.or(first)?;
    Some(&seen[at + label.len()..])
}

/// The same from a note, for reports without these lines.
fn answered_with(probe: &Value) -> Option<&str> {
    let notes = probe["notes"].as_array()?.iter().rev();
    let mut answers = notes.filter_map(|note| note.as_str()?.split_once("answered with "));
    answers.next().map(|(_, rest)| rest)
}

fn number(text: &str) -> Option<u64> {
    let digits = text.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(id: &str, verdict: &str, seen: &str) -> String {
        let probe = json!({ "id": id, "verdict": verdict, "seen": seen, "notes": [] });
        final_answer(&probe, "12 s").unwrap_or_default()
    }

    #[test]
    fn different_passes_have_different_summaries() {
        for (verdict, seen, expected) in [
            (
                "pass",
                r#"first: 201 {"a":1}; retry: 201, replayed {"a":1}; effects: 1"#,
                "the answer",
            ),
            (
                "pass",
                r#"first: no answer (closed); retry: 409 {"b; c":1} (after 16 tries); effects: 1"#,
                "409, still after 12 s",
            ),
            (
                "pass",
                "first: 504 x; retry: 504 x (after 9 tries); effects: 1",
                "the same 504, still after 12 s",
            ),
            (
                "pass",
                "first: 504 x; retry: 504, replayed x; effects: 1",
                "the same 504, replayed",
            ),
            ("pass", "retry: 422 x; effects: 1", "422, said to be final"),
            (
                "pass",
                "retry: no answer (closed) (after 9 tries); effects: 1",
                "no answer, still after 12 s",
            ),
            (
                "fail",
                "it was executed 2 times; first: 504; retry: 201 x; effects: 2",
                "executed again",
            ),
            (
                "fail",
                "a retry was given another answer; retry: 201 x; effects: 1",
                "another answer",
            ),
            (
                "fail",
                "success was answered; retry: 201 x; effects: 0",
                "success, and nothing happened",
            ),
            (
                "fail",
                "a retry was not given the first answer, but 409; first: 201 x; retry: 409 y (after 16 tries); effects: 1",
                "409, still after 12 s; the first answer was 201",
            ),
            ("pass", "something else entirely", "no answer"),
            ("not_seen", "needs a store", ""),
            (
                "not_seen",
                "indeterminate; retry: 503 x (after 9 tries); effects: 1",
                "503, still after 12 s",
            ),
        ] {
            assert_eq!(of("failed_completion", verdict, seen), expected, "{seen}");
        }
        let crashed =
            "first: 201 x; under way: no answer; retry: 409 y (after 3 tries); effects: 1";
        assert_eq!(
            of("crash_and_restart", "pass", crashed),
            "409, still after 12 s"
        );
        assert_eq!(of("replay", "pass", "retry: 201"), "");
    }

    #[test]
    fn notes_and_lists_are_parsed() {
        let probe = json!({ "id": "crash_and_restart", "verdict": "pass",
            "seen": ["under way: no answer", "effects: 1"],
            "notes": ["it happened once, and the retry is still answered with 503 x: find out"] });
        assert_eq!(final_answer(&probe, "12 s").unwrap(), "503");
    }

    #[test]
    fn a_large_answer_is_stored_or_not() {
        assert_eq!(
            of(
                OVERSIZED,
                "pass",
                "first: 201 x; retry: 201, replayed x; effects: 1"
            ),
            "stored"
        );
        assert_eq!(
            of(OVERSIZED, "pass", "first: 201 x; retry: 422 x; effects: 1"),
            "not stored, 422"
        );
    }
}
