//! What callers feel of retention: how much longer their slowest calls take while millions of
//! records are being expired beside them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_core::{OperationId, Store};
use semel_sqlite::Sqlite;
use semel_worker::{CancellationToken, Worker};
use tokio::runtime::Runtime;

use crate::client::Latencies;
use crate::growth;
use crate::load::Contender as _;
use crate::measure::middle;
use crate::store::scratch;
use crate::target::{Limit, Target, verdict};

/// Callers at once.
const CALLERS: usize = 64;

/// How long ago the records were completed: their windows of a day are over.
pub(crate) const AGE: Duration = Duration::from_hours(48);

/// The most that the slowest hundredth may take longer.
const MOST: f64 = 1.5;

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// Records whose time is over.
    #[arg(long, default_value_t = 5_000_000)]
    records: u64,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// How often both are measured; the middle ratio counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Where the file is made; about 1.5 KB a record.
    #[arg(long)]
    directory: Option<PathBuf>,
}

/// The embedded store.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let directory = scratch(settings.directory.clone())?;
    let runtime = Runtime::new()?;
    let path = directory.path().join("retention.db");
    growth::fill(&runtime, &path, settings.records, AGE)?;
    println!("filled with {} records", settings.records);
    let store = runtime.block_on(Sqlite::open(&path))?;
    let time = Duration::from_secs_f64(settings.seconds);
    let target = measure(&runtime, &store, time, settings.rounds)?;
    verdict(&[target]);
    Ok(())
}

/// What the callers got done in a while, and how long the slowest hundredth of it took.
struct Felt {
    per_second: f64,
    p50: f64,
    p99: f64,
}

/// In turns without and with a worker, so that a slow minute slows both.
pub(crate) fn measure<S>(
    runtime: &Runtime,
    store: &S,
    time: Duration,
    rounds: usize,
) -> Result<Target>
where
    S: Store + Clone,
{
    // Fails only where it is installed already.
    let _ = metrics::set_global_recorder(Pruned);
    println!("retention: {CALLERS} callers, new keys");
    println!(
        "{:<10} {:>8} {:>9} {:>9} {:>12}",
        "", "ops/s", "p50 µs", "p99 µs", "expired/s"
    );
    let mut ratios = Vec::new();
    // The first warms up and does not count.
    for round in 0..=rounds {
        let alone = callers(runtime, store, time)?;
        let before = pruned();
        let shutdown = CancellationToken::new();
        let worker = runtime.spawn(Worker::new(store.clone()).run(shutdown.clone()));
        let start = Instant::now();
        let beside = callers(runtime, store, time);
        let elapsed = start.elapsed();
        shutdown.cancel();
        runtime.block_on(worker).context("the worker panicked")?;
        let beside = beside?;
        let expired = pruned() - before;
        println!(
            "{:<10} {:>8.0} {:>9.0} {:>9.0} {:>12}",
            "alone", alone.per_second, alone.p50, alone.p99, ""
        );
        println!(
            "{:<10} {:>8.0} {:>9.0} {:>9.0} {:>12.0}",
            "beside it",
            beside.per_second,
            beside.p50,
            beside.p99,
            expired / elapsed.as_secs_f64()
        );
        if round > 0 {
            ratios.push(beside.p99 / alone.p99);
        }
    }
    Ok(Target::new(
        "p99 beside retention / alone",
        Some(middle(ratios.into_iter())),
        Limit::AtMost(MOST),
    ))
}

fn callers<S: Store + Clone>(runtime: &Runtime, store: &S, time: Duration) -> Result<Felt> {
    let end = Instant::now() + time;
    let call = |store: S| async move {
        let mut times = Vec::new();
        loop {
            let start = Instant::now();
            if start >= end {
                return anyhow::Ok(times);
            }
            store
                .complete_new(&OperationId::generate().to_string())
                .await?;
            times.push(start.elapsed());
        }
    };
    let calling: Vec<_> = (0..CALLERS)
        .map(|_| runtime.spawn(call(store.clone())))
        .collect();
    let mut latencies = Latencies::new();
    let mut count = 0;
    for caller in calling {
        let times = runtime.block_on(caller).context("a caller panicked")??;
        count += times.len();
        for time in times {
            latencies.record(time);
        }
    }
    let [p50, p99] = latencies.percentiles([0.5, 0.99]);
    Ok(Felt {
        per_second: count as f64 / time.as_secs_f64(),
        p50,
        p99,
    })
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
