//! How the truth is found where the outcome is unknown.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use semel_core::{Backoff, Code, Completion, Record};

/// Looks where the effect would be, and says what is there. See the
/// [crate's example](crate).
///
/// A look changes nothing: it may be made several times, by several processes at once, and be
/// dropped half-way. One that panics or takes too long has found nothing.
pub trait Reconcile: Send + Sync + 'static {
    /// Looks for what became of an operation. Its [`id`](Record::id) gives the keys of the calls
    /// it made ([`downstream_key`](semel_core::OperationId::downstream_key)); its
    /// [`resource`](Record::resource) is what it may have created, where the executor said so.
    fn look(&self, operation: &Record) -> impl Future<Output = Found> + Send;
}

/// What one look found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it means.
    pub finding: Finding,
    /// What was seen, for the operation's history: the provider's answer, an error's words.
    pub evidence: Bytes,
}

/// What is known after a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It happened, with success or with a final failure such as a decline.
    Completed(Completion),
    /// It is proven that it did not happen and never will. A provider that does not know it is no
    /// such proof.
    NeverCreated(Code),
    /// It is not there. It may still be on its way, so this releases the operation only where
    /// [`downstream_idempotent`](Schedule::downstream_idempotent) is set; elsewhere it is kept as
    /// evidence.
    Absent(Code),
    /// The look did not help.
    Unclear(Code),
}

/// How often one command's unknowns are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The time between the first look and the second. It doubles from then on, less a jitter of
    /// up to a quarter.
    pub every: Duration,
    /// The longest time between two looks.
    pub max_every: Duration,
    /// How many looks are made before the operation waits for a person.
    pub attempts: u32,
    /// Whether every attempt of this command gives the provider the same key, and the provider
    /// keeps it longer than anybody retries. Only then may "not found" release the operation:
    /// a call that arrives late and the retry are one call to such a provider.
    pub downstream_idempotent: bool,
}

impl Finding {
    /// A look that did not help.
    pub fn unclear(code: &'static str) -> Self {
        Self::Unclear(code.into())
    }

    /// The finding, with what was seen.
    pub fn seen(self, evidence: impl Into<Bytes>) -> Found {
        Found {
            finding: self,
            evidence: evidence.into(),
        }
    }
}

impl Schedule {
    /// When the next look is made.
    pub fn backoff(self) -> Backoff {
        Backoff {
            every: self.every,
            max_every: self.max_every,
        }
    }
}

impl Default for Schedule {
    /// The defaults of the gateway's configuration: twelve looks within about an hour.
    fn default() -> Self {
        Self {
            every: Duration::from_secs(5),
            max_every: Duration::from_mins(10),
            attempts: 12,
            downstream_idempotent: false,
        }
    }
}

/// Without anything seen.
impl From<Finding> for Found {
    fn from(finding: Finding) -> Self {
        finding.seen(Bytes::new())
    }
}
