//! Removes expired data in batches small enough not to delay requests.
//!
//! The store decides what is expired; records that are in progress or unknown never are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel_core::Store;
use semel_core::store::Result;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::meters::names;
use crate::rounds::Retained;
use crate::runner::Worker;

/// A batch that takes longer than this delays the requests behind it; the next one is halved.
const TOO_LONG: Duration = Duration::from_millis(50);

/// After a full batch that took no longer than this, the next one is doubled.
const SHORT: Duration = Duration::from_millis(20);

/// The pause after a batch, as a multiple of its duration: retention takes at most a fifth of the
/// store's time.
const PAUSES: u32 = 4;

/// The kinds of expiring data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Expired,
    Body,
    Tombstone,
    Message,
}

/// The size of the next batch of each kind; 0 before the first.
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

impl<S: Store> Worker<S> {
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
            let removed = self.remove_batch(kind, limit).await;
            let took = began.elapsed();
            size.store(
                next_size(limit, self.pace.retain_batch, took, &removed),
                Ordering::Relaxed,
            );
            // A failure of one kind does not stop the others.
            let removed = removed.unwrap_or_else(|error| {
                failed = Some(error);
                0
            });
            round.more |= removed >= limit;
            match kind {
                Kind::Expired => round.expired = removed,
                Kind::Body => round.bodies = removed,
                Kind::Tombstone => round.tombstones = removed,
                Kind::Message => round.messages = removed,
            }
            if removed > 0 {
                metrics::counter!(names::PRUNED, "what" => kind.label()).increment(removed as u64);
            }
            let pause = tokio::time::sleep(took.saturating_mul(PAUSES));
            if shutdown.run_until_cancelled(pause).await.is_none() {
                break;
            }
        }
        failed.map_or(Ok(round), Err)
    }

    async fn remove_batch(&self, kind: Kind, limit: usize) -> Result<usize> {
        match kind {
            Kind::Expired => self.store.expire(limit).await,
            Kind::Body => self.store.drop_bodies(limit).await,
            Kind::Tombstone => self.store.purge(limit).await,
            Kind::Message => self.store.forget_messages(limit).await,
        }
    }
}

/// Halves after a slow batch, failed or not; doubles after a fast full one.
fn next_size(limit: usize, largest: usize, took: Duration, removed: &Result<usize>) -> usize {
    if took > TOO_LONG {
        (limit / 2).max(1)
    } else if took <= SHORT && removed.as_ref().is_ok_and(|removed| *removed >= limit) {
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
        for (limit, took, removed, next) in [
            (200, 51, 200, 100),
            (200, 51, 0, 100),
            (1, 51, 1, 1),
            (100, 50, 100, 100),
            (100, 20, 100, 200),
            (150, 20, 150, 200),
            // The batch was not full, so its duration says nothing about a larger one.
            (100, 20, 99, 100),
        ] {
            assert_eq!(
                next_size(limit, 200, ms(took), &Ok(removed)),
                next,
                "{limit} {took}"
            );
        }
    }
}
