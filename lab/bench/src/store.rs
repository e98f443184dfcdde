//! The embedded store beside its limits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use semel_sqlite::Sqlite;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::bare::{BareSqlite, LEAST, OWN, appends};
use crate::load::{completed, new_operations, replays};
use crate::measure::{Measurement, measure, median, median_ratio};

const CALLERS: [usize; 4] = [1, 8, 64, 256];

/// Operations whose replays are measured.
const REPLAYED: usize = 20_000;

/// How far the order of the cases moves on from round to round.
const STRIDE: usize = 5;

/// The measurements of one line of the table, a round each.
struct Line {
    name: String,
    measurements: Vec<Measurement>,
}

/// Runs for the measured time. Returns the number of operations.
type Case<'a> = Box<dyn Fn() -> Result<u64> + 'a>;

pub(crate) fn run(
    seconds: f64,
    rounds: usize,
    directory: Option<PathBuf>,
    only: &[String],
) -> Result<()> {
    let directory = scratch(directory)?;
    let at = |name: &str| directory.path().join(name);
    let time = Duration::from_secs_f64(seconds);
    let runtime = Runtime::new()?;
    let store = runtime.block_on(Sqlite::open(at("semel.db")))?;
    let least = BareSqlite::open(&at("least.db"), LEAST)?;
    // Opened once by the store, which creates the schema.
    drop(runtime.block_on(Sqlite::open(at("own.db")))?);
    let own = BareSqlite::open(&at("own.db"), OWN)?;
    let keys = completed(&runtime, &store, REPLAYED)?;

    let mut cases: Vec<(String, Case<'_>)> = vec![
        (
            "appends, 1 to an fdatasync".into(),
            Box::new(|| appends(&at("append"), 1, time)),
        ),
        (
            "appends, 64 to an fdatasync".into(),
            Box::new(|| appends(&at("append"), 64, time)),
        ),
    ];
    for (name, bare) in [("least table", &least), ("own statements", &own)] {
        for group in [1, 64] {
            cases.push((
                format!("bare SQLite, {name}, {group} to a commit"),
                Box::new(move || bare.operations(group, time)),
            ));
        }
    }
    let (runtime, store, keys) = (&runtime, &store, &keys);
    for callers in CALLERS {
        cases.push((
            format!("semel-sqlite, new, {callers} callers"),
            Box::new(move || new_operations(runtime, store, callers, time)),
        ));
    }
    for callers in CALLERS {
        cases.push((
            format!("semel-sqlite, replay, {callers} callers"),
            Box::new(move || replays(runtime, store, keys, callers, time)),
        ));
    }
    cases.retain(|(name, _)| only.is_empty() || only.iter().any(|only| name.contains(only)));

    let mut lines: Vec<_> = cases
        .iter()
        .map(|(name, _)| Line {
            name: name.clone(),
            measurements: Vec::new(),
        })
        .collect();
    // In turns, each round beginning with another case: a minute in which the disk is slow is slow
    // for all, and no case always runs after the one that leaves the disk the most work.
    for round in 0..rounds {
        for turn in 0..cases.len() {
            let case = (turn + round * STRIDE) % cases.len();
            lines[case].measurements.push(measure(&cases[case].1)?);
        }
    }
    report(&lines);
    Ok(())
}

fn report(lines: &[Line]) {
    println!(
        "{:<38} {:>12} {:>12}",
        "median of the rounds", "ops/s", "CPU µs/op"
    );
    for Line { name, measurements } in lines {
        let Measurement {
            per_second,
            cpu_micros,
        } = median(measurements);
        println!("{name:<38} {per_second:>12.0} {cpu_micros:>12.1}");
    }
    println!("\nratios of new operations, medians of the ratios within each round");
    let find = |name: &str| lines.iter().find(|line| line.name == name);
    for (callers, group, wanted) in [(1, 1, "0.9"), (64, 64, "0.7, aim for 0.9"), (256, 64, "-")] {
        for table in ["own statements", "least table"] {
            let line = find(&format!("semel-sqlite, new, {callers} callers"));
            let limit = find(&format!("bare SQLite, {table}, {group} to a commit"));
            if let (Some(line), Some(limit)) = (line, limit) {
                let ratio = median_ratio(&line.measurements, &limit.measurements);
                println!(
                    "{} / {}: {ratio:.2} (wanted: {wanted})",
                    line.name, limit.name
                );
            }
        }
    }
}

/// A directory that is removed at the end, on the disk that is asked for.
pub(crate) fn scratch(directory: Option<PathBuf>) -> Result<Arc<TempDir>> {
    let directory = match directory {
        Some(directory) => tempfile::tempdir_in(directory)?,
        None => tempfile::tempdir()?,
    };
    Ok(Arc::new(directory))
}
