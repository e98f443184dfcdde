//! Time as a value: nothing in Semel reads a clock that a test cannot move.

use std::fmt;
use std::time::Duration;

/// An instant in microseconds since the Unix epoch, by the clock of one store.
///
/// Integers, because they compare and persist exactly; microseconds, because that is what
/// PostgreSQL keeps, and two stores must not round differently.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This instant plus `duration`, or the end of time where that is beyond it: a window
    /// too long to express stays open rather than wrapping into the past.
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }

    /// So long before, or the beginning of time.
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}µs", self.0)
    }
}

/// The longest duration that differs from forever, in microseconds: 146,000 years. Half
/// of what an integer holds, so that a store may add it to the present without overflowing.
pub const FOREVER_MICROS: i64 = i64::MAX / 2;

/// A duration in whole microseconds, the unit in which stores keep windows, and at most
/// [`FOREVER_MICROS`].
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros())
        .unwrap_or(i64::MAX)
        .min(FOREVER_MICROS)
}

/// The duration of so many stored microseconds.
pub fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// Where a store takes its time from.
///
/// There is one clock per store, the database's own where there is one, because a lease
/// judged by two clocks is two leases.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The present instant.
    fn now(&self) -> Timestamp;
}

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place that reads the wall clock to judge by it"
    )]
    fn now(&self) -> Timestamp {
        let since_epoch = std::time::SystemTime::now()
            .duration_since(std::time::SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp(micros(since_epoch))
    }
}
