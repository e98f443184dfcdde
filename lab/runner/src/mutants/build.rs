//! Builds all mutants at once, and finds the test binaries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::list::TestName;
use crate::process::{Interrupt, cargo, run_interruptible};

/// The name for a package's unit tests; an integration test has a name of its own.
const UNIT_TESTS: &str = "lib";

/// Test binaries by the directory of their package and by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Binaries(BTreeMap<(String, String), PathBuf>);

impl Binaries {
    pub(super) fn of(&self, test: &TestName) -> Result<&Path> {
        let directory = test.package_directory();
        let directory = directory.rsplit('/').next().unwrap_or_default();
        let name = (directory.to_owned(), test.binary.clone());
        self.0.get(&name).map(PathBuf::as_path).with_context(|| {
            format!("{test}: there is no test binary of that name in that package")
        })
    }

    /// Reads the messages of cargo.
    fn read(text: &str) -> Result<Self> {
        let mut found = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with('{')) {
            let message: Value =
                serde_json::from_str(line).context("cargo printed a line that is not JSON")?;
            let is_test = message["profile"]["test"] == true;
            let (Some(executable), true) = (message["executable"].as_str(), is_test) else {
                continue;
            };
            let target = &message["target"];
            let (Some(name), Some(kind), Some(package)) = (
                target["name"].as_str(),
                target["kind"][0].as_str(),
                directory(&message["manifest_path"]),
            ) else {
                bail!("cargo's message names no target: {line}");
            };
            let binary = if kind == "test" { name } else { UNIT_TESTS };
            found.insert((package, binary.to_owned()), executable.into());
        }
        Ok(Self(found))
    }
}

/// The directory name of a package: cargo's messages do not contain the package's name.
fn directory(manifest: &Value) -> Option<String> {
    let directory = Path::new(manifest.as_str()?).parent()?;
    Some(directory.file_name()?.to_str()?.to_owned())
}

/// Builds the binaries with these tests, in one call: the features of a crate depend on the selected
/// packages, and several calls would build the same crates several times.
pub(super) fn build(
    tree: &Path,
    target: &Path,
    tests: &BTreeSet<&TestName>,
    interrupt: &Interrupt,
) -> Result<Binaries> {
    fs::create_dir_all(target)?;
    let messages = target.join("messages.json");
    let mut command = cargo(tree);
    command
        .args(["test", "--locked", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .arg("--all-features")
        .args(selection(tests))
        .env("CARGO_TARGET_DIR", target)
        // The copy is rarely built twice; incremental artefacts would only use disk space.
        .env("CARGO_INCREMENTAL", "0")
        .env_remove(super::VARIABLE)
        .envs(rustflags())
        .stdout(File::create(&messages)?);
    run_interruptible(&mut command, interrupt)?;
    Binaries::read(&fs::read_to_string(messages)?)
}

/// The current flags without `-D warnings`: a mutant may cause warnings.
fn rustflags() -> Option<(&'static str, String)> {
    let flags = std::env::var("RUSTFLAGS").ok()?;
    let lenient = flags.replace("-Dwarnings", "").replace("-D warnings", "");
    Some(("RUSTFLAGS", lenient))
}

fn selection(tests: &BTreeSet<&TestName>) -> Vec<String> {
    let packages: BTreeSet<&str> = tests.iter().map(|test| test.package.as_str()).collect();
    let binaries: BTreeSet<&str> = tests.iter().map(|test| test.binary.as_str()).collect();
    let mut arguments = Vec::new();
    for package in packages {
        arguments.extend(["--package".to_owned(), package.to_owned()]);
    }
    for binary in binaries {
        if binary == UNIT_TESTS {
            arguments.push("--lib".to_owned());
        } else {
            arguments.extend(["--test".to_owned(), binary.to_owned()]);
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(text: &str) -> TestName {
        TestName::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn every_package_and_every_binary_is_named_once() {
        let tests = [test("a/lib/x"), test("a/lib/y"), test("b/t/z")];
        assert_eq!(
            selection(&tests.iter().collect()).join(" "),
            "--package a --package b --lib --test t"
        );
    }

    #[test]
    fn binaries_are_found_in_the_messages_of_cargo() {
        let messages = r#"
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"kind":["lib"],"name":"a"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"kind":["lib"],"name":"a"},"profile":{"test":true},"executable":"/t/a-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/b/Cargo.toml","target":{"kind":["test"],"name":"t"},"profile":{"test":true},"executable":"/t/t-2"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/b/Cargo.toml","target":{"kind":["bin"],"name":"t"},"profile":{"test":false},"executable":"/t/b"}
{"reason":"build-finished","success":true}"#;
        let binaries = Binaries::read(messages).unwrap();
        assert_eq!(binaries.of(&test("a/lib/x")).unwrap(), Path::new("/t/a-1"));
        assert_eq!(binaries.of(&test("b/t/x")).unwrap(), Path::new("/t/t-2"));
        let error = binaries.of(&test("b/lib/x")).unwrap_err().to_string();
        assert!(error.starts_with("b/lib/x: there is no test binary"));
    }
}
