//! Rule: the transition function has no arm that catches everything.
//!
//! A new state or verb must not compile until every function handles it. A catch-all arm would handle
//! it silently, and perhaps wrongly.

use super::tree::{Problem, Tree};

const TRANSITION_FILES: &str = "crates/semel-core/src/transition";

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree
        .rust_files()
        .filter(|file| file.path.starts_with(TRANSITION_FILES))
    {
        let code_lines = file.code_lines();
        for (number, line) in file
            .lines_of_code()
            .filter(|(number, _)| *number <= code_lines)
        {
            if let Some((pattern, _)) = line.split_once("=>")
                && catches_everything(pattern)
            {
                problems.push(file.problem(
                    number,
                    format!(
                        "the arm `{}` catches everything: name the states that it handles",
                        pattern.trim()
                    ),
                ));
            }
        }
    }
    problems
}

/// Whether a pattern consists of `_`, or of a tuple of `_`, or binds all to a name.
fn catches_everything(pattern: &str) -> bool {
    let pattern = pattern.split(" if ").next().unwrap_or_default();
    let pattern = pattern.rsplit(['{', '|']).next().unwrap_or_default().trim();
    let is_blank = pattern.contains(['_', '.']) && pattern.chars().all(|c| "_(),. ".contains(c));
    let is_name = pattern.starts_with(|c: char| c.is_ascii_lowercase())
        && pattern
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_blank || (is_name && !matches!(pattern, "true" | "false"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        check(&Tree::fake(&[(
            "crates/semel-core/src/transition.rs",
            text,
        )]))
        .len()
    }

    #[test]
    fn arms_that_catch_everything_are_found() {
        for arm in [
            "_ => a,",
            "A | _ => a,",
            "(_, _) => a,",
            "_ if b => a,",
            "other => a,",
        ] {
            assert_eq!(count(arm), 1, "{arm}");
        }
    }

    #[test]
    fn arms_that_name_something_pass() {
        for arm in [
            "A => a,",
            "(State::A, _) => a,",
            "Some(_) => a,",
            "true => a,",
            "A { .. } => a,",
        ] {
            assert_eq!(count(arm), 0, "{arm}");
        }
        assert_eq!(count("#[cfg(test)]\nmod tests {\n_ => a,\n}"), 0);
        assert_eq!(
            check(&Tree::fake(&[("crates/semel-core/src/key.rs", "_ => a,")])),
            []
        );
    }
}
