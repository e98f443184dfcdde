//! The files that the checks look at.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Generated or third-party files.
const SKIPPED: [&str; 5] = [
    "target",
    ".git",
    "crates/semel-core/fuzz/target",
    "crates/semel-core/fuzz/artifacts",
    "crates/semel-core/fuzz/corpus",
];

/// All files of the repository by their path from its root, with `/` on every system.
pub(super) struct Tree {
    files: BTreeMap<String, SourceFile>,
}

pub(super) struct SourceFile {
    pub(super) path: String,
    /// Empty when the file is not text.
    pub(super) text: String,
}

/// A broken house rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Problem {
    pub(super) path: String,
    /// Counted from 1; 0 means the whole file.
    pub(super) line: usize,
    pub(super) message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(formatter, "{}: {}", self.path, self.message),
            line => write!(formatter, "{}:{line}: {}", self.path, self.message),
        }
    }
}

impl Tree {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        read_directory(root, "", &mut files)?;
        Ok(Self { files })
    }

    /// A tree of these files, for tests of a check.
    #[cfg(test)]
    pub(super) fn fake(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| {
            let file = SourceFile {
                path: (*path).to_owned(),
                text: (*text).to_owned(),
            };
            ((*path).to_owned(), file)
        });
        Self {
            files: files.collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.values()
    }

    /// The Rust files. The checks themselves are excluded: they contain what they forbid.
    pub(super) fn rust_files(&self) -> impl Iterator<Item = &SourceFile> {
        self.files()
            .filter(|file| file.has_extension("rs") && !file.is_a_check())
    }

    pub(super) fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.get(path)
    }

    /// Whether the path is a file or a directory that holds one.
    pub(super) fn has(&self, path: &str) -> bool {
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.keys().any(|file| {
                file.strip_prefix(path)
                    .is_some_and(|rest| rest.starts_with('/'))
            })
    }
}

impl SourceFile {
    pub(super) fn has_extension(&self, extension: &str) -> bool {
        self.path
            .rsplit_once('.')
            .is_some_and(|(_, found)| found == extension)
    }

    pub(super) fn is_a_check(&self) -> bool {
        self.path.starts_with("xtask/src/tidy")
    }

    /// Code of a product crate, as opposed to its tests, benches and examples.
    pub(super) fn is_crate_source(&self) -> bool {
        self.path.starts_with("crates/") && self.path.contains("/src/") && !self.is_test_file()
    }

    /// A file that holds nothing but tests.
    pub(super) fn is_test_file(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }

    /// The number of lines before the file's test module.
    pub(super) fn code_lines(&self) -> usize {
        if self.is_test_file() {
            return 0;
        }
        let lines: Vec<&str> = self.text.lines().map(str::trim).collect();
        let tests = lines.windows(2).position(|pair| {
            // The attribute may also precede an import or a helper in the code.
            pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ")
        });
        tests.unwrap_or(lines.len())
    }

    /// Lines with their numbers, counted from 1, that are not comments.
    pub(super) fn lines_of_code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    pub(super) fn problem(&self, line: usize, message: impl Into<String>) -> Problem {
        Problem {
            path: self.path.clone(),
            line,
            message: message.into(),
        }
    }
}

fn read_directory(
    root: &Path,
    directory: &str,
    files: &mut BTreeMap<String, SourceFile>,
) -> Result<()> {
    let shown = root.join(directory);
    for entry in fs::read_dir(&shown).with_context(|| format!("cannot read {}", shown.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if directory.is_empty() {
            name
        } else {
            format!("{directory}/{name}")
        };
        let kind = entry.file_type()?;
        if SKIPPED.contains(&path.as_str()) {
            continue;
        }
        if kind.is_dir() {
            read_directory(root, &path, files)?;
        } else if kind.is_file() {
            let bytes = fs::read(entry.path())?;
            let text = String::from_utf8(bytes).unwrap_or_default();
            files.insert(path.clone(), SourceFile { path, text });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_read_without_build_output() {
        let root = tempfile::tempdir().unwrap();
        for path in [
            "target/debug/a.rs",
            ".git/config",
            "crates/a/src/lib.rs",
            "README.md",
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "text").unwrap();
        }
        let tree = Tree::read(root.path()).unwrap();
        let paths: Vec<_> = tree.files().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["README.md", "crates/a/src/lib.rs"]);
        assert!(tree.has("crates/a"));
        assert!(!tree.has("crates/a/s"));
    }

    #[test]
    fn code_ends_where_the_test_module_begins() {
        let tree = Tree::fake(&[(
            "crates/a/src/lib.rs",
            "#[cfg(test)]\nuse b;\nfn a() {}\n#[cfg(test)]\nmod tests {\n}\n",
        )]);
        assert_eq!(tree.file("crates/a/src/lib.rs").unwrap().code_lines(), 3);
    }
}
