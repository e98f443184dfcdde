//! `semel gateway`: the reverse proxy.

use std::io::{self, Write as _};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use semel_gateway::config::{
    Collector, DialectName, Environment, Flags, Listen, Source, StoreUrl, TenantRule, Upstream,
};
use semel_gateway::{Listening, Role};

use crate::logging;
use crate::startup::Settings;

/// A reverse proxy that makes retries safe, in front of an application in any language. Flags
/// override the environment, which overrides the file.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// URL of the application, such as <http://127.0.0.1:3000> [env: `SEMEL_UPSTREAM`]
    #[arg(long, value_name = "URL")]
    upstream: Option<Upstream>,

    /// Who is calling: authorization, jwt:CLAIM, header:NAME or none [env: `SEMEL_TENANT`]
    #[arg(long, value_name = "RULE")]
    tenant: Option<TenantRule>,

    /// Address for requests [env: `SEMEL_LISTEN`] [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Listen>,

    /// Address for operators: console, admin API, metrics [env: `SEMEL_ADMIN_LISTEN`] [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<Listen>,

    /// Store of the records [env: `SEMEL_STORE`] [default: sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,

    /// Dialect of keys and refusals: ietf or stripe [env: `SEMEL_DIALECT`] [default: ietf]
    #[arg(long, value_name = "NAME")]
    dialect: Option<DialectName>,

    /// Configuration file, in TOML [env: `SEMEL_CONFIG`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Allow `memory:`, a store that loses all records when the process ends
    #[arg(long)]
    allow_volatile: bool,

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

    /// Threads that serve requests; by default one per processor
    #[arg(long, env = "SEMEL_THREADS", value_name = "N")]
    threads: Option<NonZeroUsize>,

    /// Run no background jobs; run `semel worker` for them instead
    #[arg(long)]
    no_worker: bool,

    /// Check the configuration and the files it names, then exit
    #[arg(long)]
    check_config: bool,
}

/// Runs the command. An invalid configuration is returned as its report.
pub(crate) fn run(args: Args) -> Result<()> {
    let source = Source {
        file: args.config,
        flags: Flags {
            listen: args.listen,
            upstream: args.upstream,
            store: args.store,
            admin_listen: args.admin_listen,
            dialect: args.dialect,
            tenant: args.tenant,
            allow_volatile: args.allow_volatile,
            otlp_endpoint: args.otlp_endpoint,
        },
        environment: Environment::of_process(),
    };
    let config = source.load()?;
    if args.check_config {
        return writeln!(io::stdout(), "OK").context("cannot write standard output");
    }
    let traces = logging::start(args.log_format, "info", config.otlp.as_ref())?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    // Worker threads serve the requests; this runtime has the signals and the admin listener.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let role = if args.no_worker {
        Role::GatewayOnly
    } else {
        Role::Gateway
    };
    let settings = Settings::of(&config);
    let ended = runtime.block_on(semel_gateway::run(
        config,
        source,
        role,
        args.threads,
        announce,
    ));
    // Dropped first, so that no task runs whose spans would be lost.
    drop(runtime);
    traces.close();
    ended.map_err(|error| settings.explain(error))
}

/// Prints the addresses of the listeners. A closed standard output is not an error.
pub(crate) fn announce(listening: &Listening) {
    let mut out = io::stdout().lock();
    if let Some(gateway) = &listening.gateway {
        let _ = writeln!(out, "listening gateway {gateway}");
    }
    let _ = writeln!(out, "listening admin {}", listening.admin);
    let _ = out.flush();
}
