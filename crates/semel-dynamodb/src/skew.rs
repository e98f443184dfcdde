//! How far this machine's clock is from DynamoDB's.
//!
//! DynamoDB has no clock that a condition could read, so each process judges leases and windows by
//! its own. Every answer carries a `Date`, by which the clock is checked.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use semel_core::time::micros;
use semel_core::{Clock, SystemClock, Timestamp};

/// The largest accepted difference between this machine's clock and DynamoDB's. Machines of AWS
/// differ by milliseconds.
pub(crate) const BOUND: Duration = Duration::from_secs(2);
/// `Date` has whole seconds.
const RESOLUTION: Duration = Duration::from_secs(1);
/// What a lease lasts longer than was asked for. A quick answer shows a difference that is greater
/// than bound and resolution, so two clocks may differ by twice their sum; two seconds more are for
/// the way of the answer.
pub(crate) const MARGIN: Duration = Duration::from_secs(8);

/// The difference as of the last answer that showed it.
pub(crate) struct Skew {
    clock: Arc<dyn Clock>,
    is_beyond: AtomicBool,
    /// Local time minus `Date`, for messages.
    difference: AtomicI64,
}

impl Skew {
    /// Of this clock.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            is_beyond: AtomicBool::new(false),
            difference: AtomicI64::new(0),
        }
    }

    /// The present instant by the clock that is checked.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether the clock may not judge leases.
    pub(crate) fn is_beyond(&self) -> bool {
        self.is_beyond.load(Ordering::Relaxed)
    }

    /// The difference in seconds.
    pub(crate) fn seconds(&self) -> i64 {
        self.difference.load(Ordering::Relaxed) / 1_000_000
    }

    /// Notes the `Date` of an answer to a request that was sent at `sent`. DynamoDB wrote it
    /// between then and now, so only what no time in between explains is a difference, and only an
    /// answer that leaves no room for one shows that there is none.
    pub(crate) fn note(&self, date: &str, sent: Timestamp, now: Timestamp) {
        let Ok(date) = httpdate::parse_http_date(date) else {
            return;
        };
        let Ok(since_epoch) = date.duration_since(UNIX_EPOCH) else {
            return;
        };
        let date = micros(since_epoch);
        let (bound, resolution) = (micros(BOUND), micros(RESOLUTION));
        let most = now.as_micros().saturating_sub(date);
        let least = sent.as_micros().saturating_sub(date + resolution);
        let is_beyond = least > bound || most < -bound;
        let accepted = bound + resolution;
        let is_within = least >= -accepted && most <= accepted;
        if !is_beyond && !is_within {
            return;
        }
        self.difference.store(most, Ordering::Relaxed);
        let was_beyond = self.is_beyond.swap(is_beyond, Ordering::Relaxed);
        if is_beyond && !was_beyond {
            let seconds = most / 1_000_000;
            tracing::error!(
                "this machine's clock differs from DynamoDB's by {seconds} s: nothing is granted \
                 until it is right"
            );
        }
    }
}

impl fmt::Debug for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Skew")
            .field("is_beyond", &self.is_beyond)
            .field("difference", &self.difference)
            .finish_non_exhaustive()
    }
}

/// The present instant by this machine's clock, which makes ids.
pub(crate) fn system_now() -> Timestamp {
    SystemClock.now()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &str = "Tue, 14 Nov 2023 22:13:20 GMT";

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + millis * 1000)
    }

    #[test]
    fn only_what_no_delay_explains_is_a_difference() {
        for (sent, now, beyond) in [
            (0, 100, false),
            // The answer took long.
            (-60_000, 60_000, false),
            (2_900, 3_500, false),
            (3_100, 3_500, true),
            (-3_000, -1_900, false),
            (-3_000, -2_100, true),
        ] {
            let skew = Skew::new(Arc::new(SystemClock));
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

    #[test]
    fn an_answer_that_took_long_does_not_clear_a_difference() {
        for (sent, now, is_cleared) in
            [(-60_000, 60_000, false), (-500, 3_100, false), (0, 9, true)]
        {
            let skew = Skew::new(Arc::new(SystemClock));
            skew.note(DATE, at(60_000), at(60_100));
            assert!(skew.is_beyond());
            skew.note(DATE, at(sent), at(now));
            assert_eq!(!skew.is_beyond(), is_cleared, "{sent}, {now}");
        }
    }

    /// Two clocks that no answer shows as wrong differ by less than the margin of a lease.
    #[test]
    fn the_margin_covers_two_accepted_clocks() {
        let is_accepted = |difference: i64| {
            // The most favourable moment of a second for it.
            [0, 999].into_iter().any(|moment| {
                let skew = Skew::new(Arc::new(SystemClock));
                let local = at(moment + difference);
                skew.note(DATE, local, local);
                !skew.is_beyond()
            })
        };
        let ahead = (0..9_000).find(|millis| !is_accepted(*millis)).unwrap();
        let behind = (0..9_000).find(|millis| !is_accepted(-*millis)).unwrap();
        let apart = Duration::from_millis((ahead + behind).unsigned_abs());
        assert!(MARGIN >= apart + Duration::from_secs(1), "{apart:?}");
    }
}
