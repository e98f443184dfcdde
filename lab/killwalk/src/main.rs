//! The payments shop with a control endpoint: the process that the kill walk starts and kills.
//!
//! On SQLite it traces every statement of the writing connection and kills itself before the
//! statement that the test chose. On PostgreSQL a proxy in the test does both, so the control
//! endpoint is not used.
//!
//! It prints two lines, `listening shop URL` and `listening control URL`.

mod kill_point;

use std::future::pending;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use payments::shop::{self, Config, Database};
use semel::Sqlite;
use tokio::net::TcpListener;

/// The payments shop, which can be killed between two SQL statements.
#[derive(Parser)]
struct Arguments {
    /// The provider's address
    #[arg(long)]
    provider: String,
    /// Where everything is kept: sqlite:PATH or postgres://…
    #[arg(long)]
    store: String,
    /// How long the lease of a process that died stays valid
    #[arg(long)]
    lease_ms: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let shop = announce("shop").await?;
    let control = announce("control").await?;
    tokio::spawn(async { axum::serve(control, kill_point::router()).await });

    let lease = Duration::from_millis(arguments.lease_ms);
    let config = |database| {
        let mut config = Config::new(&arguments.provider, database);
        config.lease = lease;
        config
    };
    if let Some(path) = arguments.store.strip_prefix("sqlite:") {
        let path = PathBuf::from(path);
        let store = Sqlite::open(&path).await.context("cannot open the store")?;
        kill_point::trace(&store).await?;
        let config = config(Database::Sqlite(path.clone()));
        shop::serve_sqlite(shop, store, &path, &config, pending()).await?;
    } else {
        let config = config(Database::Postgres(arguments.store.clone()));
        shop::serve(shop, config, pending()).await?;
    }
    Ok(())
}

/// Binds a free port and prints its address.
async fn announce(name: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "listening {name} http://{address}")?;
    stdout.flush()?;
    Ok(listener)
}
