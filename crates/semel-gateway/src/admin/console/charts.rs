//! Charts of what requests were told, drawn here: a bar for every stretch of ten seconds.
//!
//! They are drawn as shapes without text, so that they can be stretched to any width; what they
//! are labelled with is HTML around them.

use std::fmt::Write as _;

use semel_core::Timestamp;
use semel_core::figures::{Activity, STRETCH, Told, stretch};
use semel_core::time::micros;

use super::text::{clock, number};

/// How many whole stretches a chart has: a quarter of an hour. The present one comes after them.
const STRETCHES: usize = 90;

/// The width of a bar with its gap, and the height of a chart, in the drawing's own units.
const STEP: usize = 10;
const HEIGHT: f64 = 100.0;

/// The least that the top of a scale stands for, per second: a single event is not a mountain.
const LEAST_TOP: f64 = 0.5;

/// How many stretches the present rate is taken over: a minute.
const LATELY: usize = 6;

/// One chart.
pub(super) struct Chart {
    /// Its name in the stylesheet, and for anchors.
    pub(super) class: &'static str,
    pub(super) title: &'static str,
    /// What is counted.
    pub(super) what: &'static str,
    /// Per second, over the last minute.
    pub(super) rate: String,
    /// In all that is shown.
    pub(super) total: String,
    /// What the height of the chart stands for.
    pub(super) top: String,
    /// The whole stretches, and the one that has not ended.
    pub(super) bars: String,
    pub(super) present: String,
}

/// All charts over one axis.
pub(super) struct Charts {
    pub(super) rows: Vec<Chart>,
    pub(super) width: usize,
    /// Where the lines of the grid are: every five minutes.
    pub(super) grid: Vec<usize>,
    pub(super) from: String,
    pub(super) until: String,
    /// The same in numbers, by the minute, newest first.
    pub(super) minutes: Vec<Minute>,
}

pub(super) struct Minute {
    pub(super) at: String,
    pub(super) counts: Vec<String>,
}

