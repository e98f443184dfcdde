//! `semel store`: trusts a store again that went back in time.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result, bail};
use semel_gateway::config::StoreUrl;
use semel_gateway::{accept_rollback, open_store};

/// A store that was restored from a backup, or emptied, forgot keys, and their retries would execute
/// again. A gateway that notices it writes that into the store, and all gateways refuse requests
/// until a person accepts it.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Trust the store again: retries of keys that it forgot execute again
    #[command(
        after_help = "Example:\n  semel store accept --store sqlite:semel.db --reason 'OPS-413: restored, and compared with the provider'"
    )]
    Accept(AcceptArgs),
}

#[derive(clap::Args)]
struct AcceptArgs {
    /// The store, such as sqlite:semel.db or <postgres://user@host/database>
    #[arg(long, env = "SEMEL_STORE", hide_env_values = true, value_name = "URL")]
    store: StoreUrl,

    /// Why it is safe, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Who accepts it, for the audit trail
    #[arg(long, env = "USER", value_name = "NAME", default_value = "operator")]
    by: String,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(args: &Args) -> Result<()> {
    let Command::Accept(args) = &args.command;
    if args.reason.trim().is_empty() {
        bail!("--reason is empty: say why it is safe");
    }
    let store = open_store(&args.store).await?;
    let text = match accept_rollback(&store, &args.by, &args.reason).await? {
        0 => "the store lost no record that a gateway noticed: nothing to accept\n",
        _ => "accepted: gateways use the store again within a second\n",
    };
    io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write standard output")
}
