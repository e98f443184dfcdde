//! The `semel` command.

mod bench;
mod check;
mod demo;
mod fingerprint;
mod gateway;
mod logging;
mod migrate;
mod operations;
mod outbox;
mod worker;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use semel_gateway::config::{Report, Style};

/// Safe retries for HTTP APIs.
#[derive(Parser)]
#[command(name = "semel", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure how an endpoint takes new keys, replays and concurrent duplicates
    Bench(bench::Args),
    /// Find out whether an API keeps what retries rely on
    // Boxed: it has more options than all others together.
    Check(Box<check::Args>),
    /// See it work: a payments app, an unreliable provider, and commands to try
    Demo(demo::Args),
    /// Print the fingerprint of a request body
    Fingerprint(fingerprint::Args),
    /// Guard the application behind it
    Gateway(gateway::Args),
    /// Create or upgrade the schema of a store
    Migrate(migrate::Args),
    /// See what happened to operations, and decide what only a person can
    Operations(operations::Args),
    /// See which events wait to be published, and try again what no broker took
    Outbox(outbox::Args),
    /// Sweep, reconcile and expire, without serving requests
    Worker(worker::Args),
}

/// 0 fine, 1 failure; usage errors end in `clap` with 2.
fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Fingerprint(args) => fingerprint::run(&args),
        Command::Gateway(args) => gateway::run(args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Operations(args) => operations::run(&args),
        Command::Outbox(args) => outbox::run(&args),
        Command::Worker(args) => worker::run(args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// Standard error is where a command's reasons belong, and its only user is this function.
#[allow(clippy::print_stderr)]
fn report(error: &anyhow::Error) {
    match error.downcast_ref::<Report>() {
        Some(wrong) if std::io::stderr().is_terminal() => {
            eprint!("{}", wrong.render(Style::Graphical));
        }
        Some(wrong) => eprint!("{}", wrong.render(Style::Plain)),
        None => eprintln!("semel: {error:#}"),
    }
}
