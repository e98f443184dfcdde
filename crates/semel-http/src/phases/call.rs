//! A phase that is a call to another service.

use std::time::Duration;

use semel_core::Held;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::journal::{self, Journal};
use super::{Phases, Stopped, code, not_recorded};
use crate::outcome::{Outcome, OutcomeKind};

/// How often a call is made in one attempt, where repeating it is safe.
const CALLS_PER_ATTEMPT: u32 = 3;

/// How often the journal is written. After that, the next attempt makes the call again.
const JOURNAL_WRITES: u32 = 5;

/// The first wait between two calls, or two writes; it doubles.
const MIN_BACKOFF: Duration = Duration::from_millis(200);

/// What a provider does with a key that it has seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downstream {
    /// It returns the first response again: where the outcome of a call is unclear, the call is made
    /// again under the same key.
    Idempotent,
    /// It ignores the key: a call is made once, and where its outcome is unclear the operation is
    /// unknown.
    NotIdempotent,
}

impl Phases {
    /// A phase that is one call to another service, under a key that is the same on every attempt.
    /// Returns its result, from this attempt or an earlier one.
    ///
    /// A final refusal, such as a declined card, is a result. An [`Outcome`] stands for a call
    /// without one: [`Outcome::not_executed`] where the call cannot have arrived,
    /// [`Outcome::unknown`] where it may have.
    ///
    /// # Errors
    /// The call was not made, or its outcome is not known. Return the error from the handler.
    ///
    /// # Cancellation
    /// As if the process had died: depending on `downstream`, the next attempt makes the call
    /// again, or the outcome is unknown.
    pub async fn call<T, F>(
        &mut self,
        name: &'static str,
        downstream: Downstream,
        call: impl Fn(String) -> F,
    ) -> Result<T, Stopped>
    where
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T, Outcome>>,
    {
        if let Some(found) = self.recall(name)? {
            self.foreign = true;
            return Ok(found);
        }
        let must_not_repeat = downstream == Downstream::NotIdempotent;
        if must_not_repeat {
            self.check_all_answered(name)?;
        }
        if must_not_repeat || !self.written {
            let may_be_made = must_not_repeat && self.may_be_made(name);
            // Before the call, so that an attempt that resumes has the request. Also where an
            // earlier attempt wrote it: a proof that the call was not made holds for the last
            // attempt that announced it.
            self.write(name, self.journal.clone().starting(name, self.attempt()))
                .await?;
            if may_be_made {
                tracing::error!(id = %self.id(), phase = name, "an earlier attempt may have made this call, and it must not be made twice");
                return Err(Stopped::unknown(code(name, "unclear")));
            }
        }
        // An earlier attempt may have made a repeatable call: then a call that does not arrive now
        // proves nothing.
        let mut unclear = !must_not_repeat && self.context.resumed && !self.past_earlier_attempts;
        let mut wait = MIN_BACKOFF;
        let mut calls = 1;
        loop {
            let Outcome {
                kind, code: reason, ..
            } = match call(self.operation.downstream_key(name)).await {
                Ok(found) => return self.record(name, found).await,
                Err(outcome) => outcome,
            };
            tracing::warn!(id = %self.id(), phase = name, calls, code = %reason, "a call failed");
            match kind {
                OutcomeKind::NotExecuted | OutcomeKind::Forget => {}
                OutcomeKind::Completed | OutcomeKind::Unknown => unclear = true,
            }
            if !unclear && !self.foreign {
                return Err(Stopped::released(reason));
            }
            if unclear && must_not_repeat {
                return Err(Stopped::unknown(reason));
            }
            if calls == CALLS_PER_ATTEMPT {
                if !unclear {
                    // The next attempt may make the call: it is proven that this one did not.
                    self.write(name, self.journal.clone().not_starting())
                        .await?;
                }
                return Err(Stopped::suspended(reason));
            }
            calls += 1;
            sleep(wait).await;
            wait *= 2;
        }
    }

    /// Whether an earlier attempt announced the call, without a proof that it was not made. The proof
    /// is the final write of that very attempt.
    fn may_be_made(&self, name: &str) -> bool {
        let started = self.journal.started.as_ref();
        let started = started.filter(|started| *started.phase == *name);
        started.is_some_and(|started| {
            self.context.resumed || started.attempt.saturating_add(1) != self.attempt()
        })
    }

    /// Writes the result of a call to the journal.
    async fn record<T>(&mut self, name: &'static str, found: T) -> Result<T, Stopped>
    where
        T: Serialize + DeserializeOwned,
    {
        self.foreign = true;
        let unrecorded = |error: &journal::Error| {
            not_recorded(&self.context, name, error);
            Stopped::unknown(code(name, "not_recorded"))
        };
        let journal = self.journal.clone().with(name, &found);
        let journal = journal.map_err(|error| unrecorded(&error))?;
        // A result that cannot be read back is an error now, not after a crash.
        let found = match journal.found(journal.len() - 1) {
            Some(Ok(found)) => found,
            Some(Err(error)) => return Err(unrecorded(&error)),
            None => found,
        };
        self.write(name, journal).await?;
        self.position += 1;
        self.past_earlier_attempts = true;
        Ok(found)
    }

    /// Writes the journal, until the store confirms it.
    async fn write(&mut self, name: &'static str, journal: Journal) -> Result<(), Stopped> {
        let id = self.id();
        let point = match journal.point() {
            Ok(point) => point,
            Err(error) if self.foreign => {
                not_recorded(&self.context, name, &error);
                return Err(Stopped::unknown(code(name, "not_recorded")));
            }
            Err(error) => return Err(self.back_out(name, "not_recorded", error)),
        };
        let mut wait = MIN_BACKOFF;
        for _ in 0..JOURNAL_WRITES {
            match self
                .context
                .points
                .advance(self.context.fence, point.clone())
                .await
            {
                Ok(Held::Applied | Held::Repeated) => {
                    self.journal = journal;
                    self.written = true;
                    return Ok(());
                }
                Ok(Held::Fenced(fenced)) => {
                    tracing::warn!(%id, phase = name, found = ?fenced.found, "another attempt has resumed this operation");
                    return Err(Stopped::unknown("fenced_in_phase"));
                }
                Err(error) => {
                    self.unanswered_write |= error.may_have_written();
                    tracing::warn!(%id, phase = name, %error, "a phase is not recorded yet; trying again");
                }
            }
            sleep(wait).await;
            wait *= 2;
        }
        Err(Stopped::suspended(code(name, "not_recorded")))
    }
}
