//! Measurements, and tables of them.

use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::client::Latencies;

/// The result of one round.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Measurement {
    pub(crate) per_second: f64,
    /// Processor time per operation of the process under test, in microseconds. Where that is a store,
    /// its callers are part of the process.
    pub(crate) cpu_own: f64,
    /// Of what works for it: the application behind a proxy, the database of an application.
    pub(crate) cpu_behind: f64,
    /// Median and 99th percentile in microseconds.
    pub(crate) latencies: Option<[f64; 2]>,
    /// Bytes of PostgreSQL's log per operation.
    pub(crate) log_bytes: Option<f64>,
}

impl Measurement {
    pub(crate) fn cpu(&self) -> f64 {
        self.cpu_own + self.cpu_behind
    }
}

/// What callers did while they were measured.
pub(crate) struct Work {
    pub(crate) operations: u64,
    pub(crate) latencies: Option<Latencies>,
}

impl Work {
    /// Median and 99th percentile in microseconds. Sorts, so it is not called while measuring.
    pub(crate) fn percentiles(&mut self) -> Option<[f64; 2]> {
        let latencies = self.latencies.as_mut()?;
        Some(latencies.percentiles([0.5, 0.99]))
    }
}

impl From<u64> for Work {
    fn from(operations: u64) -> Self {
        Self {
            operations,
            latencies: None,
        }
    }
}

/// Runs `work` and measures this process.
pub(crate) fn measure<W: Into<Work>>(work: impl FnOnce() -> Result<W>) -> Result<Measurement> {
    let (cpu, start) = (cpu_time()?, Instant::now());
    let mut work = work()?.into();
    let (cpu, elapsed) = (cpu_time()?.saturating_sub(cpu), start.elapsed());
    let operations = work.operations as f64;
    Ok(Measurement {
        per_second: operations / elapsed.as_secs_f64(),
        cpu_own: cpu.as_secs_f64() * 1e6 / operations,
        latencies: work.percentiles(),
        ..Measurement::default()
    })
}

/// A table, line by line.
#[derive(Default)]
pub(crate) struct Lines(Vec<Line>);

/// The measurements of one line, a round each.
struct Line {
    name: String,
    measurements: Vec<Measurement>,
}

/// One line of a table, beside what it is compared with.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// The median of each value.
    pub(crate) median: Measurement,
    pub(crate) cpu: f64,
    pub(crate) beside: Vec<Beside>,
}

/// Ratios, each the middle of those within a round: a slow minute slows both sides.
#[derive(Serialize)]
pub(crate) struct Beside {
    pub(crate) peer: String,
    pub(crate) rate: f64,
    pub(crate) cpu: f64,
}

impl Lines {
    pub(crate) fn record(&mut self, name: &str, measurement: Measurement) {
        match self.0.iter_mut().find(|line| line.name == name) {
            Some(line) => line.measurements.push(measurement),
            None => self.0.push(Line {
                name: name.to_owned(),
                measurements: vec![measurement],
            }),
        }
    }

    fn find(&self, name: &str) -> Option<&Line> {
        self.0.iter().find(|line| line.name == name)
    }

    /// The median of the rounds.
    pub(crate) fn median(&self, name: &str, value: fn(&Measurement) -> f64) -> Option<f64> {
        Some(self.find(name)?.median(value))
    }

    /// The middle of the ratios within each round.
    pub(crate) fn ratio(
        &self,
        name: &str,
        peer: &str,
        value: fn(&Measurement) -> f64,
    ) -> Option<f64> {
        let rounds = self
            .find(name)?
            .measurements
            .iter()
            .zip(&self.find(peer)?.measurements);
        Some(middle(rounds.map(|(one, peer)| value(one) / value(peer))))
    }

