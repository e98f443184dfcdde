//! Fifth step: writing down how it ended, until it is written.

use std::time::Duration;

use semel_core::transition::Fenced;
use semel_core::{Code, Completion, Fence, Held, Resource, Status, Store, store};
use tokio::time::{Instant, sleep};

use crate::layer::State;
use crate::outcome::Ending;
use crate::route::Guard;

/// The first wait after the store failed; it doubles up to [`SLOWEST`].
const SOONEST: Duration = Duration::from_millis(20);

/// The longest wait between two tries: much shorter than a lease, which should not run out while
/// a store is back already.
const SLOWEST: Duration = Duration::from_secs(1);

/// How long it is tried. The lease is long over then, and whoever reconciles takes over.
const TRY_FOR: Duration = Duration::from_hours(1);

/// What the holder of an attempt says last.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    Complete(Completion),
    Release(Code),
    Evict(Code),
    MarkUnknown(Code, Option<Resource>),
}

impl Word {
    /// As applications say it.
    pub(crate) fn as_str(&self) -> &'static str {
        let ending = match self {
            Self::Complete(_) => Ending::Completed,
            Self::Release(_) => Ending::NotExecuted,
            Self::Evict(_) => Ending::Forget,
            Self::MarkUnknown(..) => Ending::Unknown,
        };
        ending.as_str()
    }

    /// What it completes the operation with, if it does.
    pub(crate) fn completion(&self) -> Option<&Completion> {
        match self {
            Self::Complete(completion) => Some(completion),
            Self::Release(_) | Self::Evict(_) | Self::MarkUnknown(..) => None,
        }
    }
}

/// What became of the last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The record says it.
    Said,
    /// The record is completed, under this very attempt, and not with this word: by the
    /// application in a transaction of its own, or by whoever found out.
    Completed,
    /// The attempt no longer owns the record.
    Fenced,
    /// It had to be given up.
    GivenUp,
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

    /// Writes the last word, and wakes who waits for it. A store error does not say whether
    /// it was written; writing again finds out, and reading would not.
    pub(crate) async fn write(&self, word: &Word) -> Written {
        let began = Instant::now();
        let mut wait = SOONEST;
        let mut may_be_written = false;
        let held = loop {
            let error = match self.say(word).await {
                Ok(held) => break Some(held),
                Err(error) => error,
            };
            may_be_written |= error.may_have_written();
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
        self.ended(began);
        match held {
            None => Written::GivenUp,
            Some(Held::Applied | Held::Repeated) => Written::Said,
            // Only a completion is told that it is repeated.
            Some(Held::Fenced(fenced)) if may_be_written && self.says(fenced, word) => {
                Written::Said
            }
            Some(Held::Fenced(fenced)) => self.fenced(fenced, word.completion().is_some()),
        }
    }

    /// Counts the time that an end took to be written, and wakes who waits for it.
    pub(crate) fn ended(&self, began: Instant) {
        self.guard.meters.complete_seconds.record(began.elapsed());
        self.state.waiters.wake(self.fence.id);
    }

    /// Notes what stood in the way of a write; an incident where an effect may have happened
    /// twice.
    pub(crate) fn fenced(&self, fenced: Fenced, incident: bool) -> Written {
        let Fence { id, attempt } = self.fence;
        if self.is_completed(fenced) {
            tracing::debug!(%id, attempt, "the operation was completed under this attempt already");
            return Written::Completed;
        }
        self.guard.meters.fenced.increment(1);
        if incident {
            tracing::error!(incident, %id, attempt, found = ?fenced.found, "an execution ended that no longer owned its operation");
        } else {
            tracing::warn!(%id, attempt, found = ?fenced.found, "an attempt no longer owned its operation");
        }
        Written::Fenced
    }

    /// Whether the record is completed under this very attempt: then nobody else was let in,
    /// and nothing happened twice.
    pub(crate) fn is_completed(&self, fenced: Fenced) -> bool {
        fenced.found == Some((Status::Completed, self.fence.attempt))
    }

    /// Whether the record stands where the word would have left it.
    fn says(&self, fenced: Fenced, word: &Word) -> bool {
        let at = |status| Some((status, self.fence.attempt));
        fenced.found
            == match word {
                Word::Complete(_) => return false,
                Word::Evict(_) if self.fence.attempt == 1 => None,
                Word::Release(_) | Word::Evict(_) => at(Status::FailedRetryable),
                Word::MarkUnknown(..) => at(Status::Unknown),
            }
    }

    async fn say(&self, word: &Word) -> store::Result<Held> {
        let store = &self.state.store;
        match word {
            Word::Complete(completion) => store.complete(self.fence, completion.clone()).await,
            Word::Release(code) => store.release(self.fence, code.clone()).await,
            Word::Evict(code) => store.evict(self.fence, code.clone()).await,
            Word::MarkUnknown(code, resource) => {
                store
                    .mark_unknown(self.fence, code.clone(), resource.clone())
                    .await
            }
        }
    }
}
