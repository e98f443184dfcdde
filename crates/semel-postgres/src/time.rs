//! The database's clock, and an estimate of it in this process.
//!
//! Another server may lead after a failover, with another clock. If it is ahead, leases that the
//! server before it granted would end early. The estimate then goes on from the clock before, and
//! approaches the new one slowly enough that no lease loses more than a tenth.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use semel_core::{Clock, SystemClock, Timestamp};
use tokio_postgres::{GenericClient, Statement};

/// A clock that differs by more than this has jumped, or is set wrongly.
const MAX_DIFFERENCE_US: i64 = 2_000_000;

/// How much longer than the jump the estimate takes to catch up.
const CATCH_UP_FACTOR: i64 = 10;

/// The clock that leases and windows are judged by: the database's, unless a test gives one.
#[derive(Debug)]
pub(crate) struct Time {
    given: Option<Arc<dyn Clock>>,
    estimate: Arc<ClockEstimate>,
}

/// The database's clock as last seen, advanced by this machine's monotonic clock.
#[derive(Debug)]
struct ClockEstimate {
    began: Instant,
    /// The database's time at `began`; 0 before it was heard.
    offset: AtomicI64,
    /// How far the database's clock jumped ahead, and when, since `began`.
    jump: AtomicI64,
    jumped_at: AtomicI64,
    jumps: AtomicU64,
}

/// An instant before a statement was sent.
#[derive(Clone, Copy)]
pub(crate) struct Sent(i64);

impl Time {
    /// The current time in microseconds.
    pub(crate) async fn ask(
        &self,
        client: &impl GenericClient,
        now: &Statement,
    ) -> Result<i64, tokio_postgres::Error> {
        client.query_one(now, &[&self.given()]).await?.try_get(0)
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "the monotonic clock only advances the database's time"
    )]
    pub(crate) fn new(given: Option<Arc<dyn Clock>>) -> Self {
        Self {
            given,
            estimate: Arc::new(ClockEstimate {
                began: Instant::now(),
                offset: AtomicI64::new(0),
                jump: AtomicI64::new(0),
                jumped_at: AtomicI64::new(0),
                jumps: AtomicU64::new(0),
            }),
        }
    }

    /// The time that statements get as a parameter; with none the database uses its own clock.
    pub(crate) fn given(&self) -> Option<i64> {
        match &self.given {
            Some(clock) => Some(clock.now().as_micros()),
            None if self.estimate.behind_micros() > 0 => Some(self.estimate.now().as_micros()),
            None => None,
        }
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        match &self.given {
            Some(given) => Arc::clone(given),
            None => Arc::clone(&self.estimate) as Arc<dyn Clock>,
        }
    }

    pub(crate) fn sending(&self) -> Sent {
        Sent(self.estimate.elapsed_micros())
    }

    /// Takes the database's time of a statement for the time when the statement was sent. The
    /// estimate is ahead by the time on the wire, so that cached responses end early, not late.
    pub(crate) fn heard(&self, sent: Sent, now: i64) {
        // While the estimate catches up, the database returns the time that it was given.
        if self.estimate.behind_micros() == 0 {
            self.estimate.hear(sent, now);
        }
    }

    /// Compares the clock of a server, at connect, with the one before and with our own.
    pub(crate) fn connected(&self, sent: Sent, now: i64, address: &str) {
        if self.given.is_some() {
            return;
        }
        let ours = SystemClock.now().as_micros();
        if (now - ours).abs() > MAX_DIFFERENCE_US {
            tracing::warn!(
                "the clock of {address} differs from the clock of this machine by {} ms; check both",
                (now - ours) / 1000
            );
        }
        self.estimate.hear(sent, now);
    }

    /// How often the database's clock jumped.
    pub(crate) fn jumps(&self) -> u64 {
        self.estimate.jumps.load(Ordering::Relaxed)
    }
}

impl ClockEstimate {
    fn elapsed_micros(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX)
    }

    /// The database's clock by its last statement.
    fn raw_micros(&self, elapsed: i64) -> i64 {
        self.offset.load(Ordering::Relaxed).saturating_add(elapsed)
    }

    /// How far the estimate is behind a clock that jumped ahead.
    fn behind_micros(&self) -> i64 {
        let jump = self.jump.load(Ordering::Relaxed);
        if jump == 0 {
            return 0;
        }
        let since = self.elapsed_micros() - self.jumped_at.load(Ordering::Relaxed);
        (jump - since / CATCH_UP_FACTOR).max(0)
    }

    /// Takes over the database's clock, and remembers a jump.
    fn hear(&self, sent: Sent, now: i64) {
        let elapsed = self.elapsed_micros();
        let is_first = self.offset.load(Ordering::Relaxed) == 0;
        let (earliest, latest) = (self.raw_micros(sent.0), self.raw_micros(elapsed));
        let behind = self.behind_micros();
        self.offset.store(now - sent.0, Ordering::Relaxed);
        if is_first {
            return;
        }
        let (ahead, back) = (now - latest, earliest - now);
        if ahead.max(back) <= MAX_DIFFERENCE_US {
            return;
        }
        self.jumps.fetch_add(1, Ordering::Relaxed);
        if back > 0 {
            tracing::warn!(
                "the clock of PostgreSQL jumped back by {} ms: leases and windows last that much longer",
                back / 1000
            );
            self.jump.store((behind - back).max(0), Ordering::Relaxed);
        } else {
            tracing::warn!(
                "the clock of PostgreSQL jumped ahead by {} ms: this process follows it slowly, so that leases do not end early",
                ahead / 1000
            );
            self.jump.store(behind + ahead, Ordering::Relaxed);
        }
        self.jumped_at.store(elapsed, Ordering::Relaxed);
    }
}

impl Clock for ClockEstimate {
    fn now(&self) -> Timestamp {
        let raw = self.raw_micros(self.elapsed_micros());
        Timestamp::from_micros(raw.saturating_sub(self.behind_micros()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATABASE: i64 = 1_700_000_000_000_000;

    #[test]
    fn the_estimate_is_never_behind_the_database() {
        let time = Time::new(None);
        let sent = time.sending();
        time.heard(sent, DATABASE);
        assert!(time.clock().now() >= Timestamp::from_micros(DATABASE));
    }

    #[test]
    fn a_clock_that_jumps_ahead_is_followed_slowly() {
        const HOUR: i64 = 3_600_000_000;
        let time = Time::new(None);
        time.heard(time.sending(), DATABASE);
        assert_eq!(time.given(), None);
        time.connected(time.sending(), DATABASE + HOUR, "db2");
        let given = time.given().unwrap();
        // At most a tenth faster than real time since the jump.
        assert!(given < DATABASE + HOUR / 10, "{}", given - DATABASE);
        assert!(given >= DATABASE);
        assert_eq!(time.jumps(), 1);
        // What a statement returns now is the time that it was given.
        time.heard(time.sending(), given);
        assert_eq!(time.jumps(), 1);
        // The next server has the first one's time.
        time.connected(time.sending(), DATABASE, "db1");
        assert_eq!(time.given(), None);
        assert_eq!(time.jumps(), 2);
    }

    #[test]
    fn a_small_difference_is_no_jump() {
        let time = Time::new(None);
        time.heard(time.sending(), DATABASE);
        time.connected(time.sending(), DATABASE + MAX_DIFFERENCE_US - 1, "db2");
        assert_eq!((time.given(), time.jumps()), (None, 0));
    }
}
