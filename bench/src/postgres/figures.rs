//! Figures by the processes that worked for them.

use crate::measure::middle;

/// What one round came to.
#[derive(Clone, Copy)]
pub(super) struct Figure {
    pub(super) per_second: f64,
    /// Processor time an operation of the process that asks Postgres, in microseconds.
    pub(super) cpu_own: f64,
    /// Of all processes of Postgres.
    pub(super) cpu_postgres: f64,
    /// Median and 99th percentile in microseconds, of requests.
    pub(super) latencies: Option<[f64; 2]>,
}

impl Figure {
    pub(super) fn cpu(&self) -> f64 {
        self.cpu_own + self.cpu_postgres
    }
}

/// A table, line by line.
#[derive(Default)]
pub(super) struct Lines(Vec<Line>);

/// The figures of one line of the table, a round each.
struct Line {
    name: String,
    figures: Vec<Figure>,
}

impl Lines {
    pub(super) fn record(&mut self, name: &str, figure: Figure) {
        match self.0.iter_mut().find(|line| line.name == name) {
            Some(line) => line.figures.push(figure),
            None => self.0.push(Line {
                name: name.to_owned(),
                figures: vec![figure],
            }),
        }
    }

    /// The middle of the rounds.
    pub(super) fn median(&self, name: &str, figure: fn(&Figure) -> f64) -> Option<f64> {
        let line = self.0.iter().find(|line| line.name == name)?;
        Some(middle(line.figures.iter().map(figure)))
    }

    /// The middle of the ratios within each round: a slow minute slows both sides.
    pub(super) fn ratio(&self, name: &str, other: &str, figure: fn(&Figure) -> f64) -> Option<f64> {
        let find = |name| self.0.iter().find(|line| line.name == name);
        let rounds = find(name)?.figures.iter().zip(&find(other)?.figures);
        Some(middle(
            rounds.map(|(one, other)| figure(one) / figure(other)),
        ))
    }

    pub(super) fn table(&self, what: &str, own: &str) {
        println!(
            "\n{what:<38} {:>9} {own:>9} {:>9} {:>9} {:>9} {:>9}",
            "per s", "Postgres", "CPU µs", "p50 µs", "p99 µs"
        );
        for Line { name, figures } in &self.0 {
            let median = |figure: fn(&Figure) -> f64| middle(figures.iter().map(figure));
            let latency = |which: usize| {
                let rounds: Vec<_> = figures.iter().filter_map(|it| it.latencies).collect();
                if rounds.is_empty() {
                    return "-".into();
                }
                format!("{:.0}", middle(rounds.iter().map(|round| round[which])))
            };
            println!(
                "{name:<38} {:>9.0} {:>9.1} {:>9.1} {:>9.1} {:>9} {:>9}",
                median(|figure| figure.per_second),
                median(|figure| figure.cpu_own),
                median(|figure| figure.cpu_postgres),
                median(Figure::cpu),
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

    fn figure(per_second: f64) -> Figure {
        Figure {
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
            lines.record("one", figure(one));
            lines.record("other", figure(other));
        }
        let ratio = |name, other| lines.ratio(name, other, |figure| figure.per_second);
        assert!((ratio("one", "other").unwrap() - 0.9).abs() < 1e-9);
        assert!(ratio("one", "none").is_none());
        let cpu = lines.median("one", Figure::cpu);
        assert!((cpu.unwrap() - 3.0).abs() < 1e-9);
    }
}
