//! Counts decisions per operation, and writes the counts to the store.
//!
//! A [`Recorder`] in front of the Prometheus recorder sees every counter increment and counts it a
//! second time, by operation. Every two seconds the counts go into the store, where the console
//! reads the sums of all gateways.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use semel_core::statistics::{Activity, DecisionCounts, Misuse, interval_start};
use semel_core::store::Result;
use semel_core::{OperationId, Store, Timestamp};
use semel_worker::meters::{MAX_LABELS, OTHER};
use tokio_util::sync::CancellationToken;

use crate::telemetry::names;

/// How often counts are written to the store.
const WRITE_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of records with a misused key between two writes; further ones are not counted.
const MAX_MISUSED: usize = 1000;

/// The counted metrics, in the order of [`DecisionCounts::counts`].
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

/// What this process counted since the last write. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    operations: Mutex<HashMap<Box<str>, Arc<Cells>>>,
    misused: Mutex<HashMap<OperationId, MisuseCount>>,
    /// Requests with weak keys since the process started, by operation and reason.
    weak_keys: Mutex<WeakKeyCounts>,
}

/// Counts by operation and reason.
type WeakKeyCounts = HashMap<(Box<str>, Box<str>), Arc<AtomicU64>>;

/// The counters of one operation.
#[derive(Debug, Default)]
struct Cells([AtomicU64; 8]);

/// How often a record's key was used for a different request.
#[derive(Clone, Copy, Debug)]
struct MisuseCount {
    count: u64,
    first_at: Timestamp,
    last_at: Timestamp,
}

impl Counts {
    /// Counts one request that used the key of record `id` for a different request.
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
                let once = MisuseCount {
                    count: 1,
                    first_at: now,
                    last_at: now,
                };
                misused.insert(id, once);
            }
        }
    }

    fn cells(&self, operation: &str) -> Arc<Cells> {
        let mut operations = lock(&self.0.operations);
        let known = operations.contains_key(operation) || operations.len() < MAX_LABELS;
        let label = if known { operation } else { OTHER };
        Arc::clone(operations.entry(label.into()).or_default())
    }

    /// Requests with weak keys since this process started: operation, reason and count, in order.
    pub(crate) fn weak_keys(&self) -> Vec<(Box<str>, Box<str>, u64)> {
        let counted = lock(&self.0.weak_keys);
        let mut counted: Vec<_> = counted
            .iter()
            .map(|((operation, reason), count)| {
                let count = count.load(Ordering::Relaxed);
                (operation.clone(), reason.clone(), count)
            })
            .collect();
        counted.sort_unstable();
        counted
    }

    /// The count of requests with keys of one weakness, since this process started.
    pub fn weak_key_count(&self, operation: &str, reason: &str) -> Arc<AtomicU64> {
        let mut counted = lock(&self.0.weak_keys);
        let key = (Box::from(operation), Box::from(reason));
        let known = counted.contains_key(&key) || counted.len() < MAX_LABELS;
        let key = if known {
            key
        } else {
            (OTHER.into(), reason.into())
        };
        Arc::clone(counted.entry(key).or_default())
    }

    /// Takes what was counted since the last call.
    fn take(&self, now: Timestamp) -> Vec<Activity> {
        let at = interval_start(now);
        let operations = lock(&self.0.operations);
        let counted = operations.iter().map(|(operation, cells)| Activity {
            at,
            operation: operation.clone(),
            decisions: cells.take(),
        });
        counted
            .filter(|activity| !activity.decisions.is_empty())
            .collect()
    }

    /// Adds counts back that could not be written.
    fn put_back(&self, activity: Vec<Activity>, misused: HashMap<OperationId, MisuseCount>) {
        for Activity {
            operation,
            decisions,
            ..
        } in activity
        {
            self.cells(&operation).add(&decisions);
        }
        let mut kept = lock(&self.0.misused);
        for (id, more) in misused {
            let seen = kept.entry(id).or_insert(MisuseCount { count: 0, ..more });
            seen.count += more.count;
            seen.first_at = seen.first_at.min(more.first_at);
            seen.last_at = seen.last_at.max(more.last_at);
        }
    }

    /// Writes the counts to the store.
    ///
    /// # Errors
    /// The store's error. The counts are kept for the next call.
    ///
    /// # Cancellation
    /// The counts taken by this call are lost.
    pub async fn write_to<S: Store>(&self, store: &S) -> Result<()> {
        let activity = self.take(store.clock().now());
        let by_record = std::mem::take(&mut *lock(&self.0.misused));
        if activity.is_empty() && by_record.is_empty() {
            return Ok(());
        }
        let write = async {
            let misuses = resolve_misuses(store, &by_record).await?;
            store.add_counts(activity.clone(), misuses).await
        };
        let written = write.await;
        if written.is_err() {
            self.put_back(activity, by_record);
        }
        written
    }
}

