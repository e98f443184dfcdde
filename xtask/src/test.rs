//! `cargo xtask test`: set-up, then every test.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::process::{Interrupt, cargo, has_cargo_tool, run_interruptible};
use crate::sdks;
use crate::servers::{self, Server};

/// Tests read here where the browser is. Set by the developer, it wins.
const BROWSER: &str = "SEMEL_CHROMIUM";

/// Starts what the tests need and runs them.
pub(crate) fn run_all(root: &Path, may_install: bool, runner_args: &[String]) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let servers = servers::start(servers::NEEDED, may_install, &interrupt)?;
    let sdks = sdks::install(root, may_install, &interrupt)?;
    let given = env::var_os(BROWSER).is_some_and(|path| !path.is_empty());
    let browser = (!given)
        .then(|| servers::program("chromium", "chromium", may_install))
        .flatten();

    let mut runner = if has_cargo_tool(root, "nextest") {
        // Nextest leaves doc tests out. They run first, so that the log ends with nextest's
        // summary; with arguments the caller wants particular tests and not these.
        if runner_args.is_empty() {
            let mut doc_tests = cargo(root);
            doc_tests.args(["test", "--quiet", "--doc", "--workspace"]);
            doc_tests.envs(servers.environment());
            run_interruptible(&mut doc_tests, &interrupt)?;
        }
        let mut nextest = cargo(root);
        nextest.args(["nextest", "run"]);
        nextest
    } else {
        let mut cargo_test = cargo(root);
        cargo_test.arg("test");
        cargo_test
    };
    if !names_a_package(runner_args) {
        runner.arg("--workspace");
    }
    if runner_args.is_empty() {
        // One run shows everything there is to mend.
        runner.arg("--no-fail-fast");
    }
    runner
        .args(runner_args)
        .envs(servers.environment())
        .envs(sdks.environment())
        .envs(browser.map(|browser| (BROWSER, browser)));
    run_interruptible(&mut runner, &interrupt)
}

/// Starts the named servers and runs any command beside them.
pub(crate) fn run_beside(
    root: &Path,
    with: &[Server],
    may_install: bool,
    command: &[String],
) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let servers = servers::start(with, may_install, &interrupt)?;
    let (program, arguments) = command.split_first().context("no command was given")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(root)
        .envs(servers.environment());
    run_interruptible(&mut command, &interrupt)
}

/// Cargo lets `--workspace` win over `-p`, so the two must not meet.
fn names_a_package(runner_args: &[String]) -> bool {
    runner_args
        .iter()
        .take_while(|argument| *argument != "--")
        .any(|argument| argument.starts_with("-p") || argument.starts_with("--package"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_replaces_the_workspace() {
        let args = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(names_a_package(&args(&["-p", "semel-core"])));
        assert!(names_a_package(&args(&["-psemel-core"])));
        assert!(names_a_package(&args(&["--package=semel-core"])));
        assert!(!names_a_package(&args(&["expiry"])));
        assert!(!names_a_package(&args(&["--", "-p"])));
    }
}
