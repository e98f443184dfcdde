//! A phase in the database of the store.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::store::Source;
use semel_core::transaction::{Finished, TransactionWrite};
use semel_core::{Held, LocalPhase};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Phases, Stopped, code, not_recorded};

impl Phases {
    /// A phase in the store's database: the rows of the transaction and the recovery point are
    /// committed together. Returns its result, from this attempt or an earlier one.
    ///
    /// `work` is not started where the phase is over. It is given no downstream key, on purpose: a
    /// call to another service is its own phase.
    ///
    /// With PostgreSQL, `work` is a future of an open transaction and its result; with SQLite it is
    /// what `Sqlite::work` returns.
    ///
    /// # Errors
    /// The phase did not happen, or it is not known whether it did. Return the error from the
    /// handler.
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
        L: Into<LocalPhase<T>>,
        E: Into<Source>,
    {
        if let Some(found) = self.recall(name)? {
            return Ok(found);
        }
        self.check_all_answered(name)?;
        let local: LocalPhase<T> = match work.await {
            Ok(local) => local.into(),
            Err(error) => return Err(self.back_out(name, "failed", error)),
        };
        let (transaction, found) = local.into_parts();
        let recorded = Arc::new(Mutex::new(None));
        let (journal, context) = (self.journal.clone(), Arc::clone(&self.context));
        let slot = Arc::clone(&recorded);
        let conclude = Box::new(move |_| {
            let record = || {
                let journal = journal.with(name, &found()?);
                let journal = journal.and_then(|journal| Ok((journal.point()?, journal)));
                let (point, journal) = journal
                    .inspect_err(|error| not_recorded(&context, name, error))
                    .ok()?;
                let point = context.points.prepare(context.fence, point);
                let point = point
                    .inspect_err(|error| not_recorded(&context, name, error))
                    .ok()?;
                // A result that cannot be read back is an error now, not after a crash.
                let found = journal.found::<T>(journal.len() - 1)?;
                let found = found
                    .inspect_err(|error| not_recorded(&context, name, error))
                    .ok()?;
                Some((point, (found, journal)))
            };
            let (point, both) = record()?;
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(both);
            Some(TransactionWrite::Advance(point))
        });
        let ended = transaction.finish(self.context.fence, conclude).await;
        let recorded = recorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match (ended, recorded) {
            (Ok(Finished::Held(Held::Applied | Held::Repeated)), Some((found, journal))) => {
                self.journal = journal;
                self.position += 1;
                self.written = true;
                self.past_earlier_attempts = true;
                Ok(found)
            }
            (Ok(Finished::Held(Held::Fenced(fenced))), _) => {
                tracing::warn!(id = %self.id(), phase = name, found = ?fenced.found, "another attempt has resumed this operation");
                Err(Stopped::unknown("fenced_in_phase"))
            }
            (Ok(Finished::RolledBack | Finished::Held(_)), _) => {
                Err(self.back_out(name, "not_recorded", "it is rolled back"))
            }
            // The record is locked until it is decided, so the next attempt finds out.
            (Err(error), _) if error.may_have_written() => {
                tracing::error!(id = %self.id(), phase = name, %error, "it is not known whether a phase is committed; the next attempt finds out");
                Err(Stopped::suspended(code(name, "commit_unanswered")))
            }
            (Err(error), _) => Err(self.back_out(name, "rolled_back", error)),
        }
    }
}
