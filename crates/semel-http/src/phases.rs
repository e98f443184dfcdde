//! An operation of several phases, each of which happens once, whatever fails in between.
//!
//! A handler runs from its beginning on every attempt. A phase that is over does not run again: its
//! result is read from the record. So the handler reads top to bottom, and resumes where an earlier
//! attempt stopped.

mod call;
mod journal;
mod local;
mod stopped;

use std::sync::Arc;

use semel_core::store::Source;
use semel_core::{Code, OperationId};
use serde::Serialize;
use serde::de::DeserializeOwned;

#[cfg(feature = "axum")]
use crate::commit_with::OnRollback;
use crate::operation::Operation;
use crate::phase_context::PhaseContext;
pub use call::Downstream;
use journal::Journal;
pub use journal::{MAX_PHASES, MAX_RECOVERY_BYTES};
pub use stopped::Stopped;
pub(crate) use stopped::Suspended;

/// An operation of several phases: see [`Operation::begin`].
#[derive(Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "the flags are independent of each other"
)]
pub struct Phases {
    operation: Operation,
    context: Arc<PhaseContext>,
    journal: Journal,
    /// How many phases this attempt has passed.
    position: usize,
    /// Whether the record has a journal.
    written: bool,
    /// Whether something may have happened elsewhere.
    foreign: bool,
    /// Whether this attempt has gone beyond what earlier attempts may have done.
    past_earlier_attempts: bool,
    /// Whether a write of this attempt was not answered. It may still be applied, and would take the
    /// journal back to what it was then, until the next attempt's fencing token rejects it.
    unanswered_write: bool,
}

impl Operation {
    /// Starts an operation of phases, or resumes it. `request` is all that is needed to run it
    /// without the client: it is stored with the first phase, and given to the
    /// [`ResumeJob`](crate::ResumeJob) if the client never comes back.
    ///
    /// Returns the request as it was when the operation began. A retry may differ from it in what
    /// the fingerprint leaves out; later phases belong to the first request.
    ///
    /// The route has to declare [`Route::phases`](crate::Route::phases). The handler then does
    /// everything in phases, as it may run again from its beginning at any time.
    ///
    /// # Errors
    /// The route does not declare phases, or the journal of an earlier attempt cannot be read.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "the returned request replaces it"
    )]
    pub fn begin<T>(self, request: T) -> Result<(Phases, T), Stopped>
    where
        T: Serialize + DeserializeOwned,
    {
        let id = self.id();
        let Some(context) = self.phases.clone().filter(|context| context.declared) else {
            tracing::error!(%id, "a handler begins phases, and its route does not declare them: call `phases` on the route");
            return Err(Stopped::released("phases_not_declared"));
        };
        let unreadable = |error: journal::Error| {
            tracing::error!(%id, %error, "the journal of an earlier attempt cannot be read");
            Stopped::unknown("recovery_unreadable")
        };
        let (journal, written) = if let Some(point) = &context.recovery {
            (Journal::read(point).map_err(unreadable)?, true)
        } else {
            let journal = Journal::new(&request).map_err(|error| {
                tracing::error!(%id, %error, "the request cannot be written to the journal");
                Stopped::released("request_not_recorded")
            })?;
            (journal, false)
        };
        let request = journal.request().map_err(unreadable)?;
        let phases = Phases {
            operation: self,
            context,
            journal,
            position: 0,
            written,
            foreign: false,
            past_earlier_attempts: false,
            unanswered_write: false,
        };
        Ok((phases, request))
    }

    /// The request, as the first attempt stored it. `None` where it stored nothing.
    #[cfg(feature = "axum")]
    pub(crate) fn request<T: DeserializeOwned>(&self) -> Option<Result<T, journal::Error>> {
        let point = self.phases.as_ref()?.recovery.as_ref()?;
        Some(Journal::read(point).and_then(|journal| journal.request()))
    }
}

impl Phases {
    /// The record's public id: for logs, the provider's metadata, and reconciliation.
    pub fn id(&self) -> OperationId {
        self.operation.id()
    }

    /// The number of this attempt.
    pub fn attempt(&self) -> u32 {
        self.operation.attempt()
    }

    /// The result of a phase that is over. Fails where the phases differ from those in the journal:
    /// then it is not known how far the operation came.
    fn recall<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>, Stopped> {
        let id = self.id();
        let Some(recorded) = self.journal.name(self.position) else {
            if self.journal.has(name) {
                tracing::error!(%id, phase = name, "two phases of an operation have one name");
                return Err(self.back_out(name, "repeated", "every phase needs its own name"));
            }
            let started = self.journal.started.as_ref();
            return match started.filter(|started| *started.phase != *name) {
                None => Ok(None),
                Some(started) => Err(self.renamed(name, &started.phase)),
            };
        };
        if recorded != name {
            return Err(self.renamed(name, recorded));
        }
        let found = self.journal.found(self.position).transpose();
        let found = found.map_err(|error| {
            tracing::error!(%id, phase = name, %error, "the result of a phase cannot be read any more");
            Stopped::unknown("phase_unreadable")
        })?;
        self.position += 1;
        Ok(found)
    }

    /// The phases differ from those in the journal.
    fn renamed(&self, name: &str, recorded: &str) -> Stopped {
        tracing::error!(id = %self.id(), phase = name, recorded, "the phases differ from those when this operation began: a phase keeps its name and its position while operations of the version before are in progress");
        Stopped::unknown("phase_renamed")
    }

    /// Whether this attempt has passed all phases in the journal.
    #[cfg(feature = "axum")]
    pub(crate) fn check_end(&self) -> Result<(), Stopped> {
        match self.journal.name(self.position) {
            None => Ok(()),
            Some(recorded) => Err(self.renamed("the end", recorded)),
        }
    }

    /// What becomes of the record where the last transaction is rolled back.
    #[cfg(feature = "axum")]
    pub(crate) fn on_rollback(&self) -> OnRollback {
        if self.foreign {
            OnRollback::Suspend
        } else {
            OnRollback::Release
        }
    }

    #[cfg(feature = "axum")]
    pub(crate) fn into_operation(self) -> Operation {
        self.operation
    }

    /// Whether this attempt may do what the journal must not lose. An unanswered write of its own
    /// could still remove it; the next attempt's fencing token rejects such a write.
    fn check_all_answered(&self, name: &'static str) -> Result<(), Stopped> {
        if self.unanswered_write {
            let reason = "an earlier write was not answered; the next attempt resumes";
            return Err(self.back_out(name, "postponed", reason));
        }
        Ok(())
    }

    /// A phase in this database that did not happen.
    pub(crate) fn back_out(
        &self,
        name: &'static str,
        problem: &str,
        error: impl Into<Source>,
    ) -> Stopped {
        let error = error.into();
        tracing::warn!(id = %self.id(), phase = name, %error, "a phase did not happen");
        let code = code(name, problem);
        // Released only while nothing happened outside of this database.
        if self.foreign {
            Stopped::suspended(code)
        } else {
            Stopped::released(code)
        }
    }
}

fn not_recorded(context: &PhaseContext, name: &str, error: &impl std::fmt::Display) {
    tracing::error!(id = %context.fence.id, phase = name, %error, "the result of a phase cannot be written to the journal");
}

fn code(name: &str, problem: &str) -> Code {
    Code::new(format!("{name}_{problem}"))
}
