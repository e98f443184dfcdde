//! Rules about what must not be left in the code, and what tests must not do.

use super::tree::{Problem, SourceFile, Tree};

const LEFTOVERS: [&str; 4] = ["todo!", "unimplemented!", "dbg!", "FIXME"];
const SLEEP_REASON: &str = "// sleeps because";
/// How many lines above a sleep its reason may be.
const REASON_REACH: usize = 4;

pub(super) fn check_leftovers(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.rust_files() {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(leftover) = LEFTOVERS.iter().find(|leftover| line.contains(*leftover)) {
                problems.push(file.problem(
                    index + 1,
                    format!("`{leftover}` is left over: finish it, or open an issue and describe the current state here"),
                ));
            }
        }
    }
    problems
}

pub(super) fn check_ignored(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.rust_files() {
        for (number, line) in file.lines_of_code() {
            if line.trim_start().starts_with("#[ignore") && !line.contains('"') {
                problems.push(file.problem(
                    number,
                    "a test is ignored without a reason: write `#[ignore = \"why\"]`, or fix or \
                     delete the test",
                ));
            }
        }
    }
    problems
}

/// A sleep in a test is slow on a fast machine and wrong on a slow one.
pub(super) fn check_sleeps(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.rust_files() {
        // The conformance suite is test code that ships as a library.
        let tests_begin = if file.path.starts_with("crates/semel-testkit/") {
            0
        } else {
            file.code_lines()
        };
        for (number, line) in file
            .lines_of_code()
            .filter(|(number, _)| *number > tests_begin)
        {
            if calls_sleep(line) && !is_explained(file, number) {
                problems.push(file.problem(
                    number,
                    format!(
                        "a test sleeps: move a manual clock or wait for an event; where neither \
                         can do, give the reason above it: `{SLEEP_REASON} …`"
                    ),
                ));
            }
        }
    }
    problems
}

fn calls_sleep(line: &str) -> bool {
    line.match_indices("sleep(").any(|(start, _)| {
        let before = &line[..start];
        let is_whole_word = before
            .chars()
            .next_back()
            .is_none_or(|c| !(c.is_alphanumeric() || c == '_'));
        is_whole_word && !before.ends_with("fn ")
    })
}

fn is_explained(file: &SourceFile, number: usize) -> bool {
    let above = number.saturating_sub(REASON_REACH + 1);
    file.text
        .lines()
        .take(number)
        .skip(above)
        .any(|line| line.contains(SLEEP_REASON))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_found() {
        let text = "todo!()\nunimplemented!()\ndbg!(a)\n// FIXME: a\nfine()\n";
        assert_eq!(
            check_leftovers(&Tree::fake(&[("crates/a/src/lib.rs", text)])).len(),
            4
        );
    }

    #[test]
    fn an_ignored_test_needs_a_reason() {
        let text = "#[ignore]\n#[ignore = \"takes an hour\"]\n";
        let problems = check_ignored(&Tree::fake(&[("crates/a/tests/a.rs", text)]));
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].line, 1);
    }

    #[test]
    fn a_sleeping_test_needs_a_reason() {
        let count = |path, text| check_sleeps(&Tree::fake(&[(path, text)])).len();
        let sleep = "thread::sleep(a);\n";
        assert_eq!(count("crates/a/tests/a.rs", sleep), 1);
        assert_eq!(
            count("crates/a/tests/a.rs", "tokio::time::sleep(a).await;"),
            1
        );
        assert_eq!(
            count("crates/a/tests/a.rs", "// sleeps because of a\nsleep(a);"),
            0
        );
        assert_eq!(
            count(
                "crates/a/src/lib.rs",
                "#[cfg(test)]\nmod tests {\n sleep(a);\n}"
            ),
            1
        );
        assert_eq!(count("crates/a/src/lib.rs", sleep), 0);
        assert_eq!(count("crates/semel-testkit/src/lib.rs", sleep), 1);
        assert_eq!(
            count("crates/a/tests/a.rs", "fn sleep(a) {}\nno_sleep(a);"),
            0
        );
    }
}
