//! Fifth step: writing down how it ended, until it is written.

use std::time::Duration;

use semel_core::{Code, Completion, Fence, Held, OperationId, Store, store};
use tokio::time::{Instant, sleep};

use crate::layer::State;
use crate::route::Guard;

/// The first wait after the store failed; it doubles up to [`SLOWEST`].
const SOONEST: Duration = Duration::from_millis(20);

/// The longest wait between two tries.
const SLOWEST: Duration = Duration::from_secs(5);

/// How long it is tried. The lease is long over then, and whoever reconciles takes over.
const TRY_FOR: Duration = Duration::from_hours(1);

/// What the holder of an attempt says last.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    Complete(Completion),
    Release(Code),
    Evict(Code),
    MarkUnknown(Code),
}

/// The record of one granted attempt.
pub(crate) struct Record<'a, S> {
    state: &'a State<S>,
    guard: &'a Guard,
    fence: Fence,
}

impl<'a, S: Store> Record<'a, S> {
    pub(crate) fn new(state: &'a State<S>, guard: &'a Guard, fence: Fence) -> Self {
        Self {
            state,
            guard,
            fence,
        }
    }

    pub(crate) fn id(&self) -> OperationId {
        self.fence.id
    }

    /// Writes the last word, and wakes who waits for it. A store error does not say whether
    /// it was written; writing again finds out, and reading would not. `None` where it had to
    /// be given up.
    pub(crate) async fn write(&self, word: &Word) -> Option<Held> {
        let began = Instant::now();
        let mut wait = SOONEST;
        let held = loop {
            let error = match self.say(word).await {
                Ok(held) => break Some(held),
                Err(error) => error,
            };
            self.guard.meters.store_error.increment(1);
            let id = self.fence.id;
            if matches!(error, store::Error::Corrupt { .. }) || began.elapsed() > TRY_FOR {
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
                // Once more at once, and then no more.
                () = self.state.abandon.cancelled() => {}
            }
            wait = (wait * 2).min(SLOWEST);
        };
        self.guard.meters.complete_seconds.record(began.elapsed());
        self.state.waiters.wake(self.fence.id);
        if let Some(Held::Fenced(fenced)) = held {
            self.guard.meters.fenced.increment(1);
            let id = self.fence.id;
            let attempt = self.fence.attempt;
            if let Word::Complete(_) = word {
                // An effect may have happened twice.
                tracing::error!(incident = true, %id, attempt, found = ?fenced.found, "an execution ended that no longer owned its operation");
            } else {
                tracing::warn!(%id, attempt, found = ?fenced.found, "an attempt no longer owned its operation");
            }
        }
        held
    }

    async fn say(&self, word: &Word) -> store::Result<Held> {
        let store = &self.state.store;
        match word {
            Word::Complete(completion) => store.complete(self.fence, completion.clone()).await,
            Word::Release(code) => store.release(self.fence, code.clone()).await,
            Word::Evict(code) => store.evict(self.fence, code.clone()).await,
            Word::MarkUnknown(code) => store.mark_unknown(self.fence, code.clone()).await,
        }
    }
}
