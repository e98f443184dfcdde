//! `cargo xtask lint`: all checks that do not run the code.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process::{cargo, has_cargo_tool, run, step};
use crate::tidy;
use crate::workspace::{self, Part};

/// What the checks may assume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compiler {
    /// The build that follows is compiled by clippy, which refuses what it warns of.
    Clippy,
    /// Clippy and rustdoc have to look at the code here.
    Rustc,
}

/// Runs every check even after a failure, so that one run shows all problems.
pub(crate) fn run_all(root: &Path, compiler: Compiler) -> Result<()> {
    let mut failed = Vec::new();
    let mut check = |name: &'static str, work: &dyn Fn() -> Result<()>| {
        if let Err(error) = step(name, work) {
            eprintln!("{error:#}");
            failed.push(name);
        }
    };

    check(
        "fmt",
        &|| run(cargo(root).args(["fmt", "--all", "--check"])),
    );
    if compiler == Compiler::Rustc {
        check("clippy", &|| {
            run(cargo(root)
                .args(["clippy", "--workspace", "--all-targets", "--all-features"])
                .args(["--", "-D", "warnings"]))
        });
        check("doc", &|| {
            run(cargo(root)
                .args(["doc", "--workspace", "--all-features", "--no-deps"])
                .env("RUSTDOCFLAGS", "-D warnings"))
        });
    }
    check("deny", &|| deny(root));
    check("tidy", &|| tidy::run_all(root));

    if !failed.is_empty() {
        bail!("lint failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Compiles every product crate with each of its features alone, and with none.
pub(crate) fn check_features(root: &Path) -> Result<()> {
    install_tool(root, "hack", "cargo-hack")?;
    let product = workspace::names(root, Part::Product)?;
    run(cargo(root)
        .args(["hack", "check", "--each-feature", "--no-dev-deps"])
        .args(workspace::flags(&product)))
}

/// Compares the public API with the last release. Before the first one there is nothing to
/// compare with.
pub(crate) fn check_semver(root: &Path) -> Result<()> {
    let tags = Command::new("git")
        .args(["tag", "--list", "v*", "--sort=-version:refname"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    let tags = String::from_utf8_lossy(&tags.stdout).into_owned();
    let Some(last) = tags.lines().next() else {
        println!("no release yet: there is no API to compare with");
        return Ok(());
    };
    install_tool(root, "semver-checks", "cargo-semver-checks")?;
    run(cargo(root)
        .args(["semver-checks", "--baseline-rev", last])
        .args(["--package", "semel"]))
}

/// Installs a cargo subcommand from its registry where it is missing.
fn install_tool(root: &Path, subcommand: &str, package: &str) -> Result<()> {
    if has_cargo_tool(root, subcommand) {
        return Ok(());
    }
    run(cargo(root).args(["install", "--locked", package]))
}

fn deny(root: &Path) -> Result<()> {
    if !has_cargo_tool(root, "deny") {
        println!("SKIPPED: cargo-deny is not installed (`cargo install cargo-deny --locked`)");
        return Ok(());
    }
    run(cargo(root).args(["deny", "check", "bans", "licenses", "sources"]))?;
    // The list of advisories comes from the network, and a lint must also work without one.
    if run(cargo(root).args(["deny", "fetch", "db"])).is_err() {
        println!("SKIPPED: advisories, because their database cannot be fetched");
        return Ok(());
    }
    run(cargo(root).args(["deny", "check", "advisories"]))
}
