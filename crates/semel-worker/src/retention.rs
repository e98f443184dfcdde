//! Letting go of what has had its time, without disturbing traffic.
//!
//! Unfinished records have no time: what is in progress or unknown is never let go of. That is the
//! store's rule; here is only the pace.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel_core::store::Result;
use semel_core::{Inbox, Inspect, Maintain, Store};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::meters::names;
use crate::rounds::Retained;
use crate::runner::Worker;

/// A batch that takes longer than this holds up the requests behind it, and is made smaller.
const TOO_LONG: Duration = Duration::from_millis(50);

/// A full batch that takes no longer than this may be twice as large and still be short.
const SHORT: Duration = Duration::from_millis(20);

/// The pause after a batch, in batches: at most a fifth of the store's time goes into this.
const PAUSES: u32 = 4;

/// What has its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Expired,
    Body,
    Tombstone,
    Message,
}

/// How large the next batch of each kind is; 0 before the first.
#[derive(Debug, Default)]
pub(crate) struct Sizes([AtomicUsize; 4]);

impl Kind {
    const ALL: [Self; 4] = [Self::Expired, Self::Body, Self::Tombstone, Self::Message];

    fn label(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Body => "body",
            Self::Tombstone => "tombstone",
            Self::Message => "message",
        }
    }
}

impl<S: Store + Maintain + Inspect + Inbox> Worker<S> {
    /// One batch of each kind, and a pause after each that ends early when the process stops.
    pub(crate) async fn retain(&self, shutdown: &CancellationToken) -> Result<Retained> {
        let mut round = Retained::default();
        let mut failed = None;
        for (kind, size) in Kind::ALL.into_iter().zip(&self.sizes.0) {
            let limit = match size.load(Ordering::Relaxed) {
                0 => self.pace.retain_batch,
                limit => limit,
            };
            let began = Instant::now();
            let gone = self.let_go(kind, limit).await;
            let took = began.elapsed();
            size.store(
                next_size(limit, self.pace.retain_batch, took, &gone),
                Ordering::Relaxed,
            );
            // One kind that fails does not keep the others.
            let gone = gone.unwrap_or_else(|error| {
                failed = Some(error);
                0
            });
            round.more |= gone >= limit;
            match kind {
                Kind::Expired => round.expired = gone,
                Kind::Body => round.bodies = gone,
                Kind::Tombstone => round.tombstones = gone,
                Kind::Message => round.messages = gone,
            }
            if gone > 0 {
                metrics::counter!(names::PRUNED, "what" => kind.label()).increment(gone as u64);
            }
            let pause = tokio::time::sleep(took.saturating_mul(PAUSES));
            if shutdown.run_until_cancelled(pause).await.is_none() {
                break;
            }
        }
        failed.map_or(Ok(round), Err)
    }

    async fn let_go(&self, kind: Kind, limit: usize) -> Result<usize> {
        match kind {
            Kind::Expired => self.store.expire(limit).await,
            Kind::Body => self.store.drop_bodies(limit).await,
            Kind::Tombstone => self.store.purge(limit).await,
            Kind::Message => self.store.forget(limit).await,
        }
    }
}

/// Half of a batch that took too long, twice a full one that was short. A batch that failed late
/// was too large, too, as far as anybody knows.
fn next_size(limit: usize, largest: usize, took: Duration, gone: &Result<usize>) -> usize {
    if took > TOO_LONG {
        (limit / 2).max(1)
    } else if took <= SHORT && gone.as_ref().is_ok_and(|gone| *gone >= limit) {
        limit.saturating_mul(2).min(largest)
    } else {
        limit.min(largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_batch_is_halved_and_grows_back() {
        let ms = Duration::from_millis;
        for (limit, took, gone, next) in [
            (200, 51, 200, 100),
            (200, 51, 0, 100),
            (1, 51, 1, 1),
            (100, 50, 100, 100),
            (100, 20, 100, 200),
            (150, 20, 150, 200),
            // Few were due: how long many would take is not known.
            (100, 20, 99, 100),
        ] {
            assert_eq!(
                next_size(limit, 200, ms(took), &Ok(gone)),
                next,
                "{limit} {took}"
            );
        }
    }
}
