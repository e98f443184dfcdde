//! The number of erasures, by all processes.
//!
//! There are no notifications, so each process reads it every second: an erasure in another process
//! is heard within that time.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use semel_core::store::{ErasureEpoch, Result};
use tokio::time::Instant;

use crate::attributes::{Attributes, key, number};
use crate::keys::{ERASURES, HEAD};
use crate::store::{Inner, values};

/// How often the number is read.
const INTERVAL: Duration = Duration::from_secs(1);
/// How old it may be. Answers are not cached where it is older.
const MAX_AGE: Duration = Duration::from_secs(2);

/// The number as this process last read it.
#[derive(Debug, Default)]
pub(crate) struct Erasures(Mutex<Option<(u64, Instant)>>);

impl Erasures {
    /// The epoch, as long as it is known.
    pub(crate) fn epoch(&self) -> Option<ErasureEpoch> {
        let read = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, at) = read?;
        (at.elapsed() <= MAX_AGE).then_some(ErasureEpoch(count))
    }

    fn set(&self, count: Option<u64>, at: Instant) {
        let mut read = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Never back: an answer that was read before an erasure must not become valid again.
        *read = count.map(|count| (read.map_or(count, |(before, _)| count.max(before)), at));
    }
}

impl Inner {
    /// Counts an erasure. Answers that were cached before are not used any more: here at once.
    pub(crate) async fn count_erasure(&self) -> Result<()> {
        self.erasures.set(None, Instant::now());
        let one = values([(":one", number(1))]);
        self.update(key(ERASURES, HEAD), "ADD n :one", None, one)
            .await?;
        self.read_erasures().await
    }

    pub(crate) async fn read_erasures(&self) -> Result<()> {
        let at = Instant::now();
        let item = self.read(ERASURES, HEAD).await?;
        let count = match item {
            Some(item) => Attributes(item).need("n")?,
            None => 0,
        };
        self.erasures.set(Some(count), at);
        Ok(())
    }
}

/// Reads the number of erasures until the store is dropped.
pub(crate) fn spawn_reader(store: &Arc<Inner>) {
    let store: Weak<Inner> = Arc::downgrade(store);
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(INTERVAL);
        loop {
            interval.tick().await;
            let Some(store) = store.upgrade() else { return };
            if let Err(error) = store.read_erasures().await {
                tracing::debug!(%error, "the number of erasures was not read; answers are not cached");
            }
        }
    });
}
