//! A phase elsewhere.

use std::time::Duration;

use semel_core::Held;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::journal::{self, Journal};
use super::{Phases, Stopped, code, not_recorded};
use crate::outcome::{Ending, Outcome};

/// How often a call is made in one attempt, where repeating it is safe.
const CALLS_PER_ATTEMPT: u32 = 3;

/// How often it is tried to write down what a call found. After that, whoever resumes asks again.
const RECORDINGS: u32 = 5;

/// The first wait between two calls, or two recordings; it doubles.
const SOONEST: Duration = Duration::from_millis(200);

/// What a provider makes of a key that it has seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downstream {
    /// It gives the first answer again: where the outcome of a call is unclear, the call is made
    /// again under the same key.
    Idempotent,
    /// It takes no notice: a call is made once, and where its outcome is unclear the operation is
    /// unknown.
    NotIdempotent,
}

impl Phases {
    /// A phase elsewhere: one call to somebody else, under a key that is the same on every attempt.
    /// Gives what it found, now or in an earlier attempt.
    ///
    /// A refusal that is final, such as a declined card, is something that was found. An
    /// [`Outcome`] is for what was not: [`Outcome::not_executed`] where the call cannot have
    /// arrived, [`Outcome::unknown`] where it may have.
    ///
    /// # Errors
    /// The call was not made, or it is not known what it did. Return it.
    ///
    /// # Cancellation
    /// As if the process had died: the next attempt makes the call again, or finds that nobody
    /// knows, as `downstream` says.
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
            self.check_unhaunted(name)?;
        }
        if must_not_repeat || !self.written {
            let may_be_made = must_not_repeat && self.may_be_made(name);
            // Before the call, so that whoever completes this knows what was asked. Also where it
            // was started before: whoever proves that a call was not made proves it for the last
            // attempt that says so.
            self.write(name, self.journal.clone().starting(name, self.attempt()))
                .await?;
            if may_be_made {
                tracing::error!(id = %self.id(), phase = name, "an earlier attempt may have made this call, and it must not be made twice");
                return Err(Stopped::unknown(code(name, "unclear")));
            }
        }
        // An attempt before this one may have made a call that may be repeated: then one that does
        // not arrive now proves nothing.
        let mut unclear = !must_not_repeat && self.ground.resumed && !self.beyond;
        let mut wait = SOONEST;
        let mut calls = 1;
        loop {
            let Outcome {
                ending, code: said, ..
            } = match call(self.operation.downstream_key(name)).await {
                Ok(found) => return self.record(name, found).await,
                Err(outcome) => outcome,
            };
            tracing::warn!(id = %self.id(), phase = name, calls, code = %said, "a call did not end well");
            match ending {
                Ending::NotExecuted | Ending::Forget => {}
                Ending::Completed | Ending::Unknown => unclear = true,
            }
            if !unclear && !self.foreign {
                return Err(Stopped::released(said));
            }
            if unclear && must_not_repeat {
                return Err(Stopped::unknown(said));
            }
            if calls == CALLS_PER_ATTEMPT {
                if !unclear {
                    // Whoever resumes may make it: it is proven that this attempt did not.
                    self.write(name, self.journal.clone().not_starting())
                        .await?;
                }
                return Err(Stopped::suspended(said));
            }
            calls += 1;
            sleep(wait).await;
            wait *= 2;
        }
    }

    /// Whether an attempt before this one said that it would make the call, and nobody proved that
    /// it did not. The proof is the end of that very attempt: an attempt can only speak for itself.
    fn may_be_made(&self, name: &str) -> bool {
        let started = self.journal.started.as_ref();
        let started = started.filter(|started| *started.phase == *name);
        started.is_some_and(|started| {
            self.ground.resumed || started.attempt.saturating_add(1) != self.attempt()
        })
    }

    /// Writes down what a call found.
    async fn record<T>(&mut self, name: &'static str, found: T) -> Result<T, Stopped>
    where
        T: Serialize + DeserializeOwned,
    {
        self.foreign = true;
        let unrecorded = |error: &journal::Error| {
            not_recorded(&self.ground, name, error);
            Stopped::unknown(code(name, "not_recorded"))
        };
        let journal = self.journal.clone().with(name, &found);
        let journal = journal.map_err(|error| unrecorded(&error))?;
        // What cannot be read again is better found now than after a crash.
        let found = match journal.found(journal.len() - 1) {
            Some(Ok(found)) => found,
            Some(Err(error)) => return Err(unrecorded(&error)),
            None => found,
        };
        self.write(name, journal).await?;
        self.place += 1;
        self.beyond = true;
        Ok(found)
    }

    /// Writes the journal, until it is known to be written.
    async fn write(&mut self, name: &'static str, journal: Journal) -> Result<(), Stopped> {
        let id = self.id();
        let point = match journal.point() {
            Ok(point) => point,
            Err(error) if self.foreign => {
                not_recorded(&self.ground, name, &error);
                return Err(Stopped::unknown(code(name, "not_recorded")));
            }
            Err(error) => return Err(self.back_out(name, "not_recorded", error)),
        };
        let mut wait = SOONEST;
        for _ in 0..RECORDINGS {
            match self
                .ground
                .points
                .advance(self.ground.fence, point.clone())
                .await
            {
                Ok(Held::Applied | Held::Repeated) => {
                    self.journal = journal;
                    self.written = true;
                    return Ok(());
                }
                Ok(Held::Fenced(fenced)) => {
                    tracing::warn!(%id, phase = name, found = ?fenced.found, "somebody else goes on with this operation");
                    return Err(Stopped::unknown("fenced_in_phase"));
                }
                Err(error) => {
                    self.haunted |= error.may_have_written();
                    tracing::warn!(%id, phase = name, %error, "a phase is not recorded yet; trying again");
                }
            }
            sleep(wait).await;
            wait *= 2;
        }
        Err(Stopped::suspended(code(name, "not_recorded")))
    }
}
