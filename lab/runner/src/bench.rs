//! `cargo xtask bench`: the benchmarks, built for release, beside the servers that they use. Without a name
//! everything that has a target is measured, and recorded for `docs/performance.md`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::evidence;
use crate::process::{Interrupt, cargo, run, run_interruptible, target_directory};
use crate::servers::{self, Server};
use xtask::DIST;

/// The benchmarks that start the `semel` binary.
pub(crate) const NEED_SEMEL: &[&str] = &["all", "http", "memory", "console"];
/// The benchmarks that use a PostgreSQL server.
pub(crate) const NEED_POSTGRES: &[&str] = &["all", "postgres", "outbox", "console"];
/// The benchmarks that use a NATS server.
pub(crate) const NEED_NATS: &[&str] = &["outbox"];

pub(crate) fn run_bench(root: &Path, may_install: bool, bench_args: &[String]) -> Result<()> {
    // Options without a name are those of the whole.
    if bench_args
        .first()
        .is_some_and(|first| !first.starts_with('-'))
    {
        return run_one(root, may_install, bench_args);
    }
    let began = evidence::began(root, "cargo xtask bench")?;
    let results = tempfile::NamedTempFile::new()?;
    let mut all = vec!["all".to_owned(), "--json".to_owned()];
    all.push(results.path().display().to_string());
    all.extend_from_slice(bench_args);
    let ran = run_one(root, may_install, &all);
    // A missed bound is recorded, too.
    let text = std::fs::read(results.path())?;
    if text.is_empty() {
        return ran;
    }
    evidence::record(root, "bench", &began, &serde_json::from_slice(&text)?)?;
    ran
}

fn run_one(root: &Path, may_install: bool, bench_args: &[String]) -> Result<()> {
    let mut command = cargo(root);
    command
        .args(["run", "--profile", DIST, "-p", "semel-bench", "--"])
        .args(bench_args);
    if wants(bench_args, NEED_SEMEL, "--semel") {
        run(cargo(root).args([
            "build",
            "--profile",
            DIST,
            "--features",
            DIST,
            "-p",
            "semel-cli",
        ]))?;
        command
            .arg("--semel")
            .arg(target_directory(root)?.join(DIST).join("semel"));
    }
    if wants(bench_args, &["all", "http"], "--nginx")
        && let Some(nginx) = servers::ensure_program("nginx", "nginx", may_install)
    {
        command.arg("--nginx").arg(nginx);
    }
    let mut beside = Vec::new();
    if wants(bench_args, NEED_POSTGRES, "--postgres") {
        beside.push((Server::Postgres, "--postgres"));
    }
    if wants(bench_args, NEED_NATS, "--nats") {
        beside.push((Server::Nats, "--nats"));
    }
    if beside.is_empty() {
        return run(&mut command);
    }
    run_beside(&mut command, &beside, may_install)
}

/// With the servers' default settings: without an fsync at each commit the comparison is worthless.
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

/// Whether one of these benchmarks is requested without the flag.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_searched_for_where_it_is_needed_and_not_given() {
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
