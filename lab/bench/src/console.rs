//! How long an operator waits for the console, with millions of operations in the store.
//!
//! The gateway is a process of its own, with its worker: the benchmark waits for the first
//! record counts and then requests the pages one after the other, while the worker goes on counting.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::growth;
use crate::http::knows_gateway;
use crate::postgres::{Server, filled};
use crate::process::Process;
use crate::store::scratch;
use crate::target::{Limit, Target, verdict};

/// Recent enough that nothing expires during the run.
const AGE: Duration = Duration::from_hours(1);

/// The longest that the overview may take, in milliseconds.
const MOST: f64 = 100.0;

/// How long a record count scan may take.
const PATIENCE: Duration = Duration::from_mins(15);

/// How often the benchmark polls for it.
const POLL: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// The `semel` binary.
    #[arg(long)]
    semel: Option<PathBuf>,
    /// A Postgres server, on this machine; without it only the embedded store is measured.
    #[arg(long)]
    postgres: Option<String>,
    /// Stored operations.
    #[arg(long, default_value_t = 5_000_000)]
    records: u64,
    /// How often each page is asked for.
    #[arg(long, default_value_t = 200)]
    times: usize,
    /// Where the files are made; about 1.5 KB a record.
    #[arg(long)]
    directory: Option<PathBuf>,
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let semel = knows_gateway(settings.semel.as_deref()).context("there is no gateway")?;
    let directory = scratch(settings.directory.clone())?;
    let runtime = Runtime::new()?;
    let mut targets = Vec::new();
    let path = directory.path().join("console.db");
    growth::fill(&runtime, &path, settings.records, AGE)?;
    let store = format!("sqlite:{}", path.display());
    targets.push(measure(semel, &store, settings, directory.path())?);
    std::fs::remove_file(&path)?;
    if let Some(url) = &settings.postgres {
        let server = Server::connect(url)?;
        let database = filled(&server, settings.records, AGE)?;
        targets.push(measure(semel, &database.url, settings, directory.path())?);
    }
    verdict(&targets);
    Ok(())
}

fn measure(semel: &Path, store: &str, settings: &Settings, directory: &Path) -> Result<Target> {
    let mut command = Command::new(semel);
    command
        .args([
            "gateway",
            "--listen=127.0.0.1:0",
            "--admin-listen=127.0.0.1:0",
        ])
        .args([
            "--upstream=http://127.0.0.1:9",
            "--tenant=none",
            "--store",
            store,
        ])
        .env("RUST_LOG", "error");
    let gateway = Process::announced(command, "listening admin ", directory)?;
    let scheme = store.split(':').next().unwrap_or_default();
    let counted = census(gateway.address)?;
    println!("{scheme}: {counted}");
    println!(
        "{:<34} {:>9} {:>9} {:>9}",
        "", "p50 ms", "p99 ms", "most ms"
    );
    let mut most = 0.0;
    for (name, path) in [
        ("overview", "/"),
        ("overview, what is refreshed", "/fragments/overview"),
        ("newest operations", "/operations"),
        ("under a key", "/operations?key=one-that-was-never-used"),
        (
            "of a tenant that was never seen",
            "/operations?tenant=unknown",
        ),
        ("dead letters", "/dead-letters"),
    ] {
        let mut took = Vec::with_capacity(settings.times);
        for _ in 0..settings.times {
            let start = Instant::now();
            let (status, _) = get(gateway.address, path)?;
            took.push(start.elapsed().as_secs_f64() * 1e3);
            ensure!(status == 200, "{path} was answered with {status}");
        }
        took.sort_by(f64::total_cmp);
        let at = |part: f64| took[((took.len() - 1) as f64 * part).round() as usize];
        println!(
            "{name:<34} {:>9.1} {:>9.1} {:>9.1}",
            at(0.5),
            at(0.99),
            at(1.0)
        );
        if path == "/" {
            most = at(0.99);
        }
    }
    Ok(Target::new(
        format!("overview of {}, {scheme}, p99 ms", settings.records),
        Some(most),
        Limit::AtMost(MOST),
    ))
}

/// Waits for the first record counts. Returns them, and how long the scan took.
fn census(address: SocketAddr) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let start = Instant::now();
    while Instant::now() < deadline {
        let (_, body) = get(address, "/api/v1/stats")?;
        let stats: Value = serde_json::from_slice(&body)?;
        if let Some(counts) = stats["counts"].as_array()
            && !stats["counted_at"].is_null()
        {
            let sum: u64 = counts.iter().filter_map(|c| c["count"].as_u64()).sum();
            return Ok(format!(
                "{sum} operations counted in {:.0?}",
                start.elapsed()
            ));
        }
        std::thread::sleep(POLL);
    }
    bail!("no census ended within {PATIENCE:?}")
}

/// One request on a connection of its own, to its last byte.
fn get(address: SocketAddr, path: &str) -> Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/html\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let head = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .context("an answer has a head")?;
    let status = std::str::from_utf8(&answer[9..12])?.parse()?;
    Ok((status, answer.split_off(head + 4)))
}
