//! All mutants in one build, and where its test binaries are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::list::TestName;
use crate::process::{Interrupt, cargo, run_interruptible};

/// What stands for a package's unit tests, where an integration test has its name.
const UNIT_TESTS: &str = "lib";

/// What the tests are written with. A binary is built for every package that has one of its name,
/// so what one of these asks for is there for all.
const FEATURES: &str = "semel-http/axum,semel-postgres/sqlx";

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

    /// What cargo said it built.
    fn read(text: &str) -> Result<Self> {
        let mut found = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with('{')) {
            let message: Value =
                serde_json::from_str(line).context("cargo said what is no JSON")?;
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
                bail!("cargo does not say what it built: {line}");
            };
            let binary = if kind == "test" { name } else { UNIT_TESTS };
            found.insert((package, binary.to_owned()), executable.into());
        }
        Ok(Self(found))
    }
}

/// The last name in the path of a package: cargo does not say what the package is called.
fn directory(manifest: &Value) -> Option<String> {
    let directory = Path::new(manifest.as_str()?).parent()?;
    Some(directory.file_name()?.to_str()?.to_owned())
}

/// Builds what holds these tests. One call for all: what a crate is built with depends on what
/// it is built beside, and several calls would build the same crates in several ways.
pub(super) fn build(
    tree: &Path,
    target: &Path,
    tests: &BTreeSet<&TestName>,
    interrupt: &Interrupt,
) -> Result<Binaries> {
    fs::create_dir_all(target)?;
    let said = target.join("said.json");
    let mut command = cargo(tree);
    command
        .args(["test", "--locked", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .args(["--features", FEATURES])
        .args(selection(tests))
        .env("CARGO_TARGET_DIR", target)
        // Of the code that was there before nothing is built again; half-built pieces of it would
        // only take room.
        .env("CARGO_INCREMENTAL", "0")
        .env_remove(super::VARIABLE)
        .envs(rustflags())
        .stdout(File::create(&said)?);
    run_interruptible(&mut command, interrupt)?;
    Binaries::read(&fs::read_to_string(said)?)
}

/// As they are set, and never an error for a warning: a mutant is not good code.
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
    fn binaries_are_found_in_what_cargo_says() {
        let said = r#"
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"kind":["lib"],"name":"a"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"kind":["lib"],"name":"a"},"profile":{"test":true},"executable":"/t/a-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/b/Cargo.toml","target":{"kind":["test"],"name":"t"},"profile":{"test":true},"executable":"/t/t-2"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/b/Cargo.toml","target":{"kind":["bin"],"name":"t"},"profile":{"test":false},"executable":"/t/b"}
{"reason":"build-finished","success":true}"#;
        let binaries = Binaries::read(said).unwrap();
        assert_eq!(binaries.of(&test("a/lib/x")).unwrap(), Path::new("/t/a-1"));
        assert_eq!(binaries.of(&test("b/t/x")).unwrap(), Path::new("/t/t-2"));
        let error = binaries.of(&test("b/lib/x")).unwrap_err().to_string();
        assert!(error.starts_with("b/lib/x: there is no test binary"));
    }
}
