//! Rates and processor time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measurement {
    pub(crate) per_second: f64,
    /// Processor time of this process, all threads, per operation.
    pub(crate) cpu_micros: f64,
}

/// Runs `work`, which returns the number of operations.
pub(crate) fn measure(work: impl FnOnce() -> Result<u64>) -> Result<Measurement> {
    let (cpu, start) = (cpu_time()?, Instant::now());
    let operations = work()? as f64;
    let (cpu, elapsed) = (cpu_time()?.saturating_sub(cpu), start.elapsed());
    Ok(Measurement {
        per_second: operations / elapsed.as_secs_f64(),
        cpu_micros: cpu.as_secs_f64() * 1e6 / operations,
    })
}

/// The median of several runs, of each value separately.
pub(crate) fn median(measurements: &[Measurement]) -> Measurement {
    Measurement {
        per_second: middle(measurements.iter().map(|one| one.per_second)),
        cpu_micros: middle(measurements.iter().map(|one| one.cpu_micros)),
    }
}

/// The middle of the ratios within each round: a slow minute slows both sides.
pub(crate) fn median_ratio(measurements: &[Measurement], limits: &[Measurement]) -> f64 {
    middle(
        measurements
            .iter()
            .zip(limits)
            .map(|(one, limit)| one.per_second / limit.per_second),
    )
}

pub(crate) fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Processor time that this process has used.
pub(crate) fn cpu_time() -> Result<Duration> {
    // The kernel counts these in nanoseconds a thread, unlike the ticks of /proc/self/stat.
    let mut total = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let path = thread?.path().join("schedstat");
        // A thread may end while we look.
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        let running = text
            .split_whitespace()
            .next()
            .context("an empty schedstat")?;
        total += running.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(total))
}
