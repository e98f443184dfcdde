//! The `check` and `bench` commands as a binary of their own, without the rest of Semel.
#![allow(clippy::print_stderr, reason = "prints why nothing was probed")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use semel_check::cli::{self, CheckOutcome};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Probe an HTTP API for safe retries
    Check(Box<cli::check::Args>),
    /// Measure an HTTP API under load: new keys, replays and concurrent duplicates
    Bench(cli::bench::Args),
}

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Check(args) => cli::check::run(&args),
        Command::Bench(args) => cli::bench::run(&args).map(|()| CheckOutcome::Passed),
    };
    match ended {
        Ok(CheckOutcome::Passed) => ExitCode::SUCCESS,
        Ok(CheckOutcome::Failed | CheckOutcome::Incomplete) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("probe: {error}");
            ExitCode::FAILURE
        }
    }
}
