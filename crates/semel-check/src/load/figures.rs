//! What came of it, in figures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use serde::Serialize;

use super::connection::Seen;

/// What one part of the run came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Part {
    /// Requests that were answered as they should be.
    pub requests: u64,
    /// All others: wrong statuses, and connections that broke.
    pub errors: u64,
    /// Good answers per second.
    pub per_second: f64,
    /// Half of the good answers took at most so long.
    pub p50_ms: f64,
    /// Nine of ten.
    pub p90_ms: f64,
    /// All but one of a hundred.
    pub p99_ms: f64,
    /// All but one of a thousand.
    pub p999_ms: f64,
    /// The slowest.
    pub max_ms: f64,
    /// How many said of themselves that they were replays.
    pub replayed: u64,
    /// How many answers there were of each status, and how many requests got none.
    pub statuses: BTreeMap<String, u64>,
}

impl Part {
    /// The statuses in a few words.
    pub(super) fn told(&self) -> String {
        let statuses = self
            .statuses
            .iter()
            .map(|(status, count)| format!("{count} × {status}"));
        statuses.collect::<Vec<_>>().join(", ")
    }
}

/// What the whole run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Load {
    /// Where.
    pub url: String,
    /// How many requests were under way at once.
    pub connections: usize,
    /// How long each part took.
    pub seconds: f64,
    /// Every request with a key of its own.
    pub new: Part,
    /// Requests with keys that had succeeded before.
    pub replay: Part,
    /// Two of each at the same time.
    pub duplicates: Part,
}

impl Load {
    /// One JSON document.
    pub fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        // Numbers and names of our own: there is nothing that JSON cannot say.
        crate::text::document(&json.unwrap_or_default())
    }

    /// For people.
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
            let _ = write!(text, "\n{name}: {}", part.told());
        }
        text.push('\n');
        text
    }
}

/// Times of good answers, and how many there were of each status.
#[derive(Default)]
pub(super) struct Tally {
    times: Vec<u32>,
    errors: u64,
    replayed: u64,
    statuses: BTreeMap<u16, u64>,
}

/// Where an answer is missing.
const NONE: u16 = 0;

impl Tally {
    /// A duplicate may be told to come back: `pending` says that 409 is a good answer.
    pub(super) fn count(&mut self, seen: &io::Result<Seen>, pending: bool) {
        let status = seen.as_ref().map_or(NONE, |seen| seen.status);
        *self.statuses.entry(status).or_default() += 1;
        match seen {
            Ok(seen) if seen.is_success() || (pending && seen.status == 409) => {
                // Microseconds: an hour fits, and no percentile of use is longer.
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

    pub(super) fn part(mut self, took: Duration) -> Part {
        self.times.sort_unstable();
        let requests = self.times.len() as u64;
        let name = |status| match status {
            NONE => "none".to_owned(),
            status => status.to_string(),
        };
        Part {
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

    /// The time that so many of a thousand did not exceed.
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

    fn seen(status: u16, micros: u64) -> Seen {
        Seen {
            status,
            replayed: status == 200,
            took: Duration::from_micros(micros),
        }
    }

    #[test]
    fn percentiles_are_of_good_answers_alone() {
        let mut tally = Tally::default();
        for micros in 1..=1000 {
            tally.count(&Ok(seen(201, micros * 1000)), false);
        }
        tally.count(&Ok(seen(500, 9_000_000)), false);
        tally.count(&Ok(seen(409, 9_000_000)), false);
        tally.count(&Err(io::ErrorKind::UnexpectedEof.into()), false);
        let part = tally.part(Duration::from_secs(2));
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
        assert_eq!(part.told(), "1000 × 201, 1 × 409, 1 × 500, 1 × none");
    }

    #[test]
    fn the_table_says_how_many_were_replays() {
        let part = |requests, replayed| Part {
            requests,
            replayed,
            ..Part::default()
        };
        let load = Load {
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
    fn a_duplicate_may_be_told_to_come_back() {
        let mut tally = Tally::default();
        tally.count(&Ok(seen(409, 1)), true);
        tally.count(&Ok(seen(422, 1)), true);
        let part = tally.part(Duration::from_secs(1));
        assert_eq!((part.requests, part.errors), (1, 1));
        assert!(Tally::default().part(Duration::ZERO).max_ms.abs() < f64::EPSILON);
    }
}
