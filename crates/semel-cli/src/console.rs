//! `semel console`: the admin listener in its own process.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use semel_gateway::Role;
use semel_gateway::config::{Environment, Flags, Listen, Source, StoreUrl};

use crate::gateway::announce;
use crate::logging;
use crate::startup::Settings;

/// Serves the console, the admin API and the metrics of a store. It needs no upstream, takes no
/// requests and runs no background job.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Store of the records [env: `SEMEL_STORE`] [default: sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,

    /// Address for operators: console, admin API, metrics [env: `SEMEL_ADMIN_LISTEN`] [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<Listen>,

    /// Configuration file, in TOML, for tokens, encryption keys and polls [env: `SEMEL_CONFIG`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Format of the logs on standard error
    #[arg(
        long,
        env = "SEMEL_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "pretty"
    )]
    log_format: logging::Format,
}

/// Runs the command. An invalid configuration is returned as its report.
pub(crate) fn run(args: Args) -> Result<()> {
    let source = Source {
        file: args.config,
        flags: Flags {
            store: args.store,
            admin_listen: args.admin_listen,
            ..Flags::default()
        },
        environment: Environment::of_process(),
    };
    let config = source.load_for(Role::Console)?;
    let traces = logging::start(args.log_format, "info", config.otlp.as_ref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let settings = Settings::of(&config);
    let role = Role::Console;
    let ended = runtime.block_on(semel_gateway::run(config, source, role, None, announce));
    // Dropped first, so that no task runs whose spans would be lost.
    drop(runtime);
    traces.close();
    ended.map_err(|error| settings.explain(error))
}
