//! The record of one attempt: writing to it until the store answers, and what a refused write
//! means.

use std::time::Duration;

use semel_core::transition::Fenced;
use semel_core::{Decision, Fence, Held, Identity, Owner, Status, Store, store};
use tokio::time::{Instant, sleep};
use tracing::Instrument as _;

use crate::route::Guard;
use crate::spans;
use crate::state::State;

/// The first wait after a failed write; it doubles up to [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_millis(20);

/// The longest wait between two writes: much shorter than a lease, which should not run out after
/// the store has recovered.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// How long a write is repeated. The lease has run out long before, and the worker reconciles.
const RETRY_FOR: Duration = Duration::from_hours(1);

/// How long a grant is looked for whose answer was lost, from when the store answers again. A
/// statement may have waited in a server that was frozen, and runs there when it thaws.
const LANDS_WITHIN: Duration = Duration::from_secs(10);

/// What became of an attempt's final write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteResult {
    /// The record has it.
    Written,
    /// The record was completed under this very attempt by another writer: by the application in
    /// its own transaction, or by reconciliation.
    CompletedElsewhere,
    /// The attempt no longer owns the record.
    Fenced,
    /// The store did not answer in time.
    GaveUp,
}

/// How the store answered a repeated write.
pub(crate) struct StoreAnswer {
    /// `None` where it did not.
    pub(crate) held: Option<Held>,
    /// Whether one of the failed tries may have been applied.
    pub(crate) may_be_written: bool,
}

/// The record of one granted attempt.
pub(crate) struct AttemptRecord<'a, S> {
    state: &'a State<S>,
    guard: &'a Guard,
    fence: Fence,
}

impl<'a, S: Store> AttemptRecord<'a, S> {
    pub(crate) fn new(state: &'a State<S>, guard: &'a Guard, fence: Fence) -> Self {
        Self {
            state,
            guard,
            fence,
        }
    }

    /// Repeats a write until the store answers, then wakes the requests that wait for it. A store
    /// error does not say whether the write was applied. Writing again finds out; reading would
    /// not, since the first write may still be on its way.
    pub(crate) async fn write_until_answered<F>(&self, write: impl Fn() -> F) -> StoreAnswer
    where
        F: Future<Output = store::Result<Held>>,
    {
        let began = Instant::now();
        let mut wait = MIN_BACKOFF;
        let mut may_be_written = false;
        let held = loop {
            let error = match write().await {
                Ok(held) => break Some(held),
                Err(error) => error,
            };
            may_be_written |= error.may_have_written();
            self.guard.metrics.store_error.increment(1);
            let id = self.fence.id;
            if matches!(error, store::Error::Corrupt { .. }) || began.elapsed() > RETRY_FOR {
                tracing::error!(%id, %error, "the outcome could not be recorded; it is given up, and will be unknown");
                break None;
            }
            tracing::warn!(%id, %error, "the outcome is not recorded yet; trying again");
            if self.state.abandon.is_cancelled() {
                tracing::error!(%id, "shutting down before the outcome was recorded; it will be unknown");
                break None;
            }
            tokio::select! {
                () = sleep(wait) => {}
                // One last try at once.
                () = self.state.abandon.cancelled() => {}
            }
            wait = (wait * 2).min(MAX_BACKOFF);
        };
        self.ended(began);
        StoreAnswer {
            held,
            may_be_written,
        }
    }

    /// Counts how long the final write took, and wakes the requests that wait for it.
    pub(crate) fn ended(&self, began: Instant) {
        self.guard.metrics.complete_seconds.record(began.elapsed());
        self.state.waiters.wake(self.fence.id);
    }

    /// Logs why a write was fenced; as an incident where an effect may have happened twice.
    pub(crate) fn fenced(&self, fenced: Fenced, incident: bool) -> WriteResult {
        let Fence { id, attempt } = self.fence;
        if self.is_completed(fenced) {
            tracing::debug!(%id, attempt, "the operation was completed under this attempt already");
            return WriteResult::CompletedElsewhere;
        }
        self.guard.metrics.fenced.increment(1);
        if incident {
            tracing::error!(incident, %id, attempt, found = ?fenced.found, "an execution ended that no longer owned its operation");
        } else {
            tracing::warn!(%id, attempt, found = ?fenced.found, "an attempt no longer owned its operation");
        }
        WriteResult::Fenced
    }

