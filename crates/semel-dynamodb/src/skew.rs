//! How far this machine's clock is from DynamoDB's.
//!
//! DynamoDB has no clock that a condition could read, so each process judges leases and windows by
//! its own. Every answer carries a `Date`, by which the clock is checked.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use semel_core::time::micros;
use semel_core::{Clock, SystemClock, Timestamp};

/// The largest accepted difference between this machine's clock and DynamoDB's. Machines of AWS
/// differ by milliseconds.
pub(crate) const BOUND: Duration = Duration::from_secs(2);
/// What a lease lasts longer than was asked for: two clocks may differ by twice the bound.
pub(crate) const MARGIN: Duration = Duration::from_secs(4);

/// `Date` has whole seconds.
const RESOLUTION: Duration = Duration::from_secs(1);

/// The difference as of the last answer.
#[derive(Debug, Default)]
pub(crate) struct Skew {
    is_beyond: AtomicBool,
    /// Local time minus `Date`, for messages.
    difference: AtomicI64,
}

impl Skew {
    /// Whether the clock may not judge leases.
    pub(crate) fn is_beyond(&self) -> bool {
        self.is_beyond.load(Ordering::Relaxed)
    }

    /// The difference in seconds.
    pub(crate) fn seconds(&self) -> i64 {
        self.difference.load(Ordering::Relaxed) / 1_000_000
    }

    /// Notes the `Date` of an answer to a request that was sent at `sent`. DynamoDB wrote it
    /// between then and now, so only what no time in between explains is a difference.
    pub(crate) fn note(&self, date: &str, sent: Timestamp, now: Timestamp) {
        let Ok(date) = httpdate::parse_http_date(date) else {
            return;
        };
        let Ok(since_epoch) = date.duration_since(UNIX_EPOCH) else {
            return;
        };
        let date = Timestamp::from_micros(micros(since_epoch));
        let is_ahead = sent > date.saturating_add(RESOLUTION).saturating_add(BOUND);
        let is_behind = now < date.saturating_sub(BOUND);
        let difference = now.as_micros().saturating_sub(date.as_micros());
        self.difference.store(difference, Ordering::Relaxed);
        let was_beyond = self
            .is_beyond
            .swap(is_ahead || is_behind, Ordering::Relaxed);
        if (is_ahead || is_behind) && !was_beyond {
            let seconds = difference / 1_000_000;
            tracing::error!(
                "this machine's clock differs from DynamoDB's by {seconds} s: nothing is granted \
                 until it is right"
            );
        }
    }
}

/// The present instant by this machine's clock.
pub(crate) fn now() -> Timestamp {
    SystemClock.now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_no_delay_explains_is_a_difference() {
        const DATE: &str = "Tue, 14 Nov 2023 22:13:20 GMT";
        let at = |millis: i64| Timestamp::from_micros(1_700_000_000_000_000 + millis * 1000);
        for (sent, now, beyond) in [
            (0, 100, false),
            // The answer took long.
            (-60_000, 60_000, false),
            (2_900, 3_500, false),
            (3_100, 3_500, true),
            (-3_000, -1_900, false),
            (-3_000, -2_100, true),
        ] {
            let skew = Skew::default();
            skew.note(DATE, at(sent), at(now));
            assert_eq!(
                skew.is_beyond(),
                beyond,
                "sent at {sent}, answered at {now}"
            );
            skew.note(DATE, at(0), at(100));
            assert!(!skew.is_beyond(), "it was set right");
        }
    }
}
