//! `cargo xtask quick`: formatting, clippy and the tests of the packages that changed.
//!
//! No server is started: the tests run on memory and SQLite, and those that need a server skip
//! themselves. `.ci/run` runs everything.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process::{Interrupt, cargo, has_cargo_tool, run, run_interruptible, step};
use crate::servers;
use crate::test;
use crate::workspace::{self, Package};

/// The branches that a change is compared with, in this order.
const BASES: [&str; 2] = ["origin/main", "main"];

pub(crate) fn run_all(root: &Path, base: Option<&str>) -> Result<()> {
    let files = changed_files(root, base)?;
    let changed = changed_packages(&files, &workspace::packages(root)?);
    step("fmt", || run(cargo(root).args(["fmt", "--all", "--check"])))?;
    if changed.is_empty() {
        println!("no package changed: nothing to compile");
        return Ok(());
    }
    println!("changed: {}", changed.join(", "));
    step("clippy", || {
        run(cargo(root)
            .args(["clippy", "--all-targets", "--all-features"])
            .args(workspace::flags(&changed))
            .args(["--", "-D", "warnings"]))
    })?;
    step("test", || {
        let interrupt = Interrupt::listen()?;
        let mut tests = test::runner(root, has_cargo_tool(root, "nextest"));
        tests.args(workspace::flags(&changed));
        for server in servers::NEEDED {
            tests.env_remove(server.variable());
        }
        run_interruptible(&mut tests, &interrupt)
    })
}

/// Files that differ from the base, committed or not, tracked or not.
fn changed_files(root: &Path, base: Option<&str>) -> Result<Vec<String>> {
    let base = match base {
        Some(base) => base.to_owned(),
        None => default_base(root)?,
    };
    let mut files = git_lines(root, &["diff", "--name-only", &base])?;
    files.extend(git_lines(
        root,
        &["ls-files", "--others", "--exclude-standard"],
    )?);
    Ok(files)
}

/// Where this branch left the main one; on the main branch itself, the last commit.
fn default_base(root: &Path) -> Result<String> {
    let head = git_lines(root, &["rev-parse", "HEAD"])?;
    for branch in BASES {
        if let Ok(found) = git_lines(root, &["merge-base", "HEAD", branch])
            && found != head
        {
            return found.into_iter().next().context("git names no base");
        }
    }
    Ok("HEAD".to_owned())
}

fn git_lines(root: &Path, arguments: &[&str]) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("git {} failed", arguments.join(" "));
    }
    let text = String::from_utf8(output.stdout).context("git wrote a name that is not text")?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The packages whose directories hold a changed file; all of them where the workspace's own
/// manifest changed.
fn changed_packages(files: &[String], packages: &[Package]) -> Vec<String> {
    let everything = files
        .iter()
        .any(|file| file == "Cargo.toml" || file == "Cargo.lock");
    let holds = |package: &&Package| {
        everything
            || files.iter().any(|file| {
                file.strip_prefix(&package.directory)
                    .is_some_and(|rest| rest.starts_with('/'))
            })
    };
    packages
        .iter()
        .filter(holds)
        .map(|package| package.name.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_packages_are_those_that_hold_a_changed_file() {
        let package = |name: &str, directory: &str| Package {
            name: name.to_owned(),
            directory: directory.to_owned(),
        };
        let packages = [package("a", "crates/a"), package("ab", "crates/ab")];
        let changed = |files: &[&str]| {
            let files: Vec<_> = files.iter().map(ToString::to_string).collect();
            changed_packages(&files, &packages)
        };
        assert_eq!(changed(&["crates/ab/src/lib.rs"]), ["ab"]);
        assert_eq!(changed(&["README.md"]), Vec::<String>::new());
        assert_eq!(changed(&["Cargo.lock"]), ["a", "ab"]);
    }
}
