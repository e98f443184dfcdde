//! `check` and `bench` as a small binary of their own: what `semel` has, without Semel.
#![allow(clippy::print_stderr, reason = "the reason why nothing was probed")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use semel_check::cli::{self, Ended};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Probe an HTTP API for safe retries
    Check(Box<cli::check::Args>),
    /// Drive an HTTP API with new keys, replays and concurrent duplicates
    Bench(cli::bench::Args),
}

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Check(args) => cli::check::run(&args),
        Command::Bench(args) => cli::bench::run(&args).map(|()| Ended::Well),
    };
    match ended {
        Ok(Ended::Well) => ExitCode::SUCCESS,
        Ok(Ended::Badly | Ended::Unseen) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("probe: {error}");
            ExitCode::FAILURE
        }
    }
}
