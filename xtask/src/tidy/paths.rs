//! Rule: nothing in the repository depends on one machine: no paths into home or build directories,
//! no package registry but crates.io.

use super::tree::{Problem, SourceFile, Tree};

/// Directories in which developers and build machines keep their checkouts.
const MACHINE_PATHS: [&str; 7] = [
    "/home/",
    "/root/",
    "/Users/",
    "/work/",
    "/farm/",
    "/builds/",
    "/workspace/",
];
const CHECKED_EXTENSIONS: [&str; 9] = [
    "rs", "md", "toml", "sql", "sh", "yml", "yaml", "json", "html",
];
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files().filter(|file| is_checked(file)) {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(path) = MACHINE_PATHS.iter().find(|path| names_path(line, path)) {
                problems.push(file.problem(
                    index + 1,
                    format!("a path of one machine ({path}…): make it relative to the repository"),
                ));
            }
            if is_registry_setting(file, line) {
                problems.push(file.problem(
                    index + 1,
                    "only crates.io: registries and mirrors belong in the user's own cargo \
                     configuration",
                ));
            }
        }
    }
    problems
}

fn is_checked(file: &SourceFile) -> bool {
    let is_text = CHECKED_EXTENSIONS
        .iter()
        .any(|extension| file.has_extension(extension));
    // Test data may contain any path.
    let is_data = file.path.contains("/vectors/") || file.path.contains("/corpus/");
    (is_text || file.path.starts_with(".ci/") || file.path == "Cargo.lock")
        && !is_data
        && !file.is_a_check()
}

/// Whether this is the start of a path, and not the middle of a longer one such as `docs/work/`.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        before.is_none_or(|c| !(c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | '}')))
    })
}

fn is_registry_setting(file: &SourceFile, line: &str) -> bool {
    let line = line.trim();
    if file.path.ends_with("Cargo.lock") {
        return line.starts_with("source = ") && !line.contains(CRATES_IO);
    }
    let is_cargo_setting = file.path.starts_with(".cargo/") || file.path.ends_with("Cargo.toml");
    is_cargo_setting
        && (line.starts_with("[source")
            || line.starts_with("[registr")
            || line.contains("registry =")
            || line.contains("replace-with"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::fake(&[(path, text)])).len()
    }

    #[test]
    fn machine_paths_are_found() {
        assert_eq!(count("docs/a.md", "see /home/me/notes"), 1);
        assert_eq!(count(".ci/run", "cd /root/semel"), 1);
        assert_eq!(count("crates/a/src/lib.rs", "open(\"/work/a\")"), 1);
    }

    #[test]
    fn longer_paths_and_data_pass() {
        assert_eq!(
            count("docs/a.md", "https://example.com/home/ and docs/work/a"),
            0
        );
        assert_eq!(count("crates/a/tests/vectors/a.json", "/home/me"), 0);
    }

    #[test]
    fn other_registries_are_found() {
        assert_eq!(
            count(
                ".cargo/config.toml",
                "[source.crates-io]\nreplace-with = \"m\""
            ),
            2
        );
        assert_eq!(
            count(
                "crates/a/Cargo.toml",
                "b = { version = \"1\", registry = \"m\" }"
            ),
            1
        );
        assert_eq!(
            count("Cargo.lock", "source = \"git+https://example.com/b\""),
            1
        );
        assert_eq!(count("Cargo.lock", &format!("source = \"{CRATES_IO}\"")), 0);
    }
}
