//! The database's clock, and what is known of it here.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use semel_core::{Clock, Timestamp};
use tokio_postgres::{GenericClient, Statement};

/// The clock that judges: the database's, unless a test brings its own.
#[derive(Debug)]
pub(crate) struct Time {
    given: Option<Arc<dyn Clock>>,
    seen: Arc<Seen>,
}

/// What was last seen of the database's clock, carried on by this machine's steady one.
#[derive(Debug)]
struct Seen {
    began: Instant,
    /// The database's time when the steady clock stood at nothing.
    offset: AtomicI64,
}

/// An instant before a statement was sent.
#[derive(Clone, Copy)]
pub(crate) struct Sent(i64);

impl Time {
    /// What the clock that judges says now, in microseconds.
    pub(crate) async fn ask(
        &self,
        client: &impl GenericClient,
        now: &Statement,
    ) -> Result<i64, tokio_postgres::Error> {
        client.query_one(now, &[&self.given()]).await?.try_get(0)
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "the steady clock only carries on what the database said"
    )]
    pub(crate) fn new(given: Option<Arc<dyn Clock>>) -> Self {
        Self {
            given,
            seen: Arc::new(Seen {
                began: Instant::now(),
                offset: AtomicI64::new(0),
            }),
        }
    }

    /// What statements take for now: nothing, and the database asks its own clock.
    pub(crate) fn given(&self) -> Option<i64> {
        self.given.as_ref().map(|clock| clock.now().as_micros())
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        match &self.given {
            Some(given) => Arc::clone(given),
            None => Arc::clone(&self.seen) as Arc<dyn Clock>,
        }
    }

    pub(crate) fn sending(&self) -> Sent {
        Sent(self.seen.steady())
    }

    /// The database said what time it is, some time after the statement was sent. Taken for the
    /// time *at* sending it is a little late, so that copies of answers end early, not late.
    pub(crate) fn heard(&self, sent: Sent, now: i64) {
        self.seen.offset.store(now - sent.0, Ordering::Relaxed);
    }
}

impl Seen {
    fn steady(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}

impl Clock for Seen {
    fn now(&self) -> Timestamp {
        let offset = self.offset.load(Ordering::Relaxed);
        Timestamp::from_micros(offset.saturating_add(self.steady()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_never_behind_what_is_told_here() {
        let time = Time::new(None);
        let sent = time.sending();
        let database = 1_700_000_000_000_000;
        time.heard(sent, database);
        assert!(time.clock().now() >= Timestamp::from_micros(database));
    }
}
