//! The store in Postgres: beside what most teams write by hand, and beside the limit of the
//! server, in one run.
//!
//! Postgres has its default settings, so every commit is on the disk before it is answered.
//! Every measurement begins with an empty database and new connections: the plans are made
//! while the table is empty, as they are in a new installation, and used while it fills.

mod commits;
mod growth;
mod hand;
mod http;
mod limit;
mod measurements;
mod retention;
mod server;
mod store;
mod subject;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};

pub(crate) use growth::filled;
pub(crate) use hand::service as hand_written;
pub(crate) use server::{Server, connect};
pub(crate) use subject::open;

use crate::target;

/// What the store itself is compared by.
const SEMEL: &str = "semel-postgres";
const HAND: &str = "hand-written";

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// The server, on this machine: its user may create databases. Databases that begin with
    /// `semel_bench_` are made and dropped, and no other is touched.
    #[arg(long)]
    postgres: String,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How often everything is measured; the middle one counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// HTTP connections that are kept alive, each with one request under way.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// The size that the store grows to; about 2 KB a row on the disk.
    #[arg(long, default_value_t = 5_000_000)]
    rows: u64,
    /// Fills the growing table by reserving and completing, which takes longer than writing
    /// the rows.
    #[arg(long)]
    fill_through_store: bool,
    /// Measures only these.
    #[arg(long, value_enum, value_delimiter = ',')]
    part: Vec<Part>,
    /// Of the store and of HTTP measures only the lines whose name contains one of these.
    #[arg(long)]
    only: Vec<String>,
    /// One short round of everything on small tables: shows that it works, and nothing else.
    #[arg(long)]
    quick: bool,
    /// Where the logs of the servers go while they run.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Fails if a target is missed, or was to be measured and could not be.
    #[arg(long)]
    check: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Reserve, complete and replay, without HTTP.
    Store,
    /// Services over HTTP.
    Http,
    /// What an operation costs while the table grows.
    Growth,
    /// How often an operation commits.
    Commits,
    /// What callers feel of retention.
    Retention,
}

/// How much is measured.
struct Extent {
    time: Duration,
    rounds: usize,
    connections: usize,
    /// From how many rows to how many.
    rows: [u64; 2],
    /// Operations whose commits are counted.
    counted: u64,
    /// Operations whose replays are measured.
    replayed: usize,
    fill_through_store: bool,
    only: Vec<String>,
}

impl Extent {
    fn of(settings: &Settings) -> Self {
        let thorough = Self {
            time: Duration::from_secs_f64(settings.seconds),
            rounds: settings.rounds,
            connections: settings.connections,
            rows: [100_000, settings.rows],
            counted: 1_000,
            replayed: 10_000,
            fill_through_store: settings.fill_through_store,
            only: settings.only.clone(),
        };
        if !settings.quick {
            return thorough;
        }
        Self {
            time: Duration::from_millis(100),
            rounds: 1,
            rows: [1_000, 2_000],
            counted: 50,
            replayed: 500,
            ..thorough
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only))
    }
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let server = Server::connect(&settings.postgres)?;
    let extent = Extent::of(settings);
    let wants = |part| settings.part.is_empty() || settings.part.contains(&part);
    let mut targets = Vec::new();
    if wants(Part::Store) {
        targets.extend(store::run(&server, &extent)?);
    }
    if wants(Part::Http) {
        targets.extend(http::run(&server, &extent, settings.directory.clone())?);
    }
    if wants(Part::Growth) {
        targets.extend(growth::run(&server, &extent)?);
    }
    if wants(Part::Commits) {
        targets.extend(commits::run(&server, &extent)?);
    }
    if wants(Part::Retention) {
        targets.push(retention::run(&server, &extent)?);
    }
    let kept = target::verdict(&targets);
    let all_asked_for = settings.part.is_empty() && settings.only.is_empty();
    ensure!(
        !settings.check || kept.holds(all_asked_for),
        "not every target is reached"
    );
    Ok(())
}
