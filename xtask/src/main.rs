//! The project's own commands, run as `cargo xtask <command>`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "these are commands for a person or a build log to read"
)]

mod bench;
mod campaign;
mod compare;
mod evidence;
mod lint;
mod mutants;
mod process;
mod sdks;
mod servers;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

use process::step;
use servers::Server;

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
        /// Never install packages: say what is missing instead
        #[arg(long)]
        no_install: bool,
        /// Passed on to the test runner; doc tests run only when there are none
        #[arg(last = true)]
        runner_args: Vec<String>,
    },
    /// Formatting, clippy, rustdoc, cargo-deny and tidy
    Lint,
    /// The house rules that no other tool checks
    Tidy,
    /// Run the benchmarks, built for release
    Bench {
        /// Never install packages: leave out what is missing
        #[arg(long)]
        no_install: bool,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        bench_args: Vec<String>,
    },
    /// Break a running Semel in every way we know, and count what happened
    Campaign {
        /// The one for every build: under three minutes
        #[arg(long)]
        short: bool,
        /// Repeat the schedule of another run
        #[arg(long)]
        seed: Option<u64>,
        /// Never install packages: say what is missing instead
        #[arg(long)]
        no_install: bool,
    },
    /// Remove one guard at a time, and see what notices
    Mutants {
        /// Ask the fault campaign, too, about those that it should notice
        #[arg(long)]
        campaign: bool,
        /// Never install packages: say what is missing instead
        #[arg(long)]
        no_install: bool,
        /// Only these
        names: Vec<String>,
    },
    /// Peers beside Semel: the same probes and the same load, in one run
    Compare {
        /// Never install packages: say what is missing instead
        #[arg(long)]
        no_install: bool,
        /// Only these
        peers: Vec<String>,
    },
    /// Make docs/evidence.md of the last runs
    Evidence,
    /// What the build machine runs: lint, the short campaign, then test
    Ci,
    /// Run a command beside throwaway servers
    #[command(hide = true)]
    Servers {
        /// Which servers to start
        #[arg(long, value_delimiter = ',', required = true)]
        with: Vec<Server>,
        /// Never install packages: say what is missing instead
        #[arg(long)]
        no_install: bool,
        /// The command to run, with the servers' addresses in its environment
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    match perform(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        // Without the backtrace: the failed command has said what is wrong, further up.
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
            runner_args,
        } => test::run_all(&root, !no_install, &runner_args),
        Task::Lint => lint::run_all(&root),
        Task::Tidy => tidy::run_all(&root),
        Task::Bench {
            no_install,
            bench_args,
        } => bench::run_one(&root, !no_install, &bench_args),
        Task::Campaign {
            short,
            seed,
            no_install,
        } => campaign::run_all(&root, !no_install, short, seed),
        Task::Mutants {
            campaign,
            no_install,
            names,
        } => mutants::run_all(&root, !no_install, campaign, &names),
        Task::Compare { no_install, peers } => compare::run_all(&root, !no_install, &peers),
        Task::Evidence => evidence::report(&root),
        Task::Ci => ci(&root),
        Task::Servers {
            with,
            no_install,
            command,
        } => test::run_beside(&root, &with, !no_install, &command),
    }
}

/// The tests come last so that a log ends with the test runner's own summary.
fn ci(root: &Path) -> Result<()> {
    step("ci: lint", || lint::run_all(root))?;
    step("ci: campaign", || campaign::run_all(root, true, true, None))?;
    step("ci: test", || test::run_all(root, true, &[]))
}

/// Cargo says at run time which checkout this is. What was compiled in may be another one when
/// several share a target directory, so it serves only for a binary that is started by hand.
fn workspace_root() -> Result<PathBuf> {
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = manifest_dir
        .parent()
        .context("xtask lies in the workspace's root directory")?;
    Ok(root.to_path_buf())
}
