//! What callers feel of retention: how much longer their slowest calls take while millions of
//! records are being expired beside them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_core::Store;
use semel_sqlite::Sqlite;
use semel_worker::{CancellationToken, Worker};
use tokio::runtime::Runtime;

use crate::growth;
use crate::load::new_operations;
use crate::measure::{Lines, Measurement, measure, middle};
use crate::report::{Output, Report};
use crate::store::scratch;
use crate::target::{Limit, Target};

/// Callers at once.
const CALLERS: usize = 64;

/// How long ago the records were completed: their windows of a day are over.
pub(crate) const AGE: Duration = Duration::from_hours(48);

/// The most that the slowest hundredth may take longer.
const MOST: f64 = 1.2;

/// The most that ten million records may take.
const MOST_MINUTES: f64 = 60.0;

const ALONE: &str = "alone";
const BESIDE: &str = "beside retention";

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// Records whose time is over.
    #[arg(long, default_value_t = 5_000_000)]
    pub(crate) records: u64,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 10.0)]
    pub(crate) seconds: f64,
    /// How often both are measured; the middle ratio counts.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Where the file is made; about 1.5 KB a record.
    #[arg(long)]
    pub(crate) directory: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The embedded store.
pub(crate) fn run(report: &mut Report, settings: &Settings) -> Result<()> {
    let directory = scratch(settings.directory.clone())?;
    let runtime = Runtime::new()?;
    let path = directory.path().join("retention.db");
    growth::fill(&runtime, &path, settings.records, AGE)?;
    println!("filled with {} records", settings.records);
    let store = runtime.block_on(Sqlite::open(&path))?;
    let time = Duration::from_secs_f64(settings.seconds);
    measure_beside(report, "SQLite", &runtime, &store, time, settings.rounds)
}

/// In turns without and with a worker, so that a slow minute slows both.
pub(crate) fn measure_beside<S>(
    report: &mut Report,
    name: &str,
    runtime: &Runtime,
    store: &S,
    time: Duration,
    rounds: usize,
) -> Result<()>
where
    S: Store + Clone,
{
    // Fails only where it is installed already.
    let _ = metrics::set_global_recorder(Pruned);
    println!("\nretention: {CALLERS} callers, new keys");
    let callers = || measure(|| new_operations(runtime, store, CALLERS, time));
    let mut lines = Lines::default();
    let mut expired = Vec::new();
    // The first warms up and does not count.
    for round in 0..=rounds {
        let alone = callers()?;
        let before = pruned();
        let shutdown = CancellationToken::new();
        let worker = runtime.spawn(Worker::new(store.clone()).run(shutdown.clone()));
        let start = Instant::now();
        let beside = callers();
        let elapsed = start.elapsed();
        shutdown.cancel();
        runtime.block_on(worker).context("the worker panicked")?;
        if round > 0 {
            lines.record(ALONE, alone);
            lines.record(BESIDE, beside?);
            expired.push((pruned() - before) / elapsed.as_secs_f64());
        }
    }
    report.table(
        &format!("retention, {name}: {CALLERS} callers"),
        &lines,
        |_| vec![ALONE.into()],
    );
    let expired = middle(expired.into_iter());
    println!("{expired:.0} records expired per second");
    let p99 = |one: &Measurement| one.latencies.map_or(f64::NAN, |[_, p99]| p99);
    report.targets([
        Target::new(
            format!("retention, {name}: p99 beside it / alone"),
            lines.ratio(BESIDE, ALONE, p99),
            Limit::AtMost(MOST),
        ),
        Target::new(
            format!("retention, {name}: minutes for 10,000,000 records"),
            Some(1e7 / expired / 60.0),
            Limit::AtMost(MOST_MINUTES),
        ),
    ]);
    Ok(())
}

/// Counts the records that the worker reports as removed.
struct Pruned;

static PRUNED: LazyLock<Arc<AtomicU64>> = LazyLock::new(Arc::default);

fn pruned() -> f64 {
    PRUNED.load(Ordering::Relaxed) as f64
}

impl Recorder for Pruned {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if key.name() == semel_worker::meters::names::PRUNED {
            Counter::from_arc(Arc::clone(&PRUNED))
        } else {
            Counter::noop()
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
