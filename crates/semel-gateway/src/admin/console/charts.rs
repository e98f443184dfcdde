//! Bar charts of responses by type, one bar per interval of ten seconds.
//!
//! The SVG contains shapes without text, so that it stretches to any width; the labels are HTML.

use std::fmt::Write as _;

use semel_core::Timestamp;
use semel_core::statistics::{ACTIVITY_INTERVAL, Activity, DecisionCounts, interval_start};
use semel_core::time::micros;

use super::text::{format_utc, number};

/// Complete intervals per chart: 15 minutes. The current interval follows them.
const INTERVALS: usize = 90;

/// The width of a bar with its gap, and the height of a chart, in SVG units.
const STEP: usize = 10;
const HEIGHT: f64 = 100.0;

/// The smallest scale, per second, so that a single event does not fill the chart.
const MIN_SCALE: f64 = 0.5;

/// The intervals of the current rate: a minute.
const RATE_INTERVALS: usize = 6;

/// One chart.
pub(super) struct Chart {
    /// The CSS class and anchor.
    pub(super) class: &'static str,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    /// Per second, over the last minute.
    pub(super) rate: String,
    /// The sum over the chart.
    pub(super) total: String,
    /// The rate at the top of the chart.
    pub(super) top: String,
    /// The path of the complete intervals, and of the current one.
    pub(super) bars: String,
    pub(super) current: String,
}

/// All charts, which share one time axis.
pub(super) struct Charts {
    pub(super) rows: Vec<Chart>,
    pub(super) width: usize,
    /// Positions of the grid lines: every five minutes.
    pub(super) grid: Vec<usize>,
    pub(super) from: String,
    pub(super) until: String,
    /// The counts per minute, newest first.
    pub(super) minutes: Vec<Minute>,
}

pub(super) struct Minute {
    pub(super) at: String,
    pub(super) counts: Vec<String>,
}

type Series = (
    &'static str,
    &'static str,
    &'static str,
    fn(&DecisionCounts) -> u64,
);

/// The charts from top to bottom.
const SERIES: [Series; 5] = [
    ("created", "Created", "new keys, executed", |counts| {
        counts.created
    }),
    (
        "replayed",
        "Replayed",
        "stored response returned",
        |counts| counts.replayed,
    ),
    (
        "met",
        "In progress",
        "first request still running",
        |counts| counts.in_progress,
    ),
    (
        "misuse",
        "Misuse",
        "refused: key reused for a different request",
        |counts| counts.misuse,
    ),
    ("doubt", "Unknown", "refused: outcome not known", |counts| {
        counts.unknown
    }),
];

/// The start of the time axis.
pub(super) fn since(now: Timestamp) -> Timestamp {
    let whole = i64::try_from(INTERVALS).unwrap_or_default() * micros(ACTIVITY_INTERVAL);
    Timestamp::from_micros(interval_start(now).as_micros() - whole)
}

/// The charts of one operation, or of all.
pub(super) fn charts(activity: &[Activity], only: Option<&str>, now: Timestamp) -> Charts {
    let since = since(now);
    let mut intervals = [DecisionCounts::default(); INTERVALS + 1];
    for line in activity {
        if only.is_some_and(|only| *only != *line.operation) {
            continue;
        }
        let after = line.at.as_micros() - since.as_micros();
        let slot = usize::try_from(after.div_euclid(micros(ACTIVITY_INTERVAL))).ok();
        // A gateway whose clock is ahead reports a future interval; it counts as current.
        if let Some(sum) = slot.map(|slot| &mut intervals[slot.min(INTERVALS)]) {
            sum.add(&line.decisions);
        }
    }
    let elapsed = now.as_micros() - interval_start(now).as_micros();
    Charts {
        rows: SERIES
            .map(|series| chart(series, &intervals, elapsed))
            .into(),
        width: (INTERVALS + 1) * STEP,
        grid: vec![
            0,
            INTERVALS / 3 * STEP,
            INTERVALS / 3 * 2 * STEP,
            INTERVALS * STEP,
        ],
        from: format_utc(since, "%H:%M"),
        until: format_utc(now, "%H:%M:%S"),
        minutes: minutes(&intervals, since),
    }
}

