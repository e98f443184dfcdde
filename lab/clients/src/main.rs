//! Evidence about clients, against the payments app of `semel demo` with its unreliable provider.
//!
//! `walk` kills a client at every system call of a recorded run and starts it again. `load` runs many intents through resets,
//! timeouts, refusals and an outage. The provider's ledger is the judge of both.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "these are commands for a person or a build log to read"
)]

mod demo;
mod load;
mod proxy;
mod walk;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Kill a client at every system call, and start it again
    Walk(walk::Args),
    /// Run many intents against a server that fails
    Load(load::Args),
}

fn main() -> ExitCode {
    let ended = match Arguments::parse().command {
        Command::Walk(args) => walk::run(&args),
        Command::Load(args) => load::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
