//! One round of each job. The worker repeats them; tests and tools call them directly.

use std::sync::PoisonError;

use semel_core::inbox::Parked;
use semel_core::store::{OperationFilter, Result};
use semel_core::{Actor, Code, Record, Resolution, State, Store, Unresolved};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::meters::{OTHER, names};
use crate::notice::{self, Applied, Notice};
use crate::reconcile::Schedule;
use crate::reconcilers::{RECONCILER, ReconcileOutcome};
use crate::runner::Worker;
use crate::unreconciled::{self, due_at, unclaimed};

/// The code of a dead letter that no reconciler could look up.
const NO_RECONCILER: &str = "no_way_to_find_out";

/// The result of one sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Records whose lease expired, and whose outcome is now unknown.
    pub swept: usize,
}

/// The result of one round of reconciliation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Unknown records that were due, and claimed.
    pub claimed: usize,
    /// Resolved as completed.
    pub completed: usize,
    /// Released: not executed.
    pub released: usize,
    /// Still unknown.
    pub still_unknown: usize,
    /// Resolved by another process meanwhile.
    pub overtaken: usize,
    /// Moved to the dead letters.
    pub dead_lettered: usize,
}

/// The result of one round over the parked webhook events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Events that were due, and claimed.
    pub claimed: usize,
    /// Those that resolved a record.
    pub resolved: usize,
    /// Those whose record was already settled.
    pub moot: usize,
    /// Those that contradict a release.
    pub contradicted: usize,
    /// Those that stay parked.
    pub parked: usize,
    /// Those that were given up after their last try.
    pub given_up: usize,
}

/// The result of one round of retention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Records that expired.
    pub expired: usize,
    /// Bodies that were dropped.
    pub bodies: usize,
    /// Tombstones that were purged.
    pub tombstones: usize,
    /// Inbox messages that were forgotten.
    pub messages: usize,
    /// Whether a batch was full, so that more is due now.
    pub more: bool,
}

/// The result for one claimed record.
enum RecordResult {
    Completed,
    Released,
    StillUnknown,
    Overtaken,
    DeadLettered,
}

impl<S: Store> Worker<S> {
    /// Marks one batch of records with an expired lease as unknown.
    ///
    /// # Errors
    /// The store failed; the next round continues.
    ///
    /// # Cancellation
    /// As for [`Store`].
    pub async fn sweep_once(&self) -> Result<Swept> {
        let swept = self.store.sweep(self.pace.sweep_batch).await?;
        for fence in &swept {
            // Only for the metric and the log line, so a failed read is not an error.
            let record = self.store.find(fence.id).await.ok().flatten();
            let operation = record.as_ref().map(|record| record.identity.operation());
            let operation = operation.unwrap_or(OTHER);
            self.labels.count(names::ZOMBIE, operation);
            self.labels.count_unknown(operation, &Code::LEASE_EXPIRED);
            tracing::warn!(id = %fence.id, attempt = fence.attempt, operation, "a lease expired without a result; the outcome is unknown");
        }
        Ok(Swept { swept: swept.len() })
    }

    /// Claims one batch of due unknown records of each operation and looks up the outcome of each.
    /// Dead-letters records that are still unknown after the last lookup. Records of operations
    /// without a strategy are left alone.
    ///
    /// # Errors
    /// The store failed for some of them; they come due again.
    ///
    /// # Cancellation
    /// Lookups are abandoned, and come due again.
    pub async fn reconcile_once(&self) -> Result<Reconciled> {
        let mut rounds = JoinSet::new();
        for operation in self.reconcilers.operations() {
            let (worker, operation) = (self.clone(), Box::from(operation));
            rounds.spawn(async move { worker.reconcile(&operation).await });
        }
        let mut total = Ok(Reconciled::default());
        while let Some(round) = rounds.join_next().await {
            let round = round.unwrap_or_else(resume_panic);
            total = merge(total, round);
        }
        total
    }

