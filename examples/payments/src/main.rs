//! The servers as processes, so that tests and people can kill them and start them again.

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
        /// Where to listen; port 0 is any that is free
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
        /// Take no notice of a gateway's headers: a second execution is a second charge
        #[arg(long)]
        ignore_gateway: bool,
        /// Also serve `POST /unkeyed/payments`, which gives the provider no key
        #[arg(long)]
        unkeyed: bool,
    },
    /// The same business, told with the library
    Shop {
        /// Where to listen; port 0 is any that is free
        #[arg(long, default_value = "127.0.0.1:3002")]
        listen: SocketAddr,
        /// The provider's address
        #[arg(long, default_value = "http://127.0.0.1:3001")]
        provider: String,
        /// Where everything is kept: sqlite:PATH or postgres://…
        #[arg(long, default_value = "sqlite:shop.db", value_parser = database)]
        store: shop::Database,
        /// A broker between the shop and its consumers: nats://… or amqp://…
        #[arg(long)]
        events: Option<String>,
        /// What the stream or exchange is called at the broker
        #[arg(long, default_value = "shop")]
        stream: String,
        /// How long a silent process is thought to be alive
        #[arg(long, default_value_t = 10_000)]
        lease_ms: u64,
        /// What this process is called: the same when it is started again, another beside it
        #[arg(long, default_value = "shop")]
        name: String,
    },
    /// The provider
    Provider {
        /// Where to listen; port 0 is any that is free
        #[arg(long, default_value = "127.0.0.1:3001")]
        listen: SocketAddr,
        /// The file of the ledger; in memory without one
        #[arg(long)]
        ledger: Option<PathBuf>,
    },
}

/// 0 fine, 1 failure; usage errors end in `clap` with 2.
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

/// Standard error is where a command's reasons belong, and its only user is this function.
#[allow(clippy::print_stderr)]
fn report(error: &anyhow::Error) {
    eprintln!("payments: {error:#}");
}

#[tokio::main]
async fn run(command: Command) -> anyhow::Result<()> {
    // Before anything is announced: whoever reads the line may send the signal at once.
    let terminate = signal(SignalKind::terminate())?;
    let interrupt = signal(SignalKind::interrupt())?;
    let shutdown = stopped(terminate, interrupt);
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
            config.events = events.map_or(Ok(shop::Way::InProcess), |url| way(url, stream))?;
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

fn database(text: &str) -> Result<shop::Database, &'static str> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        return Ok(shop::Database::Postgres(text.to_owned()));
    }
    match text.strip_prefix("sqlite:") {
        Some(path) if !path.is_empty() => Ok(shop::Database::Sqlite(path.into())),
        Some(_) | None => Err("write sqlite:PATH or postgres://HOST/DATABASE"),
    }
}

fn way(url: String, stream: String) -> anyhow::Result<shop::Way> {
    match url.split_once("://") {
        Some(("nats" | "tls", _)) => Ok(shop::Way::Nats { url, stream }),
        Some(("amqp" | "amqps", _)) => Ok(shop::Way::RabbitMq {
            url,
            exchange: stream,
        }),
        Some(_) | None => anyhow::bail!("events go to nats://… or amqp://…"),
    }
}

async fn stopped(mut terminate: Signal, mut interrupt: Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Binds and announces. Connections wait in the listener's queue until files are open.
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
