//! The database's clock, and an estimate of it in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use semel_core::{Clock, Timestamp};
use tokio_postgres::{GenericClient, Statement};

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
    /// The database's time at `began`.
    offset: AtomicI64,
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
            }),
        }
    }

    /// The time that statements get as a parameter; with none the database uses its own clock.
    pub(crate) fn given(&self) -> Option<i64> {
        self.given.as_ref().map(|clock| clock.now().as_micros())
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
        self.estimate.offset.store(now - sent.0, Ordering::Relaxed);
    }
}

impl ClockEstimate {
    fn elapsed_micros(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}

impl Clock for ClockEstimate {
    fn now(&self) -> Timestamp {
        let offset = self.offset.load(Ordering::Relaxed);
        Timestamp::from_micros(offset.saturating_add(self.elapsed_micros()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_never_behind_the_database() {
        let time = Time::new(None);
        let sent = time.sending();
        let database = 1_700_000_000_000_000;
        time.heard(sent, database);
        assert!(time.clock().now() >= Timestamp::from_micros(database));
    }
}
