//! Rule: every crate takes the workspace's lints, and these forbid `unsafe`.

use super::tree::{Problem, SourceFile, Tree};

const ROOT_MANIFEST: &str = "Cargo.toml";

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files() {
        // The fuzz targets are a workspace of their own: their macros need `unsafe`.
        if file.path.ends_with("/Cargo.toml")
            && !file.path.starts_with("crates/semel-core/fuzz/")
            && !is_only_a_workspace(file)
            && !section_has(file, "[lints]", "workspace = true")
        {
            problems.push(file.problem(
                0,
                "the crate does not take the workspace's lints: add `[lints]` with \
                 `workspace = true`",
            ));
        }
    }
    if let Some(root) = tree.file(ROOT_MANIFEST)
        && !section_has(root, "[workspace.lints.rust]", "unsafe_code = \"forbid\"")
    {
        problems.push(root.problem(
            0,
            "`unsafe` is forbidden: keep `unsafe_code = \"forbid\"` in `[workspace.lints.rust]`",
        ));
    }
    problems
}

/// A manifest without a crate: its members are checked themselves.
fn is_only_a_workspace(file: &SourceFile) -> bool {
    let has = |section| file.text.lines().any(|line| line.trim() == section);
    has("[workspace]") && !has("[package]")
}

fn section_has(file: &SourceFile, section: &str, setting: &str) -> bool {
    file.text
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != section)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .any(|line| line == setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_without_the_lints_is_found() {
        let tree = Tree::fake(&[
            (
                "Cargo.toml",
                "[workspace.lints.rust]\nunsafe_code = \"warn\"\n",
            ),
            (
                "crates/a/Cargo.toml",
                "[lints]\n[dependencies]\nworkspace = true\n",
            ),
            ("b/Cargo.toml", "[package]\n[workspace]\n"),
        ]);
        assert_eq!(check(&tree).len(), 3);
    }

    #[test]
    fn crates_with_the_lints_pass() {
        let tree = Tree::fake(&[
            (
                "Cargo.toml",
                "[workspace.lints.rust]\nunsafe_code = \"forbid\"\n",
            ),
            ("crates/a/Cargo.toml", "[lints]\nworkspace = true\n"),
            ("crates/semel-core/fuzz/Cargo.toml", "[package]\n"),
            ("lab/peers/rust/Cargo.toml", "[workspace]\n"),
        ]);
        assert_eq!(check(&tree), []);
    }
}
