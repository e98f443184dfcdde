//! The embedded store beside its limits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use semel_sqlite::Sqlite;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::bare::{BareSqlite, HandSqlite, LEAST, OWN, appends};
use crate::load::{completed, new_operations, replays};
use crate::measure::{Lines, Work, measure};
use crate::report::{Output, Report};
use crate::target::{Limit, Target};

const SEMEL: &str = "semel-sqlite";
const HAND: &str = "hand-written";
const OWN_STATEMENTS: &str = "own statements";

const CALLERS: [usize; 4] = [1, 8, 64, 256];

/// Operations whose replays are measured.
const REPLAYED: usize = 20_000;

/// How far the order of the cases moves on from round to round.
const STRIDE: usize = 5;

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 2.0)]
    pub(crate) seconds: f64,
    /// How often everything is measured; the middle one counts.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Where the files are made; a directory on the disk in question.
    #[arg(long)]
    pub(crate) directory: Option<PathBuf>,
    /// Measures only the lines whose name contains one of these.
    #[arg(long)]
    pub(crate) only: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Runs for the measured time. Returns the number of operations.
type Case<'a> = Box<dyn Fn() -> Result<Work> + 'a>;

pub(crate) fn run(report: &mut Report, settings: &Settings) -> Result<()> {
    let directory = scratch(settings.directory.clone())?;
    let at = |name: &str| directory.path().join(name);
    let time = Duration::from_secs_f64(settings.seconds);
    let runtime = Runtime::new()?;
    let store = runtime.block_on(Sqlite::open(at("semel.db")))?;
    let least = BareSqlite::open(&at("least.db"), LEAST)?;
    // Opened once by the store, which creates the schema.
    drop(runtime.block_on(Sqlite::open(at("own.db")))?);
    let own = BareSqlite::open(&at("own.db"), OWN)?;
    let keys = completed(&runtime, &store, REPLAYED)?;
    let hand = HandSqlite::open(&at("hand.db"))?;

    let mut cases: Vec<(String, Case<'_>)> = vec![
        (
            "appends, 1 to an fdatasync".into(),
            Box::new(|| Ok(appends(&at("append"), 1, time)?.into())),
        ),
        (
            "appends, 64 to an fdatasync".into(),
            Box::new(|| Ok(appends(&at("append"), 64, time)?.into())),
        ),
    ];
    for (table, loops) in [("least table", &least), (OWN_STATEMENTS, &own)] {
        for group in [1, 64] {
            cases.push((
                bare(table, group),
                Box::new(move || Ok(loops.operations(group, time)?.into())),
            ));
        }
    }
    let (runtime, store, keys, hand) = (&runtime, &store, &keys, &hand);
    for callers in CALLERS {
        cases.push((
            new(callers),
            Box::new(move || new_operations(runtime, store, callers, time)),
        ));
    }
    for callers in CALLERS {
        cases.push((
            format!("{SEMEL}, replay, {callers} callers"),
            Box::new(move || replays(runtime, store, keys, callers, time)),
        ));
    }
    for callers in CALLERS {
        cases.push((
            format!("{HAND}, new, {callers} callers"),
            Box::new(move || new_operations(runtime, hand, callers, time)),
        ));
    }
    let only = &settings.only;
    cases.retain(|(name, _)| only.is_empty() || only.iter().any(|only| name.contains(only)));

    let mut lines = Lines::default();
    // In turns, each round beginning with another case: a minute in which the disk is slow is slow
    // for all, and no case always runs after the one that leaves the disk the most work.
    for round in 0..settings.rounds {
        for turn in 0..cases.len() {
            let (name, case) = &cases[(turn + round * STRIDE) % cases.len()];
            lines.record(name, measure(case)?);
        }
    }
    report.table("SQLite: reserve and complete, 1 KiB", &lines, peers);
    let rate = |callers: usize, group: usize| {
        let (name, limit) = (new(callers), bare(OWN_STATEMENTS, group));
        lines.ratio(&name, &limit, |one| one.per_second)
    };
    report.targets([
        Target::new(
            "SQLite, new, 1 caller: rate / a commit per step",
            rate(1, 1),
            Limit::AtLeast(0.95),
        ),
        Target::new(
            "SQLite, new, 64 callers: rate / groups of 64",
            rate(64, 64),
            Limit::AtLeast(0.9),
        ),
    ]);
    Ok(())
}

fn new(callers: usize) -> String {
    format!("{SEMEL}, new, {callers} callers")
}

fn bare(table: &str, group: usize) -> String {
    format!("bare SQLite, {table}, {group} to a commit")
}

/// What a new operation is compared with: the loop with the same statements, and what is written by hand.
fn peers(name: &str) -> Vec<String> {
    let Some(callers) = name.strip_prefix(&format!("{SEMEL}, new, ")) else {
        return Vec::new();
    };
    let group = if callers == "1 callers" { 1 } else { 64 };
    vec![
        bare(OWN_STATEMENTS, group),
        format!("{HAND}, new, {callers}"),
    ]
}

/// A directory that is removed at the end, on the disk that is asked for.
pub(crate) fn scratch(directory: Option<PathBuf>) -> Result<Arc<TempDir>> {
    let directory = match directory {
        Some(directory) => tempfile::tempdir_in(directory)?,
        None => tempfile::tempdir()?,
    };
    Ok(Arc::new(directory))
}