    /// Every line; `peers` names what a line is compared with.
    pub(crate) fn rows(&self, peers: impl Fn(&str) -> Vec<String>) -> Vec<Row> {
        let row = |line: &Line| {
            let beside = |peer: String| {
                Some(Beside {
                    rate: self.ratio(&line.name, &peer, |one| one.per_second)?,
                    cpu: self.ratio(&line.name, &peer, Measurement::cpu)?,
                    peer,
                })
            };
            Row {
                name: line.name.clone(),
                median: line.medians(),
                cpu: line.median(Measurement::cpu),
                beside: peers(&line.name)
                    .into_iter()
                    .filter(|peer| *peer != line.name)
                    .filter_map(beside)
                    .collect(),
            }
        };
        self.0.iter().map(row).collect()
    }
}

impl Line {
    fn median(&self, value: fn(&Measurement) -> f64) -> f64 {
        middle(self.measurements.iter().map(value))
    }

    fn medians(&self) -> Measurement {
        let all = |value: fn(&Measurement) -> Option<f64>| {
            let values: Option<Vec<f64>> = self.measurements.iter().map(value).collect();
            values.map(|values| middle(values.into_iter()))
        };
        let p50 = all(|one| one.latencies.map(|[p50, _]| p50));
        let p99 = all(|one| one.latencies.map(|[_, p99]| p99));
        Measurement {
            per_second: self.median(|one| one.per_second),
            cpu_own: self.median(|one| one.cpu_own),
            cpu_behind: self.median(|one| one.cpu_behind),
            latencies: p50.zip(p99).map(|(p50, p99)| [p50, p99]),
            log_bytes: all(|one| one.log_bytes),
        }
    }
}

pub(crate) fn print(title: &str, rows: &[Row]) {
    println!(
        "\n{title:<40} {:>9} {:>8} {:>8} {:>9} {:>9} {:>7}",
        "per s", "CPU µs", "+behind", "p50 µs", "p99 µs", "log B"
    );
    for row in rows {
        let median = &row.median;
        let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.0}"));
        println!(
            "{:<40} {:>9.0} {:>8.1} {:>8.1} {:>9} {:>9} {:>7}",
            row.name,
            median.per_second,
            median.cpu_own,
            row.cpu,
            number(median.latencies.map(|[p50, _]| p50)),
            number(median.latencies.map(|[_, p99]| p99)),
            number(median.log_bytes),
        );
    }
    println!(
        "medians of the rounds, per operation; CPU: of the process under test; +behind: and of the \
         application behind a proxy or the database"
    );
    for row in rows {
        for Beside { peer, rate, cpu } in &row.beside {
            println!(
                "{:<40} / {peer:<36} rate {rate:>5.2}  CPU {cpu:>5.2}",
                row.name
            );
        }
    }
}

pub(crate) fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Processor time that this process has used, threads that have ended included.
pub(crate) fn cpu_time() -> Result<Duration> {
    Ok(Duration::try_from(clock_gettime(ClockId::ProcessCPUTime))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(per_second: f64) -> Measurement {
        Measurement {
            per_second,
            cpu_own: 1.0,
            cpu_behind: 2.0,
            ..Measurement::default()
        }
    }

    #[test]
    fn ratios_are_taken_within_the_rounds() {
        let mut lines = Lines::default();
        for (one, other) in [(90.0, 100.0), (9.0, 10.0), (50.0, 100.0)] {
            lines.record("one", measurement(one));
            lines.record("other", measurement(other));
        }
        let ratio = |name, other| lines.ratio(name, other, |one| one.per_second);
        assert!((ratio("one", "other").unwrap() - 0.9).abs() < 1e-9);
        assert!(ratio("one", "none").is_none());
        let cpu = lines.median("one", Measurement::cpu);
        assert!((cpu.unwrap() - 3.0).abs() < 1e-9);
        let rows = lines.rows(|name| vec![if name == "one" { "other" } else { "none" }.into()]);
        assert_eq!((rows[0].beside.len(), rows[1].beside.len()), (1, 0));
    }
}
