//! `semel gateway`: the reverse proxy.

use std::io::{self, Write as _};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use semel_gateway::config::{
    Collector, DialectName, Environment, Flags, Listen, Source, StoreUrl, Upstream,
};
use semel_gateway::{Listening, Role};

use crate::logging;

/// Safe retries in front of an application in any language. Flags beat the environment, which
/// beats the file.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where requests go, such as <http://127.0.0.1:3000> [env: `SEMEL_UPSTREAM`]
    #[arg(long, value_name = "URL")]
    upstream: Option<Upstream>,

    /// Where requests come in [env: `SEMEL_LISTEN`] [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Listen>,

    /// Where operators come in [env: `SEMEL_ADMIN_LISTEN`] [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<Listen>,

    /// Where operations are remembered [env: `SEMEL_STORE`] [default: sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,

    /// Whose rules keys and refusals follow: ietf or stripe [env: `SEMEL_DIALECT`] [default: ietf]
    #[arg(long, value_name = "NAME")]
    dialect: Option<DialectName>,

    /// The configuration, in TOML [env: `SEMEL_CONFIG`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Accept a store that forgets everything when the process ends
    #[arg(long)]
    allow_volatile: bool,

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

    /// Threads that serve requests; as many as there are processors if absent
    #[arg(long, env = "SEMEL_THREADS", value_name = "N")]
    threads: Option<NonZeroUsize>,

    /// Leave sweeping, reconciling and retention to others: to `semel worker`
    #[arg(long)]
    no_worker: bool,

    /// Check the configuration and everything it names, and start nothing
    #[arg(long)]
    check_config: bool,
}

/// Runs the command. A configuration that is wrong comes back as its report.
pub(crate) fn run(args: Args) -> Result<()> {
    let source = Source {
        file: args.config,
        flags: Flags {
            listen: args.listen,
            upstream: args.upstream,
            store: args.store,
            admin_listen: args.admin_listen,
            dialect: args.dialect,
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
    if let Some(warning) = config.tenant.warning() {
        tracing::warn!("{warning}");
    }
    // Requests are served by threads of their own; this one has the signals and the operators.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let role = if args.no_worker {
        Role::GatewayOnly
    } else {
        Role::Gateway
    };
    let ended = runtime.block_on(semel_gateway::run(
        config,
        source,
        role,
        args.threads,
        announce,
    ));
    // Dropped first, so that nothing goes on whose span would be missed.
    drop(runtime);
    traces.close();
    Ok(ended?)
}

/// Tells whoever started this where it listens. A reader that is gone does not matter.
pub(crate) fn announce(listening: &Listening) {
    let mut out = io::stdout().lock();
    if let Some(gateway) = &listening.gateway {
        let _ = writeln!(out, "listening gateway {gateway}");
    }
    let _ = writeln!(out, "listening admin {}", listening.admin);
    let _ = out.flush();
}
