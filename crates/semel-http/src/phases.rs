//! An operation of several phases, each of which happens once, whatever breaks in between.
//!
//! A handler runs from its top on every attempt. A phase that is over does not run again: what it
//! found is read from the record. So the handler reads like the story it tells, and goes on where
//! an attempt before it stopped.

mod call;
mod journal;
mod local;
mod stopped;

use std::sync::Arc;

use semel_core::store::Source;
use semel_core::{Code, OperationId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ground::Ground;
use crate::operation::Operation;
#[cfg(feature = "axum")]
use crate::together::Undone;
pub use call::Downstream;
use journal::Journal;
pub use journal::{MAX_PHASES, MAX_RECOVERY_BYTES};
pub use stopped::Stopped;
pub(crate) use stopped::Suspended;

/// An operation of several phases: see [`Operation::begin`].
#[derive(Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and none excludes another"
)]
pub struct Phases {
    operation: Operation,
    ground: Arc<Ground>,
    journal: Journal,
    /// How many phases this attempt has come by.
    place: usize,
    /// Whether the record has any of this.
    written: bool,
    /// Whether something may have happened elsewhere.
    foreign: bool,
    /// Whether this attempt has gone beyond what those before it may have done.
    beyond: bool,
    /// Whether a write of this attempt went unanswered. It may still land, and takes the journal
    /// back to what it was then, until another attempt's fence keeps it out.
    haunted: bool,
}

impl Operation {
    /// Begins, or goes on. `request` is all that is needed to do it without the client: it is
    /// written down with the first phase, and given to the completer should the client never come
    /// back.
    ///
    /// Gives the request as it was when the operation began. A retry may be the same request and
    /// still differ in what its fingerprint leaves out; later phases belong to the first one.
    ///
    /// The route has to say that its handler is made of phases:
    /// [`Route::phases`](crate::Route::phases). The handler then does everything in phases, as it
    /// may run again from its top at any time.
    ///
    /// # Errors
    /// Where the route does not say so, or what an earlier attempt wrote down cannot be read.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "what it gives back takes the place of what it is given"
    )]
    pub fn begin<T>(self, request: T) -> Result<(Phases, T), Stopped>
    where
        T: Serialize + DeserializeOwned,
    {
        let id = self.id();
        let Some(ground) = self.ground.clone().filter(|ground| ground.declared) else {
            tracing::error!(%id, "a handler is made of phases, and its route does not say so: call `phases` on the route");
            return Err(Stopped::released("phases_not_declared"));
        };
        let unreadable = |error: journal::Error| {
            tracing::error!(%id, %error, "what an earlier attempt wrote down cannot be read");
            Stopped::unknown("recovery_unreadable")
        };
        let (journal, written) = if let Some(point) = &ground.recovery {
            (Journal::read(point).map_err(unreadable)?, true)
        } else {
            let journal = Journal::new(&request).map_err(|error| {
                tracing::error!(%id, %error, "the request cannot be written down");
                Stopped::released("request_not_recorded")
            })?;
            (journal, false)
        };
        let request = journal.request().map_err(unreadable)?;
        let phases = Phases {
            operation: self,
            ground,
            journal,
            place: 0,
            written,
            foreign: false,
            beyond: false,
            haunted: false,
        };
        Ok((phases, request))
    }

    /// What was asked for, as the first attempt wrote it down. `None` where it wrote nothing.
    #[cfg(feature = "axum")]
    pub(crate) fn request<T: DeserializeOwned>(&self) -> Option<Result<T, journal::Error>> {
        let point = self.ground.as_ref()?.recovery.as_ref()?;
        Some(Journal::read(point).and_then(|journal| journal.request()))
    }
}

impl Phases {
    /// The public name: for logs, for the provider's metadata, for whoever reconciles.
    pub fn id(&self) -> OperationId {
        self.operation.id()
    }

    /// Which grant this is.
    pub fn attempt(&self) -> u32 {
        self.operation.attempt()
    }

    /// What a phase that is over found. Fails where the story is another than the one that is
    /// written down: nobody can say then where it stands.
    fn recall<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>, Stopped> {
        let id = self.id();
        let Some(recorded) = self.journal.name(self.place) else {
            if self.journal.has(name) {
                tracing::error!(%id, phase = name, "two phases of an operation have one name");
                return Err(self.back_out(name, "repeated", "a phase has a name of its own"));
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
        let found = self.journal.found(self.place).transpose();
        let found = found.map_err(|error| {
            tracing::error!(%id, phase = name, %error, "what a phase found cannot be read any more");
            Stopped::unknown("phase_unreadable")
        })?;
        self.place += 1;
        Ok(found)
    }

    /// The story is another than the one that is written down.
    fn renamed(&self, name: &str, recorded: &str) -> Stopped {
        tracing::error!(id = %self.id(), phase = name, recorded, "the phases are others than when this operation began: a phase keeps its name and its place while operations of the version before are under way");
        Stopped::unknown("phase_renamed")
    }

    /// Whether all that is written down has come by.
    #[cfg(feature = "axum")]
    pub(crate) fn check_end(&self) -> Result<(), Stopped> {
        match self.journal.name(self.place) {
            None => Ok(()),
            Some(recorded) => Err(self.renamed("the end", recorded)),
        }
    }

    /// What becomes of the operation where its last transaction is rolled back.
    #[cfg(feature = "axum")]
    pub(crate) fn undone(&self) -> Undone {
        if self.foreign {
            Undone::Suspended
        } else {
            Undone::Released
        }
    }

    #[cfg(feature = "axum")]
    pub(crate) fn into_operation(self) -> Operation {
        self.operation
    }

    /// Whether this attempt may do what the journal must not forget: a write of its own that is
    /// still on its way could make it. Another attempt's fence keeps such a write out.
    fn check_unhaunted(&self, name: &'static str) -> Result<(), Stopped> {
        if self.haunted {
            let why = "an earlier write went unanswered, and the next attempt has to go on";
            return Err(self.back_out(name, "postponed", why));
        }
        Ok(())
    }

    /// A phase in this database that did not happen.
    pub(crate) fn back_out(
        &self,
        name: &'static str,
        what: &str,
        error: impl Into<Source>,
    ) -> Stopped {
        let error = error.into();
        tracing::warn!(id = %self.id(), phase = name, %error, "a phase did not happen");
        let code = code(name, what);
        // "Not executed" is only said while it is true of everything outside.
        if self.foreign {
            Stopped::suspended(code)
        } else {
            Stopped::released(code)
        }
    }
}

fn not_recorded(ground: &Ground, name: &str, error: &impl std::fmt::Display) {
    tracing::error!(id = %ground.fence.id, phase = name, %error, "what a phase found cannot be written down");
}

fn code(name: &str, what: &str) -> Code {
    Code::new(format!("{name}_{what}"))
}
