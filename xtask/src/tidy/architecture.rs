//! Rule: `ARCHITECTURE.md` is short, and every name in it exists.

use std::collections::BTreeSet;

use super::tree::{Problem, SourceFile, Tree};

const DOCUMENT: &str = "ARCHITECTURE.md";
/// The maximum length. Details of one module belong in its `//!` documentation.
const MAX_BYTES: usize = 15 * 1024;

/// A name that begins with one of these is a path.
const TOP_LEVEL: [&str; 6] = ["crates/", "deploy/", "docs/", "examples/", "lab/", "xtask/"];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let Some(document) = tree.file(DOCUMENT) else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    if document.text.len() > MAX_BYTES {
        problems.push(document.problem(
            0,
            format!(
                "{} bytes, and at most {MAX_BYTES} are allowed: move what describes one module \
                 to that module's documentation",
                document.text.len()
            ),
        ));
    }
    let words = words_of_code(tree);
    for (line, name) in names(document) {
        if !exists(tree, &words, name) {
            problems.push(document.problem(
                line,
                format!("`{name}` is neither a path nor a name in the code: correct or remove it"),
            ));
        }
    }
    problems
}

/// The names in backticks outside of code blocks, with their lines.
fn names(document: &SourceFile) -> Vec<(usize, &str)> {
    let mut in_code_block = false;
    let mut found = Vec::new();
    for (index, line) in document.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code_block = !in_code_block;
        } else if !in_code_block {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(spans.map(|name| (index + 1, name)));
        }
    }
    found
}

/// A path of the repository, or code whose every word occurs in a source file.
fn exists(tree: &Tree, words: &BTreeSet<&str>, name: &str) -> bool {
    if TOP_LEVEL
        .iter()
        .any(|directory| name.starts_with(directory))
    {
        return tree.has(name.trim_end_matches('/'));
    }
    tree.has(name)
        || split_words(name).all(|word| words.contains(word) || word.parse::<u64>().is_ok())
}

fn words_of_code(tree: &Tree) -> BTreeSet<&str> {
    let is_code = |file: &&SourceFile| {
        ["rs", "sql", "toml"]
            .iter()
            .any(|extension| file.has_extension(extension))
    };
    tree.files()
        .filter(is_code)
        .flat_map(|file| split_words(&file.text))
        .collect()
}

fn split_words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(document: &str) -> Vec<usize> {
        let tree = Tree::fake(&[
            (DOCUMENT, document),
            ("crates/a/src/lib.rs", "pub fn reserve() { Store::call }"),
        ]);
        check(&tree).iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn names_that_do_not_exist_are_reported() {
        let text = "`Store::call` in `crates/a`\n`Layer::erase`\n```\n`gone`\n```\n`crates/b/`\n";
        assert_eq!(problems(text), [2, 6]);
    }

    #[test]
    fn a_document_that_is_too_long_is_reported() {
        assert_eq!(problems(&"a".repeat(MAX_BYTES + 1)), [0]);
    }
}
