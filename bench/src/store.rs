//! The embedded store beside its limits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use semel_sqlite::Sqlite;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::bare::{BareSqlite, appends};
use crate::load::{completed, new_operations, replays};
use crate::measure::{Figure, figure, median, median_ratio};

const CALLERS: [usize; 4] = [1, 8, 64, 256];

/// Operations whose replays are measured.
const REPLAYED: usize = 20_000;

/// The figures of one line of the table, a round each.
struct Line {
    name: String,
    figures: Vec<Figure>,
}

pub(crate) fn run(seconds: f64, rounds: usize, directory: Option<PathBuf>) -> Result<()> {
    let directory = scratch(directory)?;
    let at = |name: &str| directory.path().join(name);
    let time = Duration::from_secs_f64(seconds);
    let runtime = Runtime::new()?;
    let store = runtime.block_on(Sqlite::open(at("semel.db")))?;
    let bare = BareSqlite::create(&at("bare.db"))?;
    let keys = completed(&runtime, &store, REPLAYED)?;

    let mut lines = Vec::new();
    // In turns: a minute in which the disk is slow is slow for all.
    for round in 0..rounds {
        let mut measured = Vec::new();
        let mut note = |name: String, figure: Figure| measured.push((name, figure));
        note(
            "appends, 1 to an fdatasync".into(),
            figure(|| appends(&at("append"), 1, time))?,
        );
        note(
            "appends, 64 to an fdatasync".into(),
            figure(|| appends(&at("append"), 64, time))?,
        );
        note(
            "bare SQLite, 1 to a commit".into(),
            figure(|| bare.operations(1, time))?,
        );
        note(
            "bare SQLite, 64 to a commit".into(),
            figure(|| bare.operations(64, time))?,
        );
        for callers in CALLERS {
            let name = format!("semel-sqlite, new, {callers} callers");
            note(
                name,
                figure(|| new_operations(&runtime, &store, callers, time))?,
            );
        }
        for callers in CALLERS {
            let name = format!("semel-sqlite, replay, {callers} callers");
            note(
                name,
                figure(|| replays(&runtime, &store, &keys, callers, time))?,
            );
        }
        if round == 0 {
            lines.extend(measured.iter().map(|(name, _)| Line {
                name: name.clone(),
                figures: Vec::new(),
            }));
        }
        for (line, (_, figure)) in lines.iter_mut().zip(measured) {
            line.figures.push(figure);
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
    for Line { name, figures } in lines {
        let Figure {
            per_second,
            cpu_micros,
        } = median(figures);
        println!("{name:<38} {per_second:>12.0} {cpu_micros:>12.1}");
    }
    println!("\nratios of new operations, medians of the ratios within each round");
    let find = |name: &str| lines.iter().find(|line| line.name == name);
    for (line, limit, wanted) in [
        (
            "semel-sqlite, new, 1 callers",
            "bare SQLite, 1 to a commit",
            "0.9",
        ),
        (
            "semel-sqlite, new, 64 callers",
            "bare SQLite, 64 to a commit",
            "0.7, aim for 0.9",
        ),
        (
            "semel-sqlite, new, 256 callers",
            "bare SQLite, 64 to a commit",
            "none",
        ),
    ] {
        if let (Some(line), Some(limit)) = (find(line), find(limit)) {
            let ratio = median_ratio(&line.figures, &limit.figures);
            println!(
                "{} / {}: {ratio:.2} (at least: {wanted})",
                line.name, limit.name
            );
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
