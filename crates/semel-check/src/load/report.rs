//! The results of a load run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use serde::Serialize;

use super::connection::Sample;

/// The results of one phase.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PhaseReport {
    /// Requests with a good response.
    pub requests: u64,
    /// All others: wrong statuses, and connections that broke.
    pub errors: u64,
    /// Good responses per second.
    pub per_second: f64,
    /// Median latency of good responses.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// The slowest.
    pub max_ms: f64,
    /// Responses that were marked as replays.
    pub replayed: u64,
    /// Responses by status, and requests without a response.
    pub statuses: BTreeMap<String, u64>,
}

impl PhaseReport {
    /// The statuses as text.
    pub(super) fn status_summary(&self) -> String {
        let statuses = self
            .statuses
            .iter()
            .map(|(status, count)| format!("{count} × {status}"));
        statuses.collect::<Vec<_>>().join(", ")
    }
}

/// The results of a load run.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// The URL.
    pub url: String,
    /// Number of concurrent connections.
    pub connections: usize,
    /// Duration of each phase.
    pub seconds: f64,
    /// Requests with new keys.
    pub new: PhaseReport,
    /// Requests with keys that succeeded before.
    pub replay: PhaseReport,
    /// Pairs of equal requests at the same time.
    pub duplicates: PhaseReport,
}

impl LoadReport {
    /// One JSON document.
    pub fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        // Serializing strings and numbers cannot fail.
        crate::text::document(&json.unwrap_or_default())
    }

    /// A table for the terminal.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{}, {} connections, {} s each\n\n{:12}{:>11}{:>11}{:>8}{:>12}{:>10}{:>10}{:>10}{:>10}{:>10}\n",
            crate::text::line(&self.url),
            self.connections,
            self.seconds,
            "",
            "answers",
            "replayed",
            "errors",
            "per second",
            "p50 ms",
            "p90 ms",
            "p99 ms",
            "p99.9 ms",
            "max ms",
        );
        let parts = [
            ("new keys", &self.new),
            ("replays", &self.replay),
            ("duplicates", &self.duplicates),
        ];
        for (name, part) in parts {
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(
                text,
                "{name:12}{:>11}{:>11}{:>8}{:>12.0}{:>10.3}{:>10.3}{:>10.3}{:>10.3}{:>10.3}",
                part.requests,
                part.replayed,
                part.errors,
                part.per_second,
                part.p50_ms,
                part.p90_ms,
                part.p99_ms,
                part.p999_ms,
                part.max_ms,
            );
        }
        for (name, part) in parts {
            let _ = write!(text, "\n{name}: {}", part.status_summary());
        }
        text.push('\n');
        text
    }
}

/// Latencies of good responses, and response counts by status.
#[derive(Default)]
pub(super) struct Tally {
    times: Vec<u32>,
    errors: u64,
    replayed: u64,
    statuses: BTreeMap<u16, u64>,
}

/// Stands for a missing response.
const NONE: u16 = 0;

impl Tally {
    /// Counts one response. With `pending`, a 409 is a good one: it asks a duplicate to retry later.
    pub(super) fn count(&mut self, seen: &io::Result<Sample>, pending: bool) {
        let status = seen.as_ref().map_or(NONE, |seen| seen.status);
        *self.statuses.entry(status).or_default() += 1;
        match seen {
            Ok(seen) if seen.is_success() || (pending && seen.status == 409) => {
                // Microseconds: an hour fits.
                let took = u32::try_from(seen.took.as_micros()).unwrap_or(u32::MAX);
                self.times.push(took);
                self.replayed += u64::from(seen.replayed);
            }
            Ok(_) | Err(_) => self.errors += 1,
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.errors += other.errors;
        self.replayed += other.replayed;
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
    }

    pub(super) fn into_report(mut self, took: Duration) -> PhaseReport {
        self.times.sort_unstable();
        let requests = self.times.len() as u64;
        let name = |status| match status {
            NONE => "none".to_owned(),
            status => status.to_string(),
        };
        PhaseReport {
            requests,
            errors: self.errors,
            per_second: per_second(requests, took),
            p50_ms: self.percentile(500),
            p90_ms: self.percentile(900),
            p99_ms: self.percentile(990),
            p999_ms: self.percentile(999),
            max_ms: self.percentile(1000),
            replayed: self.replayed,
            statuses: self
                .statuses
                .iter()
                .map(|(status, count)| (name(*status), *count))
                .collect(),
        }
    }

    /// The latency that so many of a thousand did not exceed.
    fn percentile(&self, of_thousand: usize) -> f64 {
        let rank = (self.times.len() * of_thousand).div_ceil(1000);
        let time = self
            .times
            .get(rank.saturating_sub(1))
            .copied()
            .unwrap_or_default();
        f64::from(time) / 1000.0
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a rate needs no more than a float has"
)]
fn per_second(requests: u64, took: Duration) -> f64 {
    let rate = requests as f64 / took.as_secs_f64().max(f64::MIN_POSITIVE);
    (rate * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(status: u16, micros: u64) -> Sample {
        Sample {
            status,
            replayed: status == 200,
            took: Duration::from_micros(micros),
        }
    }

    #[test]
    fn percentiles_include_only_good_responses() {
        let mut tally = Tally::default();
        for micros in 1..=1000 {
            tally.count(&Ok(seen(201, micros * 1000)), false);
        }
        tally.count(&Ok(seen(500, 9_000_000)), false);
        tally.count(&Ok(seen(409, 9_000_000)), false);
        tally.count(&Err(io::ErrorKind::UnexpectedEof.into()), false);
        let part = tally.into_report(Duration::from_secs(2));
        assert_eq!((part.requests, part.errors), (1000, 3));
        let figures = [
            part.p50_ms,
            part.p90_ms,
            part.p99_ms,
            part.p999_ms,
            part.max_ms,
            part.per_second,
        ];
        let figures = figures.map(|figure| format!("{figure:.1}"));
        assert_eq!(
            figures,
            ["500.0", "900.0", "990.0", "999.0", "1000.0", "500.0"]
        );
        assert_eq!(
            part.status_summary(),
            "1000 × 201, 1 × 409, 1 × 500, 1 × none"
        );
    }

    #[test]
    fn the_table_shows_the_number_of_replays() {
        let part = |requests, replayed| PhaseReport {
            requests,
            replayed,
            ..PhaseReport::default()
        };
        let load = LoadReport {
            url: "http://shop/".to_owned(),
            connections: 2,
            seconds: 1.0,
            new: part(30, 0),
            replay: part(40, 35),
            duplicates: part(50, 20),
        };
        let table = load.table();
        let words = |line: usize| -> Vec<&str> {
            let line = table.lines().nth(line).unwrap();
            line.split_whitespace().collect()
        };
        assert_eq!(words(2)[..3], ["answers", "replayed", "errors"], "{table}");
        assert_eq!(words(3)[..5], ["new", "keys", "30", "0", "0"], "{table}");
        assert_eq!(words(4)[..4], ["replays", "40", "35", "0"], "{table}");
        assert_eq!(words(5)[..4], ["duplicates", "50", "20", "0"], "{table}");
    }

    #[test]
    fn a_409_for_a_duplicate_is_not_an_error() {
        let mut tally = Tally::default();
        tally.count(&Ok(seen(409, 1)), true);
        tally.count(&Ok(seen(422, 1)), true);
        let part = tally.into_report(Duration::from_secs(1));
        assert_eq!((part.requests, part.errors), (1, 1));
        assert!(Tally::default().into_report(Duration::ZERO).max_ms.abs() < f64::EPSILON);
    }
}