    /// One batch of one operation's unknown records. Claims no more than it looks up at once: a
    /// claimed record that waits for its lookup would come due again meanwhile.
    pub(crate) async fn reconcile(&self, operation: &str) -> Result<Reconciled> {
        let Some(schedule) = self.reconcilers.schedule(operation) else {
            return Ok(Reconciled::default());
        };
        let which = OperationFilter::Only(operation.into());
        let claimed = self
            .store
            .claim_due(which, schedule.backoff(), self.pace.lookups)
            .await?;
        let mut lookups = JoinSet::new();
        let mut round = Ok(Reconciled {
            claimed: claimed.len(),
            ..Reconciled::default()
        });
        for record in claimed {
            if schedule.attempts > 0 {
                self.labels.count(names::SCHEDULED, operation);
            }
            let worker = self.clone();
            lookups.spawn(async move { worker.reconcile_record(&record, schedule).await });
        }
        while let Some(result) = lookups.join_next().await {
            let result = result.unwrap_or_else(resume_panic);
            round = merge(round, result.map(Reconciled::from));
        }
        round
    }

    /// Looks up one claimed record; dead-letters it after the last lookup.
    async fn reconcile_record(&self, record: &Record, schedule: Schedule) -> Result<RecordResult> {
        let attempts = reconcile_attempts(record);
        let outcome = self
            .reconcilers
            .reconcile(record, Actor::from(RECONCILER))
            .await?;
        let last = match outcome {
            ReconcileOutcome::Completed => return Ok(RecordResult::Completed),
            ReconcileOutcome::Released => return Ok(RecordResult::Released),
            ReconcileOutcome::Overtaken(_) => return Ok(RecordResult::Overtaken),
            ReconcileOutcome::StillUnknown(_) => attempts >= schedule.attempts,
            // Left to an operator at once.
            ReconcileOutcome::NoStrategy if schedule.attempts == 0 => {
                return self.dead_letter(record, NO_RECONCILER).await;
            }
            // It waits for a webhook: not the lookups count, but the intervals between them.
            ReconcileOutcome::NoStrategy => attempts > schedule.attempts,
        };
        if last {
            self.dead_letter(record, "reconcile_attempts_exhausted")
                .await
        } else {
            Ok(RecordResult::StillUnknown)
        }
    }

    /// Applies [`Worker::dead_letter_unreconciled`] to one page of unknown records; the next round
    /// continues after it. It lists and does not claim: a claim would postpone the lookup of another
    /// process.
    ///
    /// # Errors
    /// The store failed; the next round continues.
    ///
    /// # Cancellation
    /// As for [`Store`].
    pub async fn dead_letter_unreconciled_once(&self) -> Result<Reconciled> {
        let mut round = Reconciled::default();
        let Some(after) = self.dead_letter_after else {
            return Ok(round);
        };
        let cursor = || {
            let cursor = &self.dead_letter_cursor;
            cursor.lock().unwrap_or_else(PoisonError::into_inner)
        };
        let query = unclaimed(None, *cursor(), self.pace.sweep_batch);
        let page = self.store.list(query).await?;
        let due_since = self.store.clock().now().saturating_sub(after);
        for found in &page.operations {
            let operation = found.identity.operation();
            // A claim changes the record, so one that changed since then has not been due for long.
            if self.reconcilers.schedule(operation).is_some() || found.updated_at > due_since {
                continue;
            }
            let record = self.store.find(found.fence.id).await?;
            if let Some(record) = record
                && due_at(&record).is_some_and(|at| at <= due_since)
                && let RecordResult::DeadLettered = self.dead_letter(&record, NO_RECONCILER).await?
            {
                round.dead_lettered += 1;
            }
        }
        *cursor() = page.next;
        Ok(round)
    }

    async fn dead_letter(&self, record: &Record, code: &'static str) -> Result<RecordResult> {
        let (id, operation) = (record.id, record.identity.operation());
        match self
            .store
            .dead_letter(record.fence(), Code::from(code))
            .await?
        {
            Resolution::Applied => {
                self.labels.count(names::DEAD_LETTER, operation);
                tracing::error!(%id, operation, code, "the outcome could not be determined; the record is dead-lettered and waits for an operator");
                Ok(RecordResult::DeadLettered)
            }
            Resolution::Fenced(_) => Ok(RecordResult::Overtaken),
        }
    }

