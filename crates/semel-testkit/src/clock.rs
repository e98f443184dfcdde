//! A clock that only tests advance.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use semel_core::{Clock, Timestamp};

/// A clock that a test advances. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use semel_core::{Clock, Timestamp};
/// use semel_testkit::ManualClock;
///
/// let clock = ManualClock::starting_at(Timestamp::from_micros(5));
/// clock.advance(Duration::from_micros(2));
/// assert_eq!(clock.now(), Timestamp::from_micros(7));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    micros: Arc<AtomicI64>,
}

impl ManualClock {
    /// A clock that shows `start`.
    pub fn starting_at(start: Timestamp) -> Self {
        Self {
            micros: Arc::new(AtomicI64::new(start.as_micros())),
        }
    }

    /// Advances the clock by whole microseconds; saturates at the maximum.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().saturating_add(by));
    }

    /// Sets the clock, forwards or backwards.
    pub fn set(&self, to: Timestamp) {
        self.micros.store(to.as_micros(), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    /// Some day in November 2023: late enough that no test reaches back to the epoch.
    fn default() -> Self {
        Self::starting_at(Timestamp::from_micros(1_700_000_000_000_000))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_a_clock_and_time_saturates() {
        let clock = ManualClock::default();
        let other = clock.clone();
        clock.set(Timestamp::from_micros(1));
        other.advance(Duration::from_secs(1));
        assert_eq!(clock.now(), Timestamp::from_micros(1_000_001));
        clock.set(Timestamp::from_micros(i64::MAX));
        clock.advance(Duration::MAX);
        assert_eq!(other.now(), Timestamp::from_micros(i64::MAX));
    }
}
