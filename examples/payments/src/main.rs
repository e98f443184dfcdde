//! The three servers as commands of one binary.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use payments::{app, provider, shop};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// A payment service and an unreliable provider: the running example of Semel.
#[derive(Parser)]
#[command(name = "payments", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The merchant's API
    App {
        /// Where to listen; port 0 picks a free one
        #[arg(long, default_value = "127.0.0.1:3000")]
        listen: SocketAddr,
        /// The provider's address
        #[arg(long, default_value = "http://127.0.0.1:3001")]
        provider: String,
        /// The file of the payments; in memory without one
        #[arg(long)]
        database: Option<PathBuf>,
        /// How long a call to the provider may take
        #[arg(long, default_value_t = 10_000)]
        provider_timeout_ms: u64,
        /// Ignore the gateway's headers: a second execution is a second charge
        #[arg(long)]
        ignore_gateway: bool,
        /// Also serve `POST /unkeyed/payments`, which sends the provider no key
        #[arg(long)]
        unkeyed: bool,
    },
    /// The same API with the library
    Shop {
        /// Where to listen; port 0 picks a free one
        #[arg(long, default_value = "127.0.0.1:3002")]
        listen: SocketAddr,
        /// The provider's address
        #[arg(long, default_value = "http://127.0.0.1:3001")]
        provider: String,
        /// Where everything is kept: sqlite:PATH or postgres://…
        #[arg(long, default_value = "sqlite:shop.db", value_parser = parse_database)]
        store: shop::Database,
        /// A broker between the shop and its consumers: nats://… or amqp://…
        #[arg(long)]
        events: Option<String>,
        /// The name of the stream or exchange at the broker
        #[arg(long, default_value = "shop")]
        stream: String,
        /// How long the lease of a process that died stays valid
        #[arg(long, default_value_t = 10_000)]
        lease_ms: u64,
        /// The name of this process: stable across restarts, different from others on the same store
        #[arg(long, default_value = "shop")]
        name: String,
    },
    /// The provider
    Provider {
        /// Where to listen; port 0 picks a free one
        #[arg(long, default_value = "127.0.0.1:3001")]
        listen: SocketAddr,
        /// The file of the ledger; in memory without one
        #[arg(long)]
        ledger: Option<PathBuf>,
    },
}

/// Exits with 0, or 1 on a failure; `clap` exits with 2 on a usage error.
fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .init();
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

#[allow(
    clippy::print_stderr,
    reason = "the reason of a failed command belongs there"
)]
fn report(error: &anyhow::Error) {
    eprintln!("payments: {error:#}");
}

#[tokio::main]
async fn run(command: Command) -> anyhow::Result<()> {
    // Before the address is printed: a supervisor that reads it may send the signal at once.
    let terminate = signal(SignalKind::terminate())?;
    let interrupt = signal(SignalKind::interrupt())?;
    let shutdown = wait_for_signal(terminate, interrupt);
    match command {
        Command::App {
            listen,
            provider,
            database,
            provider_timeout_ms,
            ignore_gateway,
            unkeyed,
        } => {
            let mut config = app::Config::new(provider);
            config.database = database;
            config.provider_timeout = Duration::from_millis(provider_timeout_ms);
            config.heeds_gateway = !ignore_gateway;
            config.unkeyed = unkeyed;
            let listener = bind("app", listen).await?;
            app::serve(listener, config, shutdown).await?;
        }
        Command::Shop {
            listen,
            provider,
            store,
            events,
            stream,
            lease_ms,
            name,
        } => {
            let mut config = shop::Config::new(provider, store);
            config.events = events.map_or(Ok(shop::EventTransport::InProcess), |url| {
                event_transport(url, stream)
            })?;
            config.lease = Duration::from_millis(lease_ms);
            config.name = name;
            let listener = bind("shop", listen).await?;
            shop::serve(listener, config, shutdown).await?;
        }
        Command::Provider { listen, ledger } => {
            let mut config = provider::Config::default();
            config.ledger = ledger;
            let listener = bind("provider", listen).await?;
            provider::serve(listener, config, shutdown).await?;
        }
    }
    Ok(())
}

fn parse_database(text: &str) -> Result<shop::Database, &'static str> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        return Ok(shop::Database::Postgres(text.to_owned()));
    }
    match text.strip_prefix("sqlite:") {
        Some(path) if !path.is_empty() => Ok(shop::Database::Sqlite(path.into())),
        Some(_) | None => Err("write sqlite:PATH or postgres://HOST/DATABASE"),
    }
}

fn event_transport(url: String, stream: String) -> anyhow::Result<shop::EventTransport> {
    match url.split_once("://") {
        Some(("nats" | "tls", _)) => Ok(shop::EventTransport::Nats { url, stream }),
        Some(("amqp" | "amqps", _)) => Ok(shop::EventTransport::RabbitMq {
            url,
            exchange: stream,
        }),
        Some(_) | None => anyhow::bail!("--events takes nats://… or amqp://…"),
    }
}

async fn wait_for_signal(mut terminate: Signal, mut interrupt: Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Binds and prints the address. Connections wait in the listener's queue until files are open.
async fn bind(name: &str, listen: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr()?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "listening {name} http://{address}")?;
    stdout.flush()?;
    Ok(listener)
}
