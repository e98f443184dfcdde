//! `cargo xtask lint`: everything that judges the code without running it.

use std::path::Path;

use anyhow::{Result, bail};

use crate::process::{cargo, has_cargo_tool, run, step};
use crate::tidy;

/// Runs every check even after a failure, so that one run shows all there is to mend.
pub(crate) fn run_all(root: &Path) -> Result<()> {
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
    check("clippy", &|| {
        run(cargo(root)
            .args(["clippy", "--workspace", "--all-targets", "--all-features"])
            .args(["--", "-D", "warnings"]))
    });
    check("doc", &|| {
        run(cargo(root)
            .args(["doc", "--workspace", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings"))
    });
    check("deny", &|| deny(root));
    check("tidy", &|| tidy::run_all(root));

    if !failed.is_empty() {
        bail!("lint failed: {}", failed.join(", "));
    }
    Ok(())
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
