//! Figures by the processes that worked for them.

use crate::measure::middle;

/// The result of one round.
#[derive(Clone, Copy)]
pub(super) struct Measurement {
    pub(super) per_second: f64,
    /// Processor time an operation of the process that asks Postgres, in microseconds.
    pub(super) cpu_own: f64,
    /// Of all processes of Postgres.
    pub(super) cpu_postgres: f64,
    /// Median and 99th percentile in microseconds, of requests.
    pub(super) latencies: Option<[f64; 2]>,
}

impl Measurement {
    pub(super) fn cpu(&self) -> f64 {
        self.cpu_own + self.cpu_postgres
    }
}

/// A table, line by line.
#[derive(Default)]
pub(super) struct Lines(Vec<Line>);

/// The measurements of one line of the table, a round each.
struct Line {
    name: String,
    measurements: Vec<Measurement>,
}

impl Lines {
    pub(super) fn record(&mut self, name: &str, measurement: Measurement) {
        match self.0.iter_mut().find(|line| line.name == name) {
            Some(line) => line.measurements.push(measurement),
            None => self.0.push(Line {
                name: name.to_owned(),
                measurements: vec![measurement],
            }),
        }
    }

    /// The median of the rounds.
    pub(super) fn median(&self, name: &str, value: fn(&Measurement) -> f64) -> Option<f64> {
        let line = self.0.iter().find(|line| line.name == name)?;
        Some(middle(line.measurements.iter().map(value)))
    }

    /// The middle of the ratios within each round: a slow minute slows both sides.
    pub(super) fn ratio(
        &self,
        name: &str,
        other: &str,
        value: fn(&Measurement) -> f64,
    ) -> Option<f64> {
        let find = |name| self.0.iter().find(|line| line.name == name);
        let rounds = find(name)?
            .measurements
            .iter()
            .zip(&find(other)?.measurements);
        Some(middle(rounds.map(|(one, other)| value(one) / value(other))))
    }

    pub(super) fn table(&self, what: &str, own: &str) {
        println!(
            "\n{what:<38} {:>9} {own:>9} {:>9} {:>9} {:>9} {:>9}",
            "per s", "Postgres", "CPU µs", "p50 µs", "p99 µs"
        );
        for Line { name, measurements } in &self.0 {
            let median = |value: fn(&Measurement) -> f64| middle(measurements.iter().map(value));
            let latency = |which: usize| {
                let rounds: Vec<_> = measurements.iter().filter_map(|it| it.latencies).collect();
                if rounds.is_empty() {
                    return "-".into();
                }
                format!("{:.0}", middle(rounds.iter().map(|round| round[which])))
            };
            println!(
                "{name:<38} {:>9.0} {:>9.1} {:>9.1} {:>9.1} {:>9} {:>9}",
                median(|one| one.per_second),
                median(|one| one.cpu_own),
                median(|one| one.cpu_postgres),
                median(Measurement::cpu),
                latency(0),
                latency(1),
            );
        }
        println!("medians of the rounds; CPU in µs an operation: {own}, Postgres, both");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(per_second: f64) -> Measurement {
        Measurement {
            per_second,
            cpu_own: 1.0,
            cpu_postgres: 2.0,
            latencies: None,
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
    }
}