/// Sums misuse by tenant and operation. Records that no longer exist are left out.
async fn resolve_misuses<S: Store>(
    store: &S,
    by_record: &HashMap<OperationId, MisuseCount>,
) -> Result<Vec<Misuse>> {
    let mut misuses = HashMap::<_, Misuse>::new();
    for (id, seen) in by_record {
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
        misuses
            .entry((misuse.tenant.clone(), misuse.operation.clone()))
            .and_modify(|sum| sum.add(&misuse))
            .or_insert(misuse);
    }
    Ok(misuses.into_values().collect())
}

/// Writes counts to the store until `stop` is cancelled, and once more then.
///
/// # Cancellation
/// Counts since the last write are lost.
pub async fn write_periodically<S: Store>(counts: Counts, store: S, stop: CancellationToken) {
    let mut failing = false;
    loop {
        let stopping = stop
            .run_until_cancelled(tokio::time::sleep(WRITE_INTERVAL))
            .await
            .is_none();
        match counts.write_to(&store).await {
            Ok(()) => failing = false,
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "cannot write request counts to the store; retrying");
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
    fn take(&self) -> DecisionCounts {
        let cells = self.0.each_ref();
        cells.map(|cell| cell.swap(0, Ordering::Relaxed)).into()
    }

    fn add(&self, decisions: &DecisionCounts) {
        for (cell, count) in self.0.iter().zip(decisions.counts()) {
            cell.fetch_add(count, Ordering::Relaxed);
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A recorder that also counts for [`Counts`] what it forwards.
pub(crate) struct CountingRecorder<R> {
    pub(crate) inner: R,
    pub(crate) counts: Counts,
}

/// A counter that increments both.
struct DoubleCounter {
    inner: Counter,
    cells: Arc<Cells>,
    index: usize,
}

impl CounterFn for DoubleCounter {
    fn increment(&self, value: u64) {
        self.inner.increment(value);
        if let Some(cell) = self.cells.0.get(self.index) {
            cell.fetch_add(value, Ordering::Relaxed);
        }
    }

    // Not counted: these counters are only incremented.
    fn absolute(&self, value: u64) {
        self.inner.absolute(value);
    }
}

/// As [`DoubleCounter`], for weak keys.
struct WeakKeyCounter {
    inner: Counter,
    count: Arc<AtomicU64>,
}

impl CounterFn for WeakKeyCounter {
    fn increment(&self, value: u64) {
        self.inner.increment(value);
        self.count.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.inner.absolute(value);
    }
}

impl<R: Recorder> Recorder for CountingRecorder<R> {
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
        let index = COUNTED.iter().position(|name| *name == key.name());
        let label = |name| key.labels().find(|label| label.key() == name);
        let operation = label("operation");
        if let (names::KEY_WEAK, Some(operation), Some(reason)) =
            (key.name(), operation, label("reason"))
        {
            let count = self
                .counts
                .weak_key_count(operation.value(), reason.value());
            return Counter::from_arc(Arc::new(WeakKeyCounter { inner, count }));
        }
        match (index, operation) {
            (Some(index), Some(operation)) => Counter::from_arc(Arc::new(DoubleCounter {
                inner,
                cells: self.counts.cells(operation.value()),
                index,
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