    /// Retries one batch of parked webhook events.
    ///
    /// # Errors
    /// The store failed for some of them; they come due again.
    ///
    /// # Cancellation
    /// As for [`Store`].
    pub async fn deliver_once(&self) -> Result<Delivered> {
        let claimed = self
            .store
            .claim_parked(self.pace.redeliver, self.pace.deliver_batch)
            .await?;
        let mut round = Delivered {
            claimed: claimed.len(),
            ..Delivered::default()
        };
        let mut failed = None;
        for parked in claimed {
            match self.deliver(&parked).await {
                Ok(Some(Applied::Resolved)) => round.resolved += 1,
                Ok(Some(Applied::Moot)) => round.moot += 1,
                Ok(Some(Applied::Contradicted)) => round.contradicted += 1,
                Ok(Some(Applied::Parked)) => round.parked += 1,
                Ok(None) => round.given_up += 1,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(round), Err)
    }

    /// Applies one event; `None` if it is given up.
    async fn deliver(&self, parked: &Parked) -> Result<Option<Applied>> {
        let (source, id) = (&*parked.message.source, &*parked.message.id);
        let why = match Notice::from_bytes(&parked.message.payload) {
            Ok(notice) => match notice::apply(&*self.store, source, &notice).await? {
                Applied::Parked if parked.tries >= self.pace.redeliver_tries => {
                    "no matching record in all its tries".to_owned()
                }
                Applied::Parked => return Ok(Some(Applied::Parked)),
                applied @ (Applied::Resolved | Applied::Moot | Applied::Contradicted) => {
                    self.store.settle_message(source, id).await?;
                    return Ok(Some(applied));
                }
            },
            Err(error) => error.to_string(),
        };
        self.store.settle_message(source, id).await?;
        metrics::counter!(names::GIVEN_UP, "source" => source.to_owned()).increment(1);
        tracing::error!(
            source,
            message = id,
            tries = parked.tries,
            why,
            "gave up on a webhook event"
        );
        Ok(None)
    }

    /// Removes one batch of each kind of expired data. It pauses after each batch, so this takes
    /// five times as long as the store is busy.
    ///
    /// # Errors
    /// The store failed; the next round continues.
    ///
    /// # Cancellation
    /// As for [`Store`].
    pub async fn retain_once(&self) -> Result<Retained> {
        self.retain(&CancellationToken::new()).await
    }

    /// Updates the gauges.
    ///
    /// # Errors
    /// The store failed; the gauges keep their values.
    ///
    /// # Cancellation
    /// The gauges keep their values.
    pub async fn measure_once(&self) -> Result<()> {
        let counts = self.store.count_unfinished().await?;
        let now = self.store.clock().now();
        let unreconciled = unreconciled::find(&*self.store, &counts, now).await?;
        self.labels.set_gauges(&counts, &unreconciled, now);
        Ok(())
    }
}

/// The number of lookups, or intervals, up to and including the current one.
fn reconcile_attempts(record: &Record) -> u32 {
    match &record.state {
        State::Unknown(Unresolved {
            reconcile_attempts, ..
        }) => *reconcile_attempts,
        State::InProgress(_)
        | State::Completed(_)
        | State::FailedRetryable { .. }
        | State::Expired { .. } => 0,
    }
}

/// The sum, or the first error.
fn merge(a: Result<Reconciled>, b: Result<Reconciled>) -> Result<Reconciled> {
    let (a, b) = (a?, b?);
    Ok(Reconciled {
        claimed: a.claimed + b.claimed,
        completed: a.completed + b.completed,
        released: a.released + b.released,
        still_unknown: a.still_unknown + b.still_unknown,
        overtaken: a.overtaken + b.overtaken,
        dead_lettered: a.dead_lettered + b.dead_lettered,
    })
}

/// Propagates the panic of a task to the round, which the runner reports. These tasks are aborted
/// only when the round is dropped.
fn resume_panic<T>(error: tokio::task::JoinError) -> T {
    std::panic::resume_unwind(
        error
            .try_into_panic()
            .unwrap_or_else(|error| Box::new(error.to_string())),
    )
}

impl From<RecordResult> for Reconciled {
    fn from(result: RecordResult) -> Self {
        let mut one = Self::default();
        match result {
            RecordResult::Completed => one.completed = 1,
            RecordResult::Released => one.released = 1,
            RecordResult::StillUnknown => one.still_unknown = 1,
            RecordResult::Overtaken => one.overtaken = 1,
            RecordResult::DeadLettered => one.dead_lettered = 1,
        }
        one
    }
}