    /// Logs that a reservation could not be returned. Nothing was executed under it, so this is not
    /// counted as a fenced outcome.
    pub(crate) fn not_returned(&self, fenced: Fenced) -> WriteResult {
        let Fence { id, attempt } = self.fence;
        if self.is_completed(fenced) {
            return WriteResult::CompletedElsewhere;
        }
        self.guard.metrics.unreturned.increment(1);
        tracing::warn!(%id, attempt, found = ?fenced.found, "a reservation that was not used could not be returned");
        WriteResult::Fenced
    }

    /// Whether the record is completed under this very attempt: then no other attempt was granted,
    /// and nothing happened twice.
    pub(crate) fn is_completed(&self, fenced: Fenced) -> bool {
        self.is_at(fenced, Status::Completed)
    }

    /// Whether the record is where an `evict` of this attempt leaves it: gone, or released where it
    /// was a later attempt or unknown already.
    pub(crate) fn is_evicted(&self, fenced: Fenced) -> bool {
        let is_gone = self.fence.attempt == 1 && fenced.found.is_none();
        is_gone || self.is_at(fenced, Status::FailedRetryable)
    }

    /// Whether the record has this status under this very attempt.
    pub(crate) fn is_at(&self, fenced: Fenced, status: Status) -> bool {
        fenced.found == Some((status, self.fence.attempt))
    }
}

/// Evicts a grant, or what may be one, that was not used. `owner` is that of the one call that
/// asked for it.
pub(crate) async fn release_unused<S: Store>(
    state: &State<S>,
    guard: &Guard,
    identity: &Identity,
    owner: &Owner,
    granted: store::Result<Decision>,
) {
    let fence = match granted {
        Ok(Decision::Execute(grant)) => Some(grant.fence),
        Err(error) if error.may_have_written() => {
            find_lost_grant(state, guard, identity, owner).await
        }
        // Nothing was granted. Or a resume was: this attempt did nothing, but the one before may
        // have. The lease runs out, and the next attempt resumes.
        Ok(_) | Err(_) => None,
    };
    let Some(fence) = fence else { return };
    let operation = guard.route.operation.as_deref();
    let span = spans::logged(fence.id, Some(fence.attempt), operation);
    let record = AttemptRecord::new(state, guard, fence);
    async {
        let evict = || state.store.evict(fence, "not_started".into());
        let answer = record.write_until_answered(evict).await;
        if let Some(Held::Fenced(fenced)) = answer.held
            && !(answer.may_be_written && record.is_evicted(fenced))
        {
            let _ = record.not_returned(fenced);
        }
    }
    .instrument(span)
    .await;
}

/// Finds what a call was granted whose answer was lost: the attempt that its owner holds. The fence
/// in the record guards the write that follows, so an old state of it does no harm.
async fn find_lost_grant<S: Store>(
    state: &State<S>,
    guard: &Guard,
    identity: &Identity,
    owner: &Owner,
) -> Option<Fence> {
    let began = Instant::now();
    let mut answered_at = None;
    let mut wait = MIN_BACKOFF;
    loop {
        match state.store.find_identity(identity).await {
            Ok(Some(record)) if record.owner == *owner => {
                // It may be a resume: the attempt before it may have executed. The lease runs out,
                // and the next attempt resumes.
                let may_be_resumed =
                    record.attempt > 1 && guard.route.policy.resumes_within().is_some();
                return (!may_be_resumed).then(|| record.fence());
            }
            Ok(_) => {
                let answered_at = *answered_at.get_or_insert_with(Instant::now);
                if answered_at.elapsed() >= LANDS_WITHIN {
                    return None;
                }
            }
            Err(error) => {
                guard.metrics.store_error.increment(1);
                tracing::warn!(%error, "a reservation whose answer was lost is not returned yet; trying again");
                if began.elapsed() > RETRY_FOR || matches!(error, store::Error::Corrupt { .. }) {
                    return None;
                }
            }
        }
        if state.abandon.is_cancelled() {
            return None;
        }
        tokio::select! {
            () = sleep(wait) => {}
            // One last try at once.
            () = state.abandon.cancelled() => {}
        }
        wait = (wait * 2).min(MAX_BACKOFF);
    }
}