type Series = (&'static str, &'static str, &'static str, fn(&Told) -> u64);

/// What is drawn, from top to bottom.
const SERIES: [Series; 5] = [
    ("created", "Created", "executed under a new key", |told| {
        told.created
    }),
    ("replayed", "Replayed", "given the stored answer", |told| {
        told.replayed
    }),
    (
        "met",
        "In progress",
        "met while it was still being executed",
        |told| told.in_progress,
    ),
    (
        "misuse",
        "Misuse",
        "refused: the key was used for something else",
        |told| told.misuse,
    ),
    (
        "doubt",
        "Unknown",
        "told that the outcome is unknown",
        |told| told.unknown,
    ),
];

/// The beginning of the charts.
pub(super) fn since(now: Timestamp) -> Timestamp {
    let whole = i64::try_from(STRETCHES).unwrap_or_default() * micros(STRETCH);
    Timestamp::from_micros(stretch(now).as_micros() - whole)
}

/// The charts of one command, or of all.
pub(super) fn charts(activity: &[Activity], only: Option<&str>, now: Timestamp) -> Charts {
    let since = since(now);
    let mut told = [Told::default(); STRETCHES + 1];
    for line in activity {
        if only.is_some_and(|only| *only != *line.operation) {
            continue;
        }
        let after = line.at.as_micros() - since.as_micros();
        let slot = usize::try_from(after.div_euclid(micros(STRETCH))).ok();
        // A process whose clock runs ahead counts in a stretch that is not there yet.
        if let Some(sum) = slot.map(|slot| &mut told[slot.min(STRETCHES)]) {
            sum.add(&line.told);
        }
    }
    let begun = now.as_micros() - stretch(now).as_micros();
    Charts {
        rows: SERIES.map(|series| chart(series, &told, begun)).into(),
        width: (STRETCHES + 1) * STEP,
        grid: vec![
            0,
            STRETCHES / 3 * STEP,
            STRETCHES / 3 * 2 * STEP,
            STRETCHES * STEP,
        ],
        from: clock(since, "%H:%M"),
        until: clock(now, "%H:%M:%S"),
        minutes: minutes(&told, since),
    }
}

#[allow(clippy::cast_precision_loss, reason = "a rate, for people")]
fn chart((class, title, what, of): Series, told: &[Told], begun: i64) -> Chart {
    let counts: Vec<u64> = told.iter().map(of).collect();
    let per_second = |count: u64| count as f64 / STRETCH.as_secs_f64();
    let most = counts.iter().copied().max().unwrap_or_default();
    let top = nice(per_second(most));
    let bar = |slot: usize, count: u64| {
        if count == 0 {
            return String::new();
        }
        // Whatever happened at all is seen.
        let height = (per_second(count) / top * HEIGHT).max(3.0);
        let (x, y) = (slot * STEP, HEIGHT - height);
        format!("M{x} {y:.1}h{}V{HEIGHT}h-{}z", STEP - 2, STEP - 2)
    };
    let bars = counts.iter().take(STRETCHES).enumerate();
    let bars = bars.fold(String::new(), |bars, (slot, count)| {
        bars + &bar(slot, *count)
    });
    let present = counts.last().copied().unwrap_or_default();
    let lately: u64 = counts.iter().rev().take(LATELY + 1).sum();
    let seconds = STRETCH.as_secs_f64() * LATELY as f64 + begun as f64 / 1e6;
    Chart {
        class,
        title,
        what,
        rate: rate(lately as f64 / seconds),
        total: number(counts.iter().sum()),
        top: rate(top),
        bars,
        present: bar(STRETCHES, present),
    }
}

/// The next of 1, 2 and 5 at any place.
fn nice(most: f64) -> f64 {
    let mut top = LEAST_TOP;
    for factor in [2.0, 2.0, 2.5].iter().cycle().take(60) {
        if most <= top {
            break;
        }
        top *= factor;
    }
    top
}

/// Per second, as exactly as it means anything.
fn rate(per_second: f64) -> String {
    let mut shown = String::new();
    // Writing to a string cannot fail.
    let _ = match per_second {
        none if none <= 0.0 => write!(shown, "0"),
        few if few < 0.095 => write!(shown, "{few:.2}"),
        few if few < 9.95 => write!(shown, "{few:.1}"),
        many => write!(shown, "{many:.0}"),
    };
    shown
}

fn minutes(told: &[Told], since: Timestamp) -> Vec<Minute> {
    let minute = told.chunks(LATELY).enumerate().map(|(at, told)| {
        let mut sum = Told::default();
        for told in told {
            sum.add(told);
        }
        let began = i64::try_from(at).unwrap_or_default() * 60_000_000;
        Minute {
            at: clock(
                Timestamp::from_micros(since.as_micros() + began),
                "%H:%M:%S",
            ),
            counts: SERIES.map(|(_, _, _, of)| number(of(&sum))).into(),
        }
    });
    let mut minutes: Vec<_> = minute.collect();
    minutes.reverse();
    minutes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: i64, operation: &str, created: u64) -> Activity {
        Activity {
            at: Timestamp::from_micros(at),
            operation: operation.into(),
            told: Told {
                created,
                ..Told::default()
            },
        }
    }

    #[test]
    fn a_bar_stands_where_its_stretch_is() {
        let now = Timestamp::from_micros(2_000_005_000_000);
        let first = since(now).as_micros();
        let last = stretch(now).as_micros();
        let activity = [
            line(first, "pay", 5),
            line(last, "pay", 20),
            line(last, "refund", 7),
        ];
        let charts = charts(&activity, Some("pay"), now);
        let created = &charts.rows[0];
        // 20 in ten seconds are 2 a second, which is the top of its scale.
        assert_eq!(created.top, "2.0");
        assert_eq!(created.bars, "M0 75.0h8V100h-8z");
        assert_eq!(created.present, "M900 0.0h8V100h-8z");
        assert_eq!(created.total, "25");
        assert_eq!(created.rate, "0.3", "20 in 65 seconds");
        assert_eq!(charts.rows[1].bars, "");
    }

    #[test]
    fn what_is_out_of_the_picture_is_not_drawn_elsewhere() {
        let now = Timestamp::from_micros(2_000_005_000_000);
        let before = since(now).as_micros() - 1;
        let charts = charts(&[line(before, "pay", 5)], None, now);
        assert_eq!(charts.rows[0].total, "0");
    }

    #[test]
    fn scales_are_round() {
        for (most, top) in [
            (0.0, 0.5),
            (0.6, 1.0),
            (1.1, 2.0),
            (3.0, 5.0),
            (7.0, 10.0),
            (450.0, 500.0),
        ] {
            assert!((nice(most) - top).abs() < 1e-9, "{most}: {}", nice(most));
        }
    }

    #[test]
    fn the_numbers_are_all_there() {
        let now = Timestamp::from_micros(2_000_005_000_000);
        let charts = charts(&[line(stretch(now).as_micros(), "pay", 5)], None, now);
        assert_eq!(charts.minutes.len(), 16);
        assert_eq!(charts.minutes[0].counts[0], "5");
    }
}
