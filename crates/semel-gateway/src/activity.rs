//! What requests are told, counted here and added to what other gateways count.
//!
//! The counters are the metrics' own: a recorder in front of the exporter's counts the same steps
//! once more, by command. Every few seconds what was counted since goes into the store, where the
//! console finds the sums of all gateways.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use semel_core::figures::{Activity, Misuse, Told, stretch};
use semel_core::store::Result;
use semel_core::{Figures, Inspect, OperationId, Store, Timestamp};
use semel_worker::meters::{MAX_LABELS, OTHER};
use tokio_util::sync::CancellationToken;

use crate::telemetry::names;

/// How often counts are brought to the store.
const EVERY: Duration = Duration::from_secs(2);

/// The most operations whose keys were misused that are told apart between two visits. Whoever
/// misuses more at once is known by then.
const MAX_MISUSED: usize = 1000;

/// The counters that are counted, in the order of [`Told::counts`].
const COUNTED: [&str; 8] = [
    names::CREATED,
    names::REPLAY,
    names::IN_PROGRESS,
    names::KEY_MISUSE,
    names::FAILED_RETRY,
    names::UNKNOWN,
    names::EXPIRED,
    names::STORE_ERROR,
];

/// What this process counted since it was last asked. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    commands: Mutex<HashMap<Box<str>, Arc<Cells>>>,
    misused: Mutex<HashMap<OperationId, Misused>>,
}

/// One command's counters.
#[derive(Debug, Default)]
struct Cells([AtomicU64; 8]);

/// How often the key of one operation was used for something else.
#[derive(Clone, Copy, Debug)]
struct Misused {
    count: u64,
    first_at: Timestamp,
    last_at: Timestamp,
}

impl Counts {
    /// One request under the key of that operation asked for something else.
    pub(crate) fn misused(&self, id: OperationId, now: Timestamp) {
        let mut misused = lock(&self.0.misused);
        let full = misused.len() >= MAX_MISUSED;
        match misused.get_mut(&id) {
            Some(seen) => {
                seen.count += 1;
                seen.last_at = seen.last_at.max(now);
            }
            None if full => {}
            None => {
                let once = Misused {
                    count: 1,
                    first_at: now,
                    last_at: now,
                };
                misused.insert(id, once);
            }
        }
    }

    fn cells(&self, operation: &str) -> Arc<Cells> {
        let mut commands = lock(&self.0.commands);
        let known = commands.contains_key(operation) || commands.len() < MAX_LABELS;
        let label = if known { operation } else { OTHER };
        Arc::clone(commands.entry(label.into()).or_default())
    }

    /// What was counted since the last time, as of now.
    fn take(&self, now: Timestamp) -> Vec<Activity> {
        let at = stretch(now);
        let commands = lock(&self.0.commands);
        let counted = commands.iter().map(|(operation, cells)| Activity {
            at,
            operation: operation.clone(),
            told: cells.take(),
        });
        counted
            .filter(|activity| !activity.told.is_empty())
            .collect()
    }

    /// Counts what was taken and did not arrive once more.
    fn give_back(&self, activity: Vec<Activity>, misused: HashMap<OperationId, Misused>) {
        for Activity {
            operation, told, ..
        } in activity
        {
            self.cells(&operation).add(&told);
        }
        let mut kept = lock(&self.0.misused);
        for (id, more) in misused {
            let seen = kept.entry(id).or_insert(Misused { count: 0, ..more });
            seen.count += more.count;
            seen.first_at = seen.first_at.min(more.first_at);
            seen.last_at = seen.last_at.max(more.last_at);
        }
    }

    /// Brings what was counted to the store.
    ///
    /// # Errors
    /// Nothing is lost then: it is brought the next time.
    pub async fn bring<S: Store + Inspect + Figures>(&self, store: &S) -> Result<()> {
        let activity = self.take(store.clock().now());
        let misused = std::mem::take(&mut *lock(&self.0.misused));
        if activity.is_empty() && misused.is_empty() {
            return Ok(());
        }
        let brought = async {
            let named = name(store, &misused).await?;
            store.count(activity.clone(), named).await
        };
        let brought = brought.await;
        if brought.is_err() {
            self.give_back(activity, misused);
        }
        brought
    }
}

/// Whose keys they were. What is gone by now is not told.
async fn name<S: Inspect>(
    store: &S,
    misused: &HashMap<OperationId, Misused>,
) -> Result<Vec<Misuse>> {
    let mut named = HashMap::<_, Misuse>::new();
    for (id, seen) in misused {
        let Some(record) = store.find(*id).await? else {
            continue;
        };
        let identity = &record.identity;
        let misuse = Misuse {
            tenant: identity.tenant().into(),
            operation: identity.operation().into(),
            count: seen.count,
            first_at: seen.first_at,
            last_at: seen.last_at,
            last_id: *id,
        };
        named
            .entry((misuse.tenant.clone(), misuse.operation.clone()))
            .and_modify(|sum| sum.add(&misuse))
            .or_insert(misuse);
    }
    Ok(named.into_values().collect())
}

/// Brings counts to the store until `stop`, and the last ones then.
///
/// # Cancellation
/// What was counted since the last time is lost.
pub async fn keep<S: Store + Inspect + Figures>(counts: Counts, store: S, stop: CancellationToken) {
    let mut failing = false;
    loop {
        let stopping = stop
            .run_until_cancelled(tokio::time::sleep(EVERY))
            .await
            .is_none();
        match counts.bring(&store).await {
            Ok(()) => failing = false,
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "what requests were told is not in the store's figures for now");
                }
                failing = true;
            }
        }
        if stopping {
            return;
        }
    }
}

impl Cells {
    fn take(&self) -> Told {
        let cells = self.0.each_ref();
        cells.map(|cell| cell.swap(0, Ordering::Relaxed)).into()
    }

    fn add(&self, told: &Told) {
        for (cell, count) in self.0.iter().zip(told.counts()) {
            cell.fetch_add(count, Ordering::Relaxed);
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A recorder that counts for [`Counts`] what it passes on.
pub(crate) struct Counting<R> {
    pub(crate) inner: R,
    pub(crate) counts: Counts,
}

/// A counter that counts twice.
struct Both {
    inner: Counter,
    cells: Arc<Cells>,
    which: usize,
}

impl CounterFn for Both {
    fn increment(&self, value: u64) {
        self.inner.increment(value);
        if let Some(cell) = self.cells.0.get(self.which) {
            cell.fetch_add(value, Ordering::Relaxed);
        }
    }

    // Nobody sets these: they only grow.
    fn absolute(&self, value: u64) {
        self.inner.absolute(value);
    }
}

impl<R: Recorder> Recorder for Counting<R> {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        let inner = self.inner.register_counter(key, metadata);
        let which = COUNTED.iter().position(|name| *name == key.name());
        let operation = key.labels().find(|label| label.key() == "operation");
        match (which, operation) {
            (Some(which), Some(operation)) => Counter::from_arc(Arc::new(Both {
                inner,
                cells: self.counts.cells(operation.value()),
                which,
            })),
            (_, _) => inner,
        }
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.inner.register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.inner.register_histogram(key, metadata)
    }
}

#[cfg(test)]
mod tests;
