//! `semel worker`: what happens out of band, in a process of its own.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use semel_gateway::Role;
use semel_gateway::config::{Collector, Environment, Flags, Listen, Source, StoreUrl, Upstream};

use crate::gateway::announce;
use crate::logging;

/// Sweeper, reconciler and retention alone, for deployments with several gateways. It reads the
/// gateways' own configuration, so that it knows how to find out what became of an operation.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where `[route.reconcile]` asks, unless it names a host [env: `SEMEL_UPSTREAM`]
    #[arg(long, value_name = "URL")]
    upstream: Option<Upstream>,

    /// Where operators come in [env: `SEMEL_ADMIN_LISTEN`] [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<Listen>,

    /// Where operations are remembered [env: `SEMEL_STORE`] [default: sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,

    /// The gateways' configuration, in TOML [env: `SEMEL_CONFIG`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Who takes traces, such as <http://127.0.0.1:4318>: OTLP over HTTP [env: `SEMEL_OTLP_ENDPOINT`]
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<Collector>,

    /// How logs are written to standard error
    #[arg(
        long,
        env = "SEMEL_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "pretty"
    )]
    log_format: logging::Format,
}

/// Runs the command. A configuration that is wrong comes back as its report.
pub(crate) fn run(args: Args) -> Result<()> {
    let source = Source {
        file: args.config,
        flags: Flags {
            upstream: args.upstream,
            store: args.store,
            admin_listen: args.admin_listen,
            otlp_endpoint: args.otlp_endpoint,
            ..Flags::default()
        },
        environment: Environment::of_process(),
    };
    let config = source.load()?;
    let traces = logging::start(args.log_format, "info", config.otlp.as_ref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let ended = runtime.block_on(semel_gateway::run(
        config,
        source,
        Role::Worker,
        None,
        announce,
    ));
    // Dropped first, so that nothing goes on whose span would be missed.
    drop(runtime);
    traces.close();
    Ok(ended?)
}
