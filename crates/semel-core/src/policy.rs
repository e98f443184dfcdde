//! What a route decides about its operations.

use std::time::Duration;

use crate::OperationId;
use crate::time::{duration, micros};

/// How one operation is guarded. A route holds one; a [`Reserve`](crate::Reserve) carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long an execution is trusted to be alive without a heartbeat.
    pub lease: Duration,
    /// How long what is remembered stays.
    pub windows: Windows,
    /// What an expired lease means.
    pub stale: Stale,
    /// Whether the operation is built of phases that can be resumed. [`Stale::Resume`]
    /// has no effect without it.
    pub recovery_points: bool,
    /// How long after its lease an operation that can be resumed waits to be resumed,
    /// before it is unknown like any other.
    pub resume_within: Duration,
    /// What a retry after the replay window gets.
    pub on_expired: OnExpired,
}

/// How long a finished operation is remembered. The record keeps these, so that every
/// process that finishes it gives it the same windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// How long after completion a retry is replayed.
    pub replay: Duration,
    /// How long after completion the body is kept; it cannot outlive `replay`.
    pub body: Duration,
    /// How long a tombstone stays after the replay window; `None` deletes at once.
    pub tombstone: Option<Duration>,
}

/// What a lease that ran out means for the next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stale {
    /// It may have executed: the record becomes unknown and is reconciled.
    #[default]
    Unknown,
    /// The next attempt continues at the stored recovery point.
    Resume,
}

/// What a retry after the replay window gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpired {
    /// A refusal: the answer is gone, and executing again might charge again.
    #[default]
    Reject,
    /// A new operation under the old key.
    Execute,
}

/// When an unknown operation is asked about again: exponential, bounded, with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay.
    pub every: Duration,
    /// The longest delay.
    pub max_every: Duration,
}

impl Default for Policy {
    /// The defaults of the gateway's configuration.
    fn default() -> Self {
        const HOUR: Duration = Duration::from_hours(1);
        Self {
            lease: Duration::from_secs(30),
            windows: Windows {
                replay: 24 * HOUR,
                body: 24 * HOUR,
                tombstone: Some(30 * 24 * HOUR),
            },
            stale: Stale::default(),
            recovery_points: false,
            resume_within: HOUR,
            on_expired: OnExpired::default(),
        }
    }
}

impl Policy {
    /// How long a silent owner's operation waits to be resumed; `None` where it must not be.
    pub fn resumes_within(&self) -> Option<Duration> {
        match self.stale {
            Stale::Resume if self.recovery_points => Some(self.resume_within),
            Stale::Resume | Stale::Unknown => None,
        }
    }
}

impl Windows {
    /// The windows as stores keep them, in microseconds: replay, body, tombstone.
    pub fn as_micros(self) -> (i64, i64, Option<i64>) {
        (
            micros(self.replay),
            micros(self.body),
            self.tombstone.map(micros),
        )
    }

    /// The windows that a store kept.
    pub fn from_micros(replay: i64, body: i64, tombstone: Option<i64>) -> Self {
        Self {
            replay: duration(replay),
            body: duration(body),
            tombstone: tombstone.map(duration),
        }
    }
}

impl Backoff {
    /// The delay after the `tries`-th look at operation `id` (counted from 1).
    ///
    /// The jitter takes off up to a quarter and comes from the random bits of the id, so a
    /// thousand operations that failed in one second do not come due in one second, and
    /// the function stays pure.
    pub fn delay(self, id: OperationId, tries: u32) -> Duration {
        let [.., a, b, c, d] = *id.as_bytes();
        self.spread(u32::from_be_bytes([a, b, c, d]), tries)
    }

    /// The delay after the `tries`-th look at anything, spread by any number that is its own.
    pub fn spread(self, seed: u32, tries: u32) -> Duration {
        let doubled = self
            .every
            .saturating_mul(2u32.saturating_pow(tries.saturating_sub(1)));
        let longest = doubled.min(self.max_every);
        let spread = seed.rotate_left(tries.wrapping_mul(7));
        longest.saturating_sub((longest / 4).mul_f64(f64::from(spread) / f64::from(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_bound_and_jitters_downwards() {
        let backoff = Backoff {
            every: Duration::from_secs(5),
            max_every: Duration::from_mins(10),
        };
        let id = OperationId::generate();
        for (tries, longest) in [
            (1, 5),
            (2, 10),
            (3, 20),
            (8, 600),
            (40, 600),
            (u32::MAX, 600),
        ] {
            let longest = Duration::from_secs(longest);
            let delay = backoff.delay(id, tries);
            assert!(
                delay <= longest && delay >= longest * 3 / 4,
                "{tries}: {delay:?}"
            );
        }
    }

    #[test]
    fn backoff_spreads_operations() {
        let backoff = Backoff {
            every: Duration::from_mins(1),
            max_every: Duration::from_mins(10),
        };
        let delays: std::collections::HashSet<_> = (0..100)
            .map(|_| backoff.delay(OperationId::generate(), 1))
            .collect();
        assert!(delays.len() > 90, "{}", delays.len());
    }
}
