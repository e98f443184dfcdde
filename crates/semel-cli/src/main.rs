//! The `semel` command.

mod bench;
mod call;
mod check;
mod console;
mod contract;
mod demo;
mod fingerprint;
mod gateway;
mod logging;
mod migrate;
mod operations;
mod outbox;
mod startup;
mod store;
mod worker;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use semel_gateway::config::{Report, Style};

/// Each request allocates many small objects, which this allocator serves faster.
#[cfg(feature = "dist")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const EXAMPLES: &str = "\
Examples:
  semel demo
  semel gateway --upstream http://127.0.0.1:3000 --tenant authorization
  semel check http://127.0.0.1:8080/payments";

/// Safe retries for HTTP APIs.
#[derive(Parser)]
#[command(name = "semel", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure throughput and latency of new keys, replays and concurrent duplicates
    #[command(
        after_help = "Example:\n  semel bench http://127.0.0.1:8080/payments --connections 16 --duration 10s"
    )]
    Bench(bench::Args),
    /// Send one request from a script, safe to run again after any failure
    #[command(after_help = call::HELP)]
    Call(call::Args),
    /// Check whether an API keeps the guarantees that retries rely on
    #[command(after_help = "\
Example:
  semel check http://127.0.0.1:8080/payments --header 'Authorization: Bearer TOKEN'")]
    // Boxed: it has more options than all others together.
    Check(Box<check::Args>),
    /// Serve the console of a store, without an upstream and without background jobs
    #[command(
        after_help = "Example:\n  semel console --store postgres://semel@db.example/semel --admin-listen 127.0.0.1:9000"
    )]
    Console(console::Args),
    /// Show what decides whether two requests are the same, and what a configuration changes
    #[command(after_help = "Example:\n  semel contract diff --config semel.toml")]
    Contract(contract::Args),
    /// Run a payments app with an unreliable provider behind a gateway, and print commands to try
    #[command(after_help = "Example:\n  semel demo --traffic")]
    Demo(demo::Args),
    /// Print the fingerprint of a request body
    #[command(after_help = "Example:\n  echo '{\"amount\": 1000}' | semel fingerprint --explain")]
    Fingerprint(fingerprint::Args),
    /// Run the reverse proxy in front of an application
    #[command(after_help = "\
Examples:
  semel gateway --upstream http://127.0.0.1:3000 --tenant authorization
  semel gateway --config semel.toml --check-config")]
    Gateway(gateway::Args),
    /// Create or upgrade the schema of a store
    #[command(after_help = "Example:\n  semel migrate --store postgres://semel@db.example/semel")]
    Migrate(migrate::Args),
    /// List, show, resolve, reconcile and erase operations
    #[command(after_help = "Example:\n  semel operations list --status unknown")]
    Operations(operations::Args),
    /// List outbox events that the broker refused, and retry them
    #[command(after_help = "Example:\n  semel outbox list")]
    Outbox(outbox::Args),
    /// Trust a store again that lost records
    #[command(
        after_help = "Example:\n  semel store accept --store postgres://semel@db.example/semel --reason 'OPS-413: restored, and compared with the provider'"
    )]
    Store(store::Args),
    /// Run the background jobs (sweep, reconcile, retention, outbox relay) without serving requests
    #[command(after_help = "Example:\n  semel worker --config semel.toml")]
    Worker(worker::Args),
}

/// Exits with 0 on success, 1 on failure; `clap` exits with 2 on a usage error. `semel call` has codes of its own.
fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Call(args) => return call::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Console(args) => console::run(args),
        Command::Contract(args) => contract::run(args),
        Command::Demo(args) => demo::run(&args),
        Command::Fingerprint(args) => fingerprint::run(&args),
        Command::Gateway(args) => gateway::run(args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Operations(args) => operations::run(&args),
        Command::Outbox(args) => outbox::run(&args),
        Command::Store(args) => store::run(&args),
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

/// Prints the error of a command to standard error.
#[allow(clippy::print_stderr)]
fn report(error: &anyhow::Error) {
    match error.downcast_ref::<Report>() {
        Some(problems) if std::io::stderr().is_terminal() => {
            eprint!("{}", problems.render(Style::Graphical));
        }
        Some(problems) => eprint!("{}", problems.render(Style::Plain)),
        None => eprintln!("semel: {}", message(error)),
    }
}

/// The error and its causes. Leaves out a cause that the message above already contains: many
/// errors include their source in their own message.
fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if message.is_empty() {
            message = cause;
        } else if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn assert_example(command: &mut clap::Command) {
        let help = command.render_long_help().to_string();
        assert!(help.contains("Example"), "{help}");
        for subcommand in command.get_subcommands_mut() {
            if subcommand.get_name() != "help" {
                assert_example(subcommand);
            }
        }
    }

    #[test]
    fn the_help_of_every_command_has_an_example() {
        Cli::command().debug_assert();
        assert_example(&mut Cli::command());
    }

    #[test]
    fn a_cause_that_is_part_of_the_message_is_not_repeated() {
        let error = anyhow::anyhow!("address in use").context("cannot listen: address in use");
        assert_eq!(message(&error), "cannot listen: address in use");
        let error = anyhow::anyhow!("denied").context("cannot open f");
        assert_eq!(message(&error), "cannot open f: denied");
    }
}
