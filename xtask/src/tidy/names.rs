//! Rules about names and about the size of files.

use super::tree::{Problem, Tree};

const BANNED_ENDINGS: [&str; 6] = ["Manager", "Helper", "Helpers", "Util", "Utils", "Utilities"];
const BANNED_FILES: [&str; 4] = ["/helper.rs", "/helpers.rs", "/util.rs", "/utils.rs"];
/// The maximum length of a file, without its tests.
const MAX_CODE_LINES: usize = 400;

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.rust_files() {
        if BANNED_FILES
            .iter()
            .any(|ending| file.path.ends_with(ending))
        {
            problems.push(file.problem(0, "a file is named for what it holds, not for its role"));
        }
        for (number, line) in file.lines_of_code() {
            if line.contains("fn get_") {
                problems.push(file.problem(
                    number,
                    "no `get_` in names: call it what it returns, or one of the verbs of the \
                     state machine",
                ));
            }
            if let Some(name) = defined_type(line)
                && let Some(ending) = BANNED_ENDINGS.iter().find(|ending| name.ends_with(*ending))
            {
                problems.push(file.problem(
                    number,
                    format!("`{name}`: `{ending}` has no meaning; name the type after what it is"),
                ));
            }
        }
    }
    problems
}

fn defined_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    words.find(|word| matches!(*word, "struct" | "enum" | "trait" | "type"))?;
    words.next()?.split(|c: char| !c.is_alphanumeric()).next()
}

pub(super) fn check_length(tree: &Tree) -> Vec<Problem> {
    // The checks themselves are included here.
    let rust_files = tree.files().filter(|file| file.has_extension("rs"));
    rust_files
        .filter(|file| file.code_lines() > MAX_CODE_LINES)
        .map(|file| {
            let lines = file.code_lines();
            file.problem(
                0,
                format!(
                    "{lines} lines of code before the tests, at most {MAX_CODE_LINES}: give one \
                     concern a file of its own"
                ),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_names_are_found() {
        let tree = Tree::fake(&[
            (
                "crates/a/src/lib.rs",
                "pub fn get_key() {}\npub struct KeyManager<T> {}\n",
            ),
            ("crates/a/src/utils.rs", ""),
        ]);
        let found: Vec<_> = check(&tree).iter().map(|problem| problem.line).collect();
        assert_eq!(found, [1, 2, 0]);
    }

    #[test]
    fn telling_names_pass() {
        let text =
            "pub fn key() {}\npub struct Key;\n// fn get_key, a KeyManager\nmap.get_mut(k);\n";
        assert_eq!(check(&Tree::fake(&[("crates/a/src/lib.rs", text)])), []);
    }

    #[test]
    fn a_long_file_is_found_and_tests_do_not_count() {
        let long = "a();\n".repeat(MAX_CODE_LINES + 1);
        let tested = format!("a();\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        let tree = Tree::fake(&[
            ("crates/a/src/long.rs", &long),
            ("crates/a/src/tested.rs", &tested),
            ("crates/a/tests/long.rs", &long),
        ]);
        let problems = check_length(&tree);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].path, "crates/a/src/long.rs");
    }
}
