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
mod retention;
mod server;
mod store;
mod subject;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

pub(crate) use growth::filled;
pub(crate) use hand::service as hand_written;
pub(crate) use server::{Server, connect};
pub(crate) use subject::open;

use crate::growth::small_beside;
use crate::report::{Output, Report};

/// What the store itself is compared by.
const SEMEL: &str = "semel-postgres";
const HAND: &str = "hand-written";

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// The server, on this machine: its user may create databases. Databases that begin with
    /// `semel_bench_` are made and dropped, and no other is touched.
    #[arg(long)]
    pub(crate) postgres: String,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 5.0)]
    pub(crate) seconds: f64,
    /// How often everything is measured; the middle one counts.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// HTTP connections that are kept alive, each with one request under way.
    #[arg(long, default_value_t = 64)]
    pub(crate) connections: usize,
    /// The size that the store grows to; about 2 KB a row on the disk.
    #[arg(long, default_value_t = 5_000_000)]
    pub(crate) rows: u64,
    /// Fills the growing table by reserving and completing, which takes longer than writing
    /// the rows.
    #[arg(long)]
    pub(crate) fill_through_store: bool,
    /// Measures only these.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) part: Vec<Part>,
    /// Of the store and of HTTP measures only the lines whose name contains one of these.
    #[arg(long)]
    pub(crate) only: Vec<String>,
    /// One short round of everything on small tables: shows that it works, and nothing else.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Where the logs of the servers go while they run.
    #[arg(long)]
    pub(crate) directory: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
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
            rows: [small_beside(settings.rows), settings.rows],
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
            rows: [200, 2_000],
            counted: 50,
            replayed: 500,
            ..thorough
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only))
    }
}

pub(crate) fn run(report: &mut Report, settings: &Settings) -> Result<()> {
    let server = Server::connect(&settings.postgres)?;
    let extent = Extent::of(settings);
    let wants = |part| settings.part.is_empty() || settings.part.contains(&part);
    if wants(Part::Store) {
        store::run(report, &server, &extent)?;
    }
    if wants(Part::Http) {
        http::run(report, &server, &extent, settings.directory.clone())?;
    }
    if wants(Part::Growth) {
        growth::run(report, &server, &extent)?;
    }
    if wants(Part::Commits) {
        commits::run(report, &server, &extent)?;
    }
    if wants(Part::Retention) {
        retention::run(report, &server, &extent)?;
    }
    Ok(())
}

impl Settings {
    pub(crate) fn asks_for_all(&self) -> bool {
        self.part.is_empty() && self.only.is_empty()
    }
}