#[allow(clippy::cast_precision_loss, reason = "a rate, for people")]
fn chart(
    (class, title, description, of): Series,
    intervals: &[DecisionCounts],
    elapsed: i64,
) -> Chart {
    let counts: Vec<u64> = intervals.iter().map(of).collect();
    let per_second = |count: u64| count as f64 / ACTIVITY_INTERVAL.as_secs_f64();
    let most = counts.iter().copied().max().unwrap_or_default();
    let top = round_up(per_second(most));
    let bar = |slot: usize, count: u64| {
        if count == 0 {
            return String::new();
        }
        // A minimum height, so that every non-zero bar is visible.
        let height = (per_second(count) / top * HEIGHT).max(3.0);
        let (x, y) = (slot * STEP, HEIGHT - height);
        format!("M{x} {y:.1}h{}V{HEIGHT}h-{}z", STEP - 2, STEP - 2)
    };
    let bars = counts.iter().take(INTERVALS).enumerate();
    let bars = bars.fold(String::new(), |bars, (slot, count)| {
        bars + &bar(slot, *count)
    });
    let current = counts.last().copied().unwrap_or_default();
    let recent: u64 = counts.iter().rev().take(RATE_INTERVALS + 1).sum();
    let seconds = ACTIVITY_INTERVAL.as_secs_f64() * RATE_INTERVALS as f64 + elapsed as f64 / 1e6;
    Chart {
        class,
        title,
        description,
        rate: rate(recent as f64 / seconds),
        total: number(counts.iter().sum()),
        top: rate(top),
        bars,
        current: bar(INTERVALS, current),
    }
}

/// The next of 1, 2 and 5 times a power of ten.
fn round_up(most: f64) -> f64 {
    let mut top = MIN_SCALE;
    for factor in [2.0, 2.0, 2.5].iter().cycle().take(60) {
        if most <= top {
            break;
        }
        top *= factor;
    }
    top
}

/// A rate per second with about two digits.
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

fn minutes(intervals: &[DecisionCounts], since: Timestamp) -> Vec<Minute> {
    let minute = intervals
        .chunks(RATE_INTERVALS)
        .enumerate()
        .map(|(at, minute)| {
            let mut sum = DecisionCounts::default();
            for interval in minute {
                sum.add(interval);
            }
            let began = i64::try_from(at).unwrap_or_default() * 60_000_000;
            Minute {
                at: format_utc(
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
            decisions: DecisionCounts {
                created,
                ..DecisionCounts::default()
            },
        }
    }

    #[test]
    fn bars_are_drawn_at_their_interval() {
        let now = Timestamp::from_micros(2_000_005_000_000);
        let first = since(now).as_micros();
        let last = interval_start(now).as_micros();
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
        assert_eq!(created.current, "M900 0.0h8V100h-8z");
        assert_eq!(created.total, "25");
        assert_eq!(created.rate, "0.3", "20 in 65 seconds");
        assert_eq!(charts.rows[1].bars, "");
    }

    #[test]
    fn activity_before_the_chart_is_ignored() {
        let now = Timestamp::from_micros(2_000_005_000_000);
        let before = since(now).as_micros() - 1;
        let charts = charts(&[line(before, "pay", 5)], None, now);
        assert_eq!(charts.rows[0].total, "0");
    }

    #[test]
    fn scales_are_rounded_up_to_1_2_or_5() {
        for (most, top) in [
            (0.0, 0.5),
            (0.6, 1.0),
            (1.1, 2.0),
            (3.0, 5.0),
            (7.0, 10.0),
            (450.0, 500.0),
        ] {
            assert!(
                (round_up(most) - top).abs() < 1e-9,
                "{most}: {}",
                round_up(most)
            );
        }
    }

    #[test]
    fn the_minute_table_covers_all_intervals() {
        let now = Timestamp::from_micros(2_000_005_000_000);
        let charts = charts(
            &[line(interval_start(now).as_micros(), "pay", 5)],
            None,
            now,
        );
        assert_eq!(charts.minutes.len(), 16);
        assert_eq!(charts.minutes[0].counts[0], "5");
    }
}
