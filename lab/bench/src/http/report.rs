//! The table, and which targets are reached.

use super::case::Round;
use super::{
    GATEWAY_NEW, GATEWAY_PASS, GATEWAY_REPLAY, LAYER_REPLAY, LAYER_REPLAY_SQLITE, Line, NGINX,
    PLAIN,
};
use crate::measure::middle;
use crate::target::{self, Kept, Limit, Target};

/// Latencies at a fixed rate, a round each: median and 99th percentile, in microseconds.
#[derive(Default)]
pub(super) struct Added {
    pub(super) plain: Vec<[f64; 2]>,
    pub(super) replay: Vec<[f64; 2]>,
}

impl Added {
    /// The middle of the differences within each round.
    fn difference(&self, which: usize) -> f64 {
        let rounds = self.plain.iter().zip(&self.replay);
        middle(rounds.map(|(plain, replay)| replay[which] - plain[which]))
    }
}

pub(super) fn table(lines: &[Line]) {
    println!(
        "{:<27} {:>9} {:>7} {:>7} {:>8} {:>8} {:>9} {:>9} {:>8}",
        "medians of the rounds",
        "req/s",
        "/plain",
        "/nginx",
        "CPU µs",
        "+behind",
        "p50 µs",
        "p99 µs",
        "load µs"
    );
    for line in lines {
        let median = |value: fn(&Round) -> f64| middle(line.rounds.iter().map(value));
        let beside = |name| {
            let ratio = ratio(lines, line.name, name, |round| round.per_second);
            ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"))
        };
        println!(
            "{:<27} {:>9.0} {:>7} {:>7} {:>8.1} {:>8.1} {:>9.0} {:>9.0} {:>8.1}",
            line.name,
            median(|round| round.per_second),
            beside(PLAIN),
            beside(NGINX),
            median(|round| round.cpu_micros),
            median(|round| round.cpu_micros_total),
            median(|round| round.p50_micros),
            median(|round| round.p99_micros),
            median(|round| round.cpu_micros_generator),
        );
    }
    println!(
        "CPU: of the server and its children per request; +behind: and of the application behind \
         a proxy; load: of the load generator\nratios: medians of the ratios within each round"
    );
}

pub(super) fn added(added: &Added, per_second: f64) {
    println!("\nat {per_second:.0} requests per second, from the moment each was to be sent");
    let row = |name: &str, p50: f64, p99: f64| println!("{name:<27} {p50:>9.0} {p99:>9.0}");
    println!("{:<27} {:>9} {:>9}", "", "p50 µs", "p99 µs");
    for (name, rounds) in [(PLAIN, &added.plain), (LAYER_REPLAY, &added.replay)] {
        let median = |which: usize| middle(rounds.iter().map(|round| round[which]));
        row(name, median(0), median(1));
    }
    row("added", added.difference(0), added.difference(1));
}

pub(super) fn verdict(lines: &[Line], added: Option<&Added>) -> Kept {
    let rate = |name, other| ratio(lines, name, other, |round| round.per_second);
    let cpu = ratio(lines, LAYER_REPLAY, PLAIN, |round| round.cpu_micros);
    let added_p50 = added.map(|added| added.difference(0));
    let targets = [
        Target::new(
            "layer, replay: rate / plain axum",
            rate(LAYER_REPLAY, PLAIN),
            Limit::AtLeast(0.88),
        ),
        Target::new("layer, replay: CPU / plain axum", cpu, Limit::AtMost(1.2)),
        Target::new(
            "layer, replay from SQLite: rate / plain axum",
            rate(LAYER_REPLAY_SQLITE, PLAIN),
            Limit::AtLeast(0.6),
        ),
        Target::new(
            "gateway, pass-through: rate / nginx",
            rate(GATEWAY_PASS, NGINX),
            Limit::AtLeast(1.0),
        ),
        Target::new(
            "gateway, replay: rate / nginx",
            rate(GATEWAY_REPLAY, NGINX),
            Limit::AtLeast(1.8),
        ),
        Target::new(
            "gateway, new keys: rate / nginx",
            rate(GATEWAY_NEW, NGINX),
            Limit::AtLeast(0.35),
        ),
        Target::new(
            "layer, replay: added p50 in µs",
            added_p50,
            Limit::AtMost(50.0),
        ),
    ];

    target::verdict(&targets)
}

/// The middle of the ratios within each round: a slow minute slows both sides.
fn ratio(lines: &[Line], name: &str, other: &str, value: fn(&Round) -> f64) -> Option<f64> {
    let find = |name| lines.iter().find(|line| line.name == name);
    let rounds = find(name)?.rounds.iter().zip(&find(other)?.rounds);
    Some(middle(rounds.map(|(one, other)| value(one) / value(other))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &'static str, rates: &[f64]) -> Line {
        let round = |&per_second: &f64| Round {
            per_second,
            cpu_micros: 1e6 / per_second,
            cpu_micros_total: 1e6 / per_second,
            cpu_micros_generator: 1.0,
            p50_micros: 1.0,
            p99_micros: 1.0,
        };
        Line {
            name,
            rounds: rates.iter().map(round).collect(),
        }
    }

    #[test]
    fn ratios_are_taken_within_the_rounds() {
        let lines = [
            line(PLAIN, &[100.0, 10.0, 100.0]),
            line(LAYER_REPLAY, &[90.0, 9.0, 50.0]),
        ];
        let found = ratio(&lines, LAYER_REPLAY, PLAIN, |round| round.per_second);
        assert!((found.unwrap() - 0.9).abs() < 1e-9);
        assert!(ratio(&lines, NGINX, PLAIN, |round| round.per_second).is_none());
    }

    #[test]
    fn what_is_missed_fails_and_what_was_not_asked_for_does_not() {
        let good = [line(PLAIN, &[100.0]), line(LAYER_REPLAY, &[90.0])];
        let kept = verdict(&good, None);
        assert!(kept.holds(false) && !kept.holds(true));
        let bad = [line(PLAIN, &[100.0]), line(LAYER_REPLAY, &[70.0])];
        assert!(!verdict(&bad, None).holds(false));
    }
}
