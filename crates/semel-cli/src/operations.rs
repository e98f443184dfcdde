//! `semel operations`: what is remembered, and the decisions that only a person can take.

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

/// What every command has is listed after what only one has.
const GATEWAY: &str = "The gateway";
const LAST: usize = 900;

/// Operations: what happened, and what nobody knows. The admin token is read from
/// `SEMEL_ADMIN_TOKEN`, or from a file.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    way: Way,

    #[command(subcommand)]
    command: Command,
}

/// Where to ask, and how the answer is printed.
#[derive(clap::Args)]
pub(crate) struct Way {
    /// Where the gateway's admin listener is
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

    /// File with the admin token; wins over `SEMEL_ADMIN_TOKEN`
    #[arg(long, value_name = "FILE", global = true, help_heading = GATEWAY)]
    token_file: Option<PathBuf>,

    /// Print what the admin API answers: one JSON document
    #[arg(long, global = true, display_order = LAST)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Show operations, newest first
    List(list::Args),
    /// Show one operation, and everything that happened to it
    Show(show::Args),
    /// Say how an unknown operation ended
    Resolve(decide::Resolve),
    /// Ask the provider now how an unknown operation ended
    Reconcile(decide::Reconcile),
    /// Remove the stored response of a completed operation, for good
    Erase(decide::Erase),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let json = args.way.json;
    args.way.ask(async |admin: &Admin| match &args.command {
        Command::List(list) => list::run(admin, list, json).await,
        Command::Show(show) => show::run(admin, show, json).await,
        Command::Resolve(resolve) => decide::resolve(admin, resolve, json).await,
        Command::Reconcile(reconcile) => decide::reconcile(admin, reconcile, json).await,
        Command::Erase(erase) => decide::erase(admin, erase, json).await,
    })
}

impl Way {
    /// Does something with the admin listener.
    pub(crate) fn ask(&self, command: impl AsyncFnOnce(&Admin) -> Result<()>) -> Result<()> {
        let admin = Admin::new(&self.admin, self.token_file.as_deref())?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        let ended = runtime.block_on(command(&admin));
        ended.or_else(|error| match error.downcast_ref::<io::Error>() {
            // Whoever read has seen enough, as `head` does.
            Some(gone) if gone.kind() == ErrorKind::BrokenPipe => Ok(()),
            Some(_) | None => Err(error),
        })
    }
}

/// What was asked for.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()?;
    Ok(())
}

/// What helps a person, and would be in the way of a program that reads the table.
pub(crate) fn note(text: &str) {
    // Without a reader there is nobody to help.
    let _ = writeln!(io::stderr(), "{text}");
}

/// An id as it is printed here and in logs.
fn id(text: &str) -> Result<OperationId, String> {
    let id = text.trim().parse::<OperationId>();
    id.map_err(|_| "an id looks like 0198a1b2-c3d4-7000-8000-00000000000a".to_owned())
}
