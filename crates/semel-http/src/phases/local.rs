//! A phase in this database.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::store::{self, Source};
use semel_core::transaction::{Finished, Word};
use semel_core::{Held, Local};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Phases, Stopped, code, not_recorded};

impl Phases {
    /// A phase in this database: what the transaction wrote and the point that it is over are
    /// committed together, or neither. Gives what it found, now or in an earlier attempt.
    ///
    /// `work` is not begun where the phase is over. It has no key for anybody else, on purpose: a
    /// call to somebody else is a phase of its own.
    ///
    /// With PostgreSQL, `work` is a future of an open transaction and what it found; with SQLite
    /// it is what `Sqlite::work` gives.
    ///
    /// # Errors
    /// The phase did not happen, or it is not known whether it did. Return it.
    ///
    /// # Cancellation
    /// The phase happens or does not; the next attempt finds out.
    pub async fn phase<T, L, E>(
        &mut self,
        name: &'static str,
        work: impl IntoFuture<Output = Result<L, E>>,
    ) -> Result<T, Stopped>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        L: Into<Local<T>>,
        E: Into<Source>,
    {
        if let Some(found) = self.recall(name)? {
            return Ok(found);
        }
        self.check_unhaunted(name)?;
        let local: Local<T> = match work.await {
            Ok(local) => local.into(),
            Err(error) => return Err(self.back_out(name, "failed", error)),
        };
        let (transaction, found) = local.into_parts();
        let recorded = Arc::new(Mutex::new(None));
        let (journal, ground) = (self.journal.clone(), Arc::clone(&self.ground));
        let slot = Arc::clone(&recorded);
        let conclude = Box::new(move |_| {
            let record = || {
                let journal = journal.with(name, &found()?);
                let journal = journal.and_then(|journal| Ok((journal.point()?, journal)));
                let (point, journal) = journal
                    .inspect_err(|error| not_recorded(&ground, name, error))
                    .ok()?;
                let point = ground.points.prepare(ground.fence, point);
                let point = point
                    .inspect_err(|error| not_recorded(&ground, name, error))
                    .ok()?;
                // What cannot be read again is better found now than after a crash.
                let found = journal.found::<T>(journal.len() - 1)?;
                let found = found
                    .inspect_err(|error| not_recorded(&ground, name, error))
                    .ok()?;
                Some((point, (found, journal)))
            };
            let (point, both) = record()?;
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(both);
            Some(Word::Advance(point))
        });
        let ended = transaction.finish(self.ground.fence, conclude).await;
        let recorded = recorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match (ended, recorded) {
            (Ok(Finished::Held(Held::Applied | Held::Repeated)), Some((found, journal))) => {
                self.journal = journal;
                self.place += 1;
                self.written = true;
                self.beyond = true;
                Ok(found)
            }
            (Ok(Finished::Held(Held::Fenced(fenced))), _) => {
                tracing::warn!(id = %self.id(), phase = name, found = ?fenced.found, "somebody else goes on with this operation");
                Err(Stopped::unknown("fenced_in_phase"))
            }
            (Ok(Finished::RolledBack | Finished::Held(_)), _) => {
                Err(self.back_out(name, "not_recorded", "it is rolled back"))
            }
            // The record is locked until it is decided, so the next attempt finds out.
            (Err(error @ store::Error::Ambiguous { .. }), _) => {
                tracing::error!(id = %self.id(), phase = name, %error, "it is not known whether a phase is committed; whoever resumes finds out");
                Err(Stopped::suspended(code(name, "commit_unanswered")))
            }
            (Err(error), _) => Err(self.back_out(name, "rolled_back", error)),
        }
    }
}
