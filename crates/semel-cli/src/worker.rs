//! `semel worker`: the background jobs in their own process.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use semel_gateway::Role;
use semel_gateway::config::{
    Collector, Environment, Flags, Listen, Source, StoreUrl, TenantRule, Upstream,
};

use crate::gateway::announce;
use crate::logging;
use crate::startup::Settings;

/// Runs the background jobs (sweep, reconcile, retention, outbox relay) without serving requests,
/// for deployments with several gateways. It reads the gateways' configuration.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// URL that `[route.reconcile]` polls where it names no host; else not needed [env: `SEMEL_UPSTREAM`]
    #[arg(long, value_name = "URL")]
    upstream: Option<Upstream>,

    /// Who is calling the gateways: authorization, jwt:CLAIM, header:NAME or none [env: `SEMEL_TENANT`]
    #[arg(long, value_name = "RULE")]
    tenant: Option<TenantRule>,

    /// Address for operators: console, admin API, metrics [env: `SEMEL_ADMIN_LISTEN`] [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<Listen>,

    /// Store of the records [env: `SEMEL_STORE`] [default: sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,

    /// The gateways' configuration file, in TOML [env: `SEMEL_CONFIG`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Trace collector, such as <http://127.0.0.1:4318>: OTLP over HTTP [env: `SEMEL_OTLP_ENDPOINT`]
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<Collector>,

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
            upstream: args.upstream,
            store: args.store,
            admin_listen: args.admin_listen,
            tenant: args.tenant,
            otlp_endpoint: args.otlp_endpoint,
            ..Flags::default()
        },
        environment: Environment::of_process(),
    };
    let config = source.load_for(Role::Worker)?;
    let traces = logging::start(args.log_format, "info", config.otlp.as_ref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let settings = Settings::of(&config);
    let ended = runtime.block_on(semel_gateway::run(
        config,
        source,
        Role::Worker,
        None,
        announce,
    ));
    // Dropped first, so that no task runs whose spans would be lost.
    drop(runtime);
    traces.close();
    ended.map_err(|error| settings.explain(error))
}
