//! `semel operations`: the admin API from a terminal.

pub(crate) mod admin;
mod answers;
mod decide;
pub(crate) mod layout;
mod list;
mod show;
pub(crate) mod text;

use std::io::{self, ErrorKind, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Subcommand;
use reqwest::Url;
use semel_core::OperationId;

use admin::Admin;

/// Options of every command are listed after those of one command.
const GATEWAY: &str = "The gateway";
const LAST: usize = 900;

/// List, show, resolve, reconcile and erase operations. The admin token is read from
/// `SEMEL_ADMIN_TOKEN`, or from a file.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: AdminOptions,

    #[command(subcommand)]
    command: Command,
}

/// The admin listener, and the output format.
#[derive(clap::Args)]
pub(crate) struct AdminOptions {
    /// URL of the gateway's admin listener
    #[arg(
        long,
        value_name = "URL",
        env = "SEMEL_ADMIN",
        default_value = "http://127.0.0.1:8081",
        value_parser = admin::address,
        global = true,
        help_heading = GATEWAY
    )]
    admin: Url,

    /// File with the admin token; overrides `SEMEL_ADMIN_TOKEN`
    #[arg(long, value_name = "FILE", global = true, help_heading = GATEWAY)]
    token_file: Option<PathBuf>,

    /// Print the response of the admin API: one JSON document
    #[arg(long, global = true, display_order = LAST)]
    pub(crate) json: bool,
}

const RESOLVE_EXAMPLE: &str = "\
Examples:
  semel operations resolve ID --completed --response-status 201 --json-body payment.json --reason 'charge ch_1 at the provider'
  semel operations resolve ID --not-executed --reason 'the provider rejected it: ticket 1234'";

const ERASE_EXAMPLE: &str = "\
Example:
  semel operations erase 0198a1b2-c3d4-7000-8000-00000000000a --reason 'GDPR request 17'";

#[derive(Subcommand)]
enum Command {
    /// List operations, newest first
    #[command(after_help = "Example:\n  semel operations list --dead-lettered --limit 20")]
    List(list::Args),
    /// Show one operation and its history
    #[command(
        after_help = "Example:\n  semel operations show 0198a1b2-c3d4-7000-8000-00000000000a"
    )]
    Show(show::Args),
    /// Resolve an unknown operation
    #[command(after_help = RESOLVE_EXAMPLE)]
    Resolve(decide::Resolve),
    /// Look up the outcome of an unknown operation at the provider now
    #[command(
        after_help = "Example:\n  semel operations reconcile 0198a1b2-c3d4-7000-8000-00000000000a"
    )]
    Reconcile(decide::Reconcile),
    /// Permanently remove the stored response of a completed operation
    #[command(after_help = ERASE_EXAMPLE)]
    Erase(decide::Erase),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let json = args.connection.json;
    args.connection
        .run(async |admin: &Admin| match &args.command {
            Command::List(list) => list::run(admin, list, json).await,
            Command::Show(show) => show::run(admin, show, json).await,
            Command::Resolve(resolve) => decide::resolve(admin, resolve, json).await,
            Command::Reconcile(reconcile) => decide::reconcile(admin, reconcile, json).await,
            Command::Erase(erase) => decide::erase(admin, erase, json).await,
        })
}

impl AdminOptions {
    /// Runs a command against the admin listener.
    pub(crate) fn run(&self, command: impl AsyncFnOnce(&Admin) -> Result<()>) -> Result<()> {
        let admin = Admin::new(&self.admin, self.token_file.as_deref())?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        let ended = runtime.block_on(command(&admin));
        ended.or_else(|error| match error.downcast_ref::<io::Error>() {
            // The reader closed the pipe, as `head` does.
            Some(gone) if gone.kind() == ErrorKind::BrokenPipe => Ok(()),
            Some(_) | None => Err(error),
        })
    }
}

/// Prints the result to standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()?;
    Ok(())
}

/// Prints a hint to standard error, where it does not disturb a program that reads the table.
pub(crate) fn note(text: &str) {
    // A closed standard error is not an error.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Parses an id as printed here and in logs.
fn id(text: &str) -> Result<OperationId, String> {
    let id = text.trim().parse::<OperationId>();
    id.map_err(|_| "invalid id: expected one like 0198a1b2-c3d4-7000-8000-00000000000a".to_owned())
}
