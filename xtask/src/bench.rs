//! `bench`: the benchmarks, built for release, with what they measure beside.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::process::{Interrupt, cargo, run, run_interruptible};
use crate::servers::{self, Server};

pub(crate) fn run_one(root: &Path, may_install: bool, bench_args: &[String]) -> Result<()> {
    let mut command = cargo(root);
    command
        .args(["run", "--release", "-p", "semel-bench", "--"])
        .args(bench_args);
    if wants(bench_args, &["http", "memory", "console"], "--semel") {
        run(cargo(root).args(["build", "--release", "-p", "semel-cli"]))?;
        command
            .arg("--semel")
            .arg(target(root)?.join("release/semel"));
    }
    if wants(bench_args, &["http"], "--nginx")
        && let Some(nginx) = servers::program("nginx", "nginx", may_install)
    {
        command.arg("--nginx").arg(nginx);
    }
    let mut beside = Vec::new();
    if wants(bench_args, &["postgres", "outbox", "console"], "--postgres") {
        beside.push((Server::Postgres, "--postgres"));
    }
    if wants(bench_args, &["outbox"], "--nats") {
        beside.push((Server::Nats, "--nats"));
    }
    if beside.is_empty() {
        return run(&mut command);
    }
    run_beside(&mut command, &beside, may_install)
}

/// With the servers' own settings: a commit without an fsync would be worth no comparison.
fn run_beside(command: &mut Command, beside: &[(Server, &str)], may_install: bool) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let wanted: Vec<_> = beside.iter().map(|(server, _)| *server).collect();
    let servers = servers::start(&wanted, may_install, &interrupt)?;
    for (server, flag) in beside {
        let url = servers.url(*server).context("a server was started")?;
        command.args([flag, &*url]);
    }
    run_interruptible(command, &interrupt)
}

/// Whether one of these benchmarks is asked for, without saying itself where a program is.
fn wants(bench_args: &[String], benchmarks: &[&str], flag: &str) -> bool {
    let asked_for = bench_args
        .first()
        .is_some_and(|first| benchmarks.contains(&first.as_str()));
    let given = bench_args.iter().any(|argument| {
        argument
            .strip_prefix(flag)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    });
    asked_for && !given
}

/// Where cargo puts what it builds.
pub(crate) fn target(root: &Path) -> Result<PathBuf> {
    let output = cargo(root)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed");
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let target = metadata["target_directory"]
        .as_str()
        .context("cargo metadata names no target directory")?;
    Ok(target.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_where_it_is_needed_and_not_given() {
        let wants = |line: &str| {
            let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            wants(&arguments, &["http"], "--semel")
        };
        assert!(wants("http --rounds 1"));
        assert!(wants("http --semelish"));
        assert!(!wants("http --semel bin/semel"));
        assert!(!wants("http --semel=bin/semel"));
        assert!(!wants("store --only http"));
    }
}
