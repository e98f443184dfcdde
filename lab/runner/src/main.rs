//! Runs the verification tools, as `cargo xtask bench|campaign|mutants|compare|evidence|smoke`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "these are commands for a person or a build log to read"
)]

mod bench;
mod campaign;
mod compare;
mod evidence;
mod mutants;
mod smoke;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::{process, servers};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Semel's verification tools")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run a benchmark, built for release; without a name all that have targets
    Bench {
        /// Do not install packages: leave out what is missing
        #[arg(long)]
        no_install: bool,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        bench_args: Vec<String>,
    },
    /// Run the fault campaign and the simulation
    Campaign {
        /// The short form: under three minutes
        #[arg(long)]
        short: bool,
        /// The faults of a PostgreSQL cluster with failover instead: about an hour
        #[arg(long)]
        cluster: bool,
        /// The faults of a DynamoDB table instead: ten minutes
        #[arg(long, conflicts_with = "cluster")]
        dynamodb: bool,
        /// Three regions instead, with cut links between them: ten minutes
        #[arg(long, conflicts_with_all = ["cluster", "dynamodb", "phases"])]
        regions: bool,
        /// Repeat the schedule of another run
        #[arg(long)]
        seed: Option<u64>,
        /// How many clients, instead of the usual number
        #[arg(long)]
        clients: Option<usize>,
        /// Only these phases, separated by commas
        #[arg(long)]
        phases: Option<String>,
        /// Do not install packages: report what is missing
        #[arg(long)]
        no_install: bool,
    },
    /// Remove one guard at a time and check that a test fails
    Mutants {
        /// Also run the fault campaign against the mutants that it should detect
        #[arg(long)]
        campaign: bool,
        /// Do not install packages: report what is missing
        #[arg(long)]
        no_install: bool,
        /// Only these
        names: Vec<String>,
    },
    /// Run the same probes and the same load against Semel and its peers
    Compare {
        /// Do not install packages: report what is missing
        #[arg(long)]
        no_install: bool,
        /// Only these
        peers: Vec<String>,
    },
    /// Write docs/evidence.md, docs/performance.md and docs/scale.md from the recorded runs
    Evidence,
    /// Run every benchmark and every verification tool for a few seconds
    Smoke {
        /// Do not install packages: report what is missing
        #[arg(long)]
        no_install: bool,
        /// Use the programs that are built already
        #[arg(long)]
        no_build: bool,
    },
}

fn main() -> ExitCode {
    match perform(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        // Without a backtrace: the failed command has printed its own error.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: Task) -> Result<()> {
    let root = xtask::workspace_root()?;
    match task {
        Task::Bench {
            no_install,
            bench_args,
        } => bench::run_bench(&root, !no_install, &bench_args),
        Task::Campaign {
            short,
            cluster,
            dynamodb,
            regions,
            seed,
            clients,
            phases,
            no_install,
        } => {
            let run = if cluster {
                campaign::run_cluster
            } else if dynamodb {
                campaign::run_dynamodb
            } else if regions {
                campaign::run_regions
            } else {
                campaign::run_all
            };
            run(
                &root,
                !no_install,
                &campaign::Run {
                    short,
                    seed,
                    clients,
                    phases,
                },
            )
        }
        Task::Mutants {
            campaign,
            no_install,
            names,
        } => mutants::run_all(&root, !no_install, campaign, &names),
        Task::Compare { no_install, peers } => compare::run_all(&root, !no_install, &peers),
        Task::Evidence => evidence::report(&root),
        Task::Smoke {
            no_install,
            no_build,
        } => smoke::run_all(&root, !no_install, !no_build),
    }
}
