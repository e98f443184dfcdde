//! Counts all records, by operation and status, without slowing down requests.
//!
//! The scan reads the records in short batches with longer pauses in between, and publishes the
//! sums at its end. A scan over millions of records takes minutes; the console then reads the sums
//! from a few rows.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use semel_core::statistics::{Caller, MAX_CALLERS, RecordCount, RecordCounts, RecordScan};
use semel_core::store::{MAX_BATCH, Result};
use semel_core::{
    BackgroundJob, Clock, OperationId, Owner, Status, Store, Timestamp, background_job,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::meters::{MAX_LABELS, OTHER};

/// The job's name in metrics and logs.
pub const CENSUS: &str = "census";

/// The records in one batch: a few milliseconds of work.
const BATCH: usize = 2000;

/// The pause after a batch, as a multiple of its duration: the scan takes at most a tenth of the
/// store's time.
const PAUSES: u32 = 9;

/// The interval between the end of a scan and the start of the next.
const EVERY: Duration = Duration::from_secs(30);

/// The lease of the process that scans; every batch renews it.
const LEASE: Duration = Duration::from_mins(1);

/// How long request activity is kept: the charts show an hour, operators look back a day.
const KEEP_ACTIVITY: Duration = Duration::from_hours(25);

/// How long key misuse is kept after its last occurrence.
const KEEP_MISUSE: Duration = Duration::from_hours(30 * 24);

/// Counts all records repeatedly. One process at a time holds the lease and scans.
pub struct RecordCountScan<S> {
    store: S,
    clock: Arc<dyn Clock>,
    owner: Owner,
    scan: Mutex<Option<Scan>>,
}

/// A scan in progress.
struct Scan {
    began_at: Timestamp,
    after: Option<OperationId>,
    counts: BTreeMap<(Box<str>, Status), u64>,
    operations: HashSet<Box<str>>,
    callers: HashSet<Caller>,
    all_callers: bool,
}

impl<S: Store> RecordCountScan<S> {
    /// Scans this store; `clock` is the store's.
    pub fn new(store: S, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            owner: Owner::from(format!("census-{}", OperationId::generate())),
            scan: Mutex::default(),
        }
    }

    /// Scans one batch, if a scan is in progress or due.
    async fn scan_batch(&self) -> Result<bool> {
        let mut in_progress = self.scan.lock().await;
        // Taken out: a scan that fails starts over, so that nothing is counted twice.
        let mut scan = match in_progress.take() {
            Some(scan) => scan,
            None if self.is_due().await? => Scan::begin(self.clock.now()),
            None => {
                self.prune().await?;
                return Ok(false);
            }
        };
        if !self
            .store
            .acquire_scan_lease(self.owner.clone(), LEASE)
            .await?
        {
            return Ok(false);
        }
        let began = Instant::now();
        let batch = self.store.scan_records(scan.after, BATCH).await?;
        scan.after = batch.next;
        let new_callers = scan.add(batch);
        for callers in new_callers.chunks(MAX_BATCH) {
            scan.all_callers &= self.store.record_callers(callers.to_vec()).await?;
        }
        tokio::time::sleep(began.elapsed() * PAUSES).await;
        let more = scan.after.is_some();
        if more {
            *in_progress = Some(scan);
        } else {
            let counts = scan.end(self.clock.now());
            self.store.publish_record_counts(counts).await?;
        }
        Ok(more)
    }

    async fn is_due(&self) -> Result<bool> {
        let latest = self.store.record_counts().await?;
        let next = latest.map(|latest| latest.ended_at.saturating_add(EVERY));
        Ok(next.is_none_or(|next| next <= self.clock.now()))
    }

    /// Removes activity and misuse entries past their retention.
    async fn prune(&self) -> Result<()> {
        let before = |keep| self.clock.now().saturating_sub(keep);
        let activity = before(KEEP_ACTIVITY);
        while self.store.forget_activity(activity, MAX_BATCH).await? == MAX_BATCH {}
        let misuses = before(KEEP_MISUSE);
        while self.store.forget_misuses(misuses, MAX_BATCH).await? == MAX_BATCH {}
        Ok(())
    }
}

impl<S: Store> BackgroundJob for RecordCountScan<S> {
    fn name(&self) -> &'static str {
        CENSUS
    }

    fn every(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn round(&self) -> background_job::Round<'_> {
        Box::pin(self.scan_batch())
    }
}

impl Scan {
    fn begin(now: Timestamp) -> Self {
        Self {
            began_at: now,
            after: None,
            counts: BTreeMap::new(),
            operations: HashSet::new(),
            callers: HashSet::new(),
            all_callers: true,
        }
    }

    /// Adds a batch; returns the callers that are new in this scan.
    fn add(&mut self, batch: RecordScan) -> Vec<Caller> {
        let mut new_callers = Vec::new();
        for (caller, status, count) in batch.counts {
            let operation = self.label(&caller.operation);
            *self.counts.entry((operation, status)).or_default() += count;
            if self.callers.contains(&caller) {
                continue;
            }
            if self.callers.len() < MAX_CALLERS {
                self.callers.insert(caller.clone());
                new_callers.push(caller);
            } else {
                self.all_callers = false;
            }
        }
        new_callers
    }

    /// Operations past [`MAX_LABELS`] are counted together, as in the metrics.
    fn label(&mut self, operation: &str) -> Box<str> {
        if self.operations.contains(operation) {
            return operation.into();
        }
        if self.operations.len() < MAX_LABELS {
            self.operations.insert(operation.into());
            return operation.into();
        }
        OTHER.into()
    }

    fn end(self, now: Timestamp) -> RecordCounts {
        let counts = self.counts.into_iter();
        RecordCounts {
            began_at: self.began_at,
            ended_at: now,
            counts: counts
                .map(|((operation, status), count)| RecordCount {
                    operation,
                    status,
                    count,
                })
                .collect(),
            all_callers: self.all_callers,
        }
    }
}

impl<S> std::fmt::Debug for RecordCountScan<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordCountScan")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
