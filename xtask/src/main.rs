//! The project's own commands, run as `cargo xtask <command>`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "these are commands for a person or a build log to read"
)]

mod lint;
mod quick;
mod skips;
mod test;
mod tidy;
mod workspace;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

use xtask::process::{self, Interrupt, cargo, run, step};
use xtask::servers::{self, Server};
use xtask::{packages, sdks, workspace_root};

use crate::lint::Compiler;
use crate::test::{Scope, TestRun};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Set up what the tests need, then run all of them
    Test {
        /// Never install packages; report what is missing instead
        #[arg(long)]
        no_install: bool,
        /// The tests of the verification tools too, in the one build that CI makes
        #[arg(long)]
        workspace: bool,
        /// Passed on to the test runner; doc tests run only when there are none
        #[arg(last = true)]
        runner_args: Vec<String>,
    },
    /// Formatting, clippy and tests of what changed, on memory and SQLite only
    Quick {
        /// Compare with this commit instead of the main branch
        #[arg(long)]
        base: Option<String>,
    },
    /// Formatting, clippy, rustdoc, cargo-deny and tidy
    Lint,
    /// Check every product crate with each of its features alone (cargo-hack)
    Features,
    /// Check the public API against the last release (cargo-semver-checks)
    Semver,
    /// Run every benchmark and verification tool for a few seconds
    Smoke(LabArguments),
    /// The house rules that no other tool checks
    Tidy,
    /// Build the Python and Node packages into target/packages
    Packages {
        /// Never install the tools that build them; report what is missing instead
        #[arg(long)]
        no_install: bool,
    },
    /// Run a benchmark (lab/bench), built for release
    Bench(LabArguments),
    /// Run the fault campaign and the simulation (lab/campaign, lab/simulation)
    Campaign(LabArguments),
    /// Remove one guard at a time and check that a test fails (lab/mutants)
    Mutants(LabArguments),
    /// Run the same probes and the same load against Semel and its peers (lab/peers)
    Compare(LabArguments),
    /// Write docs/evidence.md from the recorded runs
    Evidence(LabArguments),
    /// What the build machine runs: lint, a smoke run of every verification tool, then all tests
    Ci,
    /// Run a command beside throwaway servers
    #[command(hide = true)]
    Servers {
        /// Which servers to start
        #[arg(long, value_delimiter = ',', required = true)]
        with: Vec<Server>,
        /// Never install packages; report what is missing instead
        #[arg(long)]
        no_install: bool,
        /// The command to run, with the servers' addresses in its environment
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

/// Passed on to `semel-lab`, which has its own `--help`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct LabArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

fn main() -> ExitCode {
    match perform(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        // Without a backtrace: the failed command has printed the reason above.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: Task) -> Result<()> {
    let root = workspace_root()?;
    match task {
        Task::Test {
            no_install,
            workspace,
            runner_args,
        } => {
            let scope = if workspace {
                Scope::Workspace
            } else {
                Scope::Product
            };
            TestRun::prepare(&root, scope, !no_install, &runner_args)?.execute()
        }
        Task::Quick { base } => quick::run_all(&root, base.as_deref()),
        Task::Lint => lint::run_all(&root, Compiler::Rustc),
        Task::Features => lint::check_features(&root),
        Task::Semver => lint::check_semver(&root),
        Task::Smoke(lab) => run_lab(&root, "smoke", &lab.arguments),
        Task::Tidy => tidy::run_all(&root),
        Task::Packages { no_install } => {
            let interrupt = Interrupt::listen()?;
            let variables = [sdks::PYTHON_CLIENT, sdks::NODE_CLIENT];
            let tools = sdks::install_for(&variables, &root, !no_install, &interrupt)?;
            packages::install(&root, &tools, &interrupt)
        }
        Task::Bench(lab) => run_lab(&root, "bench", &lab.arguments),
        Task::Campaign(lab) => run_lab(&root, "campaign", &lab.arguments),
        Task::Mutants(lab) => run_lab(&root, "mutants", &lab.arguments),
        Task::Compare(lab) => run_lab(&root, "compare", &lab.arguments),
        Task::Evidence(lab) => run_lab(&root, "evidence", &lab.arguments),
        Task::Ci => ci(&root),
        Task::Servers {
            with,
            no_install,
            command,
        } => test::run_beside(&root, &with, !no_install, &command),
    }
}

/// One build serves the tests and the smoke runs. The tests come last so that a log ends with the test
/// runner's own summary.
fn ci(root: &Path) -> Result<()> {
    // `.ci/run` has clippy compile the workspace: a second look at all dependencies, for its sake
    // and for rustdoc's, would take a quarter of the time. `cargo xtask lint` is a job of its own.
    let wrapper = std::env::var_os("RUSTC_WORKSPACE_WRAPPER");
    let compiler = if wrapper.is_some_and(|wrapper| wrapper == "clippy-driver") {
        Compiler::Clippy
    } else {
        Compiler::Rustc
    };
    step("ci: lint", || lint::run_all(root, compiler))?;
    let mut tests = None;
    step("ci: build", || {
        tests = Some(TestRun::prepare(root, Scope::Workspace, true, &[])?);
        Ok(())
    })?;
    step("ci: smoke", || run_built_lab(root, &["smoke"]))?;
    step("ci: test", || {
        tests.as_ref().map_or(Ok(()), TestRun::execute)
    })
}

/// Builds and runs a command of the verification tools. The product does not depend on them, so
/// neither does this binary.
fn run_lab(root: &Path, command: &str, arguments: &[String]) -> Result<()> {
    run(cargo(root)
        .args(["run", "--quiet", "--package", "semel-lab", "--", command])
        .args(arguments))
}

/// Runs a command of the verification tools as the workspace's build left them: `cargo run` would
/// select fewer features, and compile their dependencies again.
fn run_built_lab(root: &Path, arguments: &[&str]) -> Result<()> {
    let program = process::target_directory(root)?.join("debug/semel-lab");
    let mut lab = Command::new(program);
    run(lab.current_dir(root).args(arguments).arg("--no-build"))
}
