//! What a failing test said, in one line that any machine could have printed.

/// How much of each line is told: a problem's whole text would leave no room for what was expected.
const MOST: usize = 90;

/// The message of the panic that ended `test`, without the paths in `hidden`.
pub(super) fn last_words(words: &str, test: &str, hidden: &[String]) -> String {
    let lines: Vec<&str> = words.lines().collect();
    let of_thread = format!("thread '{test}' ");
    let panicked = |line: &str| line.contains(" panicked at ");
    // A handler may panic on purpose before, in the same thread; after the one that counts the
    // test is over. Where the test runs in another thread, the last of all has to do.
    let last = lines
        .iter()
        .rposition(|line| panicked(line) && line.starts_with(&of_thread))
        .or_else(|| lines.iter().rposition(|line| panicked(line)));
    let mut said = String::new();
    match last {
        Some(place) => {
            for line in &lines[place + 1..] {
                // An assertion tells its two sides below its first line.
                let is_side = ["left:", "right:"]
                    .iter()
                    .any(|side| line.trim_start().starts_with(side));
                if !said.is_empty() && !is_side {
                    break;
                }
                if !said.is_empty() {
                    said.push_str("; ");
                }
                said.push_str(&told(line, hidden));
            }
        }
        None => said = told(lines.last().unwrap_or(&"nothing"), hidden),
    }
    said
}

/// One line, without paths, and cut.
fn told(line: &str, hidden: &[String]) -> String {
    let mut said = line.trim().to_owned();
    for path in hidden {
        said = said.replace(path.as_str(), "…");
    }
    if said.chars().count() > MOST {
        said = said.chars().take(MOST).collect::<String>() + "…";
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_that_counts_is_told_with_both_sides() {
        let words = "
running 1 test

thread 'layer::a' (7) panicked at crates/a/tests/app.rs:1:2:
on purpose

thread 'layer::a' (7) panicked at crates/a/tests/a.rs:5:9:
assertion `left == right` failed: {}
  left: 201
 right: 503
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

thread 'tokio-runtime-worker' (8) panicked at crates/a/src/b.rs:3:4:
nobody listens any more
";
        assert_eq!(
            last_words(words, "layer::a", &[]),
            "assertion `left == right` failed: {}; left: 201; right: 503"
        );
    }

    #[test]
    fn a_line_is_short_and_has_no_paths() {
        let words = format!(
            "thread 'a' panicked at a:1:1:\nin /w/tree/db: {}",
            "x".repeat(999)
        );
        let said = last_words(&words, "other", &["/w/tree".to_owned()]);
        assert!(said.starts_with("in …/db: xxx"));
        assert_eq!(said.chars().count(), MOST + 1);
    }

    #[test]
    fn without_a_panic_the_last_line_counts() {
        assert_eq!(
            last_words("running 1 test\nstack overflow\n", "a", &[]),
            "stack overflow"
        );
        assert_eq!(last_words("", "a", &[]), "nothing");
    }
}
