//! Rule: the released tree contains no mutant. Mutants are applied to a copy only.

use super::tree::{Problem, SourceFile, Tree};

/// The variable that selects a mutant.
const VARIABLE: &str = "SEMEL_MUTANT";
/// The files that define, run and report mutants. None of them is shipped.
const ALLOWED: [&str; 3] = ["lab/", "xtask/", "docs/"];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files().filter(|file| !may_say(file)) {
        for (index, line) in file.text.lines().enumerate() {
            if line.contains(VARIABLE) {
                problems.push(file.problem(
                    index + 1,
                    format!(
                        "`{VARIABLE}` in what is released: a guard could be switched off; \
                         mutants belong in lab/mutants"
                    ),
                ));
            }
        }
    }
    problems
}

fn may_say(file: &SourceFile) -> bool {
    let is_allowed = ALLOWED.iter().any(|place| file.path.starts_with(place));
    is_allowed || file.has_extension("md")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_in_the_product_is_found() {
        let text = "fn guarded() {\n    std::env::var_os(\"SEMEL_MUTANT\");\n}\n";
        let places = [
            "crates/a/src/lib.rs",
            "crates/a/build.rs",
            "crates/a/tests/a.rs",
            "examples/a/src/main.rs",
            "deploy/compose.yaml",
            "lab/mutants/a.toml",
            "lab/campaign/src/main.rs",
            "xtask/src/mutants.rs",
            "docs/evidence.md",
            "ARCHITECTURE.md",
        ];
        let files: Vec<(&str, &str)> = places.iter().map(|place| (*place, text)).collect();
        let problems = check(&Tree::fake(&files));
        let found: Vec<_> = problems
            .iter()
            .map(|problem| (problem.path.as_str(), problem.line))
            .collect();
        assert_eq!(
            found,
            [
                ("crates/a/build.rs", 2),
                ("crates/a/src/lib.rs", 2),
                ("crates/a/tests/a.rs", 2),
                ("deploy/compose.yaml", 2),
                ("examples/a/src/main.rs", 2),
            ]
        );
    }
}
