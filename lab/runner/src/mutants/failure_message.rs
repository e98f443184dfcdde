//! The message of a failed test, in one line without paths of this machine.

/// The length to which each line is cut, so that a long one leaves room for the others.
const MAX_LENGTH: usize = 90;

/// The message of the panic that ended `test`, without the paths in `hidden`.
pub(super) fn extract(output: &str, test: &str, hidden: &[String]) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let of_thread = format!("thread '{test}' ");
    let panicked = |line: &str| line.contains(" panicked at ");
    // A handler may have panicked on purpose before, in the same thread, so the last panic of the
    // test's thread counts. If there is none, the last panic of any thread.
    let last = lines
        .iter()
        .rposition(|line| panicked(line) && line.starts_with(&of_thread))
        .or_else(|| lines.iter().rposition(|line| panicked(line)));
    let mut message = String::new();
    match last {
        Some(position) => {
            for line in &lines[position + 1..] {
                // An assertion prints its two sides after its first line.
                let is_side = ["left:", "right:"]
                    .iter()
                    .any(|side| line.trim_start().starts_with(side));
                if !message.is_empty() && !is_side {
                    break;
                }
                if !message.is_empty() {
                    message.push_str("; ");
                }
                message.push_str(&shorten(line, hidden));
            }
        }
        None => message = shorten(lines.last().unwrap_or(&"nothing"), hidden),
    }
    message
}

/// Removes paths from a line and cuts it.
fn shorten(line: &str, hidden: &[String]) -> String {
    let mut message = line.trim().to_owned();
    for path in hidden {
        message = message.replace(path.as_str(), "…");
    }
    if message.chars().count() > MAX_LENGTH {
        message = message.chars().take(MAX_LENGTH).collect::<String>() + "…";
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_panic_of_the_test_is_reported_with_both_sides() {
        let output = "
running 1 test

thread 'layer::a' (7) panicked at crates/a/tests/app.rs:1:2:
on purpose

thread 'layer::a' (7) panicked at crates/a/tests/a.rs:5:9:
assertion `left == right` failed: {}
  left: 201
 right: 503
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

thread 'tokio-runtime-worker' (8) panicked at crates/a/src/b.rs:3:4:
the listener is gone
";
        assert_eq!(
            extract(output, "layer::a", &[]),
            "assertion `left == right` failed: {}; left: 201; right: 503"
        );
    }

    #[test]
    fn a_line_is_short_and_has_no_paths() {
        let output = format!(
            "thread 'a' panicked at a:1:1:\nin /w/tree/db: {}",
            "x".repeat(999)
        );
        let message = extract(&output, "other", &["/w/tree".to_owned()]);
        assert!(message.starts_with("in …/db: xxx"));
        assert_eq!(message.chars().count(), MAX_LENGTH + 1);
    }

    #[test]
    fn without_a_panic_the_last_line_counts() {
        assert_eq!(
            extract("running 1 test\nstack overflow\n", "a", &[]),
            "stack overflow"
        );
        assert_eq!(extract("", "a", &[]), "nothing");
    }
}
