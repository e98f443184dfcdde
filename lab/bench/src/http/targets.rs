//! Added latency, and which targets are reached.

use super::{
    GATEWAY_NEW, GATEWAY_PASS, GATEWAY_REPLAY, LAYER_REPLAY, LAYER_REPLAY_SQLITE, NGINX, PLAIN,
};
use crate::measure::{Lines, middle};
use crate::target::{Limit, Target};

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

pub(super) fn print_added(added: &Added, per_second: f64) {
    println!("\nat {per_second:.0} requests per second, from the moment each was to be sent");
    let row = |name: &str, p50: f64, p99: f64| println!("{name:<27} {p50:>9.0} {p99:>9.0}");
    println!("{:<27} {:>9} {:>9}", "", "p50 µs", "p99 µs");
    for (name, rounds) in [(PLAIN, &added.plain), (LAYER_REPLAY, &added.replay)] {
        let median = |which: usize| middle(rounds.iter().map(|round| round[which]));
        row(name, median(0), median(1));
    }
    row("added", added.difference(0), added.difference(1));
}

pub(super) fn targets(lines: &Lines, added: Option<&Added>) -> [Target; 7] {
    let rate = |name, other| lines.ratio(name, other, |one| one.per_second);
    let cpu = lines.ratio(LAYER_REPLAY, PLAIN, |one| one.cpu_own);
    let added_p50 = added.map(|added| added.difference(0));
    [
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
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Measurement;
    use crate::target::verdict;

    #[test]
    fn what_is_missed_fails_and_what_was_not_asked_for_does_not() {
        let kept = |replay| {
            let mut lines = Lines::default();
            for (name, per_second) in [(PLAIN, 100.0), (LAYER_REPLAY, replay)] {
                let measurement = Measurement {
                    per_second,
                    cpu_own: 1.0,
                    ..Measurement::default()
                };
                lines.record(name, measurement);
            }
            verdict(&targets(&lines, None))
        };
        assert!(kept(90.0).holds(false) && !kept(90.0).holds(true));
        assert!(!kept(70.0).holds(false));
    }
}
