//! Reconciliation: how an application reports the outcome of an unknown record.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use semel_core::{Backoff, Code, Completion, Record};

/// Looks up the effect of a record at the provider. See the [crate's example](crate).
///
/// A lookup must not change anything: several processes may run it at once, repeat it, or drop it
/// half-way. A lookup that panics or times out counts as [`LookupResult::Unclear`].
pub trait Reconcile: Send + Sync + 'static {
    /// Looks up what became of a record. Its [`id`](Record::id) gives the keys of the calls it
    /// made ([`downstream_key`](semel_core::OperationId::downstream_key)); its
    /// [`resource`](Record::resource) is what it may have created, where the executor named it.
    fn look_up(&self, record: &Record) -> impl Future<Output = Lookup> + Send;
}

/// One finished lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// What the lookup established.
    pub result: LookupResult,
    /// Kept in the record's history: the provider's answer, or an error message.
    pub evidence: Bytes,
}

/// What a lookup established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupResult {
    /// The effect happened, with success or with a final failure such as a decline.
    Completed(Completion),
    /// It is proven that the effect did not happen and never will. A 404 from the provider does
    /// not prove that.
    NeverCreated(Code),
    /// The provider has no trace of it, but the call may still arrive. Releases the record only
    /// if [`downstream_idempotent`](Schedule::downstream_idempotent) is set; otherwise it is kept
    /// as evidence.
    Absent(Code),
    /// The lookup failed or was inconclusive.
    Unclear(Code),
}

/// How often unknown records of one operation are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The interval between the first and the second lookup. It doubles from then on, less a
    /// jitter of up to a quarter.
    pub every: Duration,
    /// The longest interval between two lookups.
    pub max_every: Duration,
    /// The number of lookups before the record is dead-lettered.
    pub attempts: u32,
    /// Whether every attempt of this operation sends the same key to the provider, and the
    /// provider remembers it for longer than clients retry. Only then may "not found" release the
    /// record: to such a provider, a late call and its retry are one call.
    pub downstream_idempotent: bool,
}

impl LookupResult {
    /// An inconclusive lookup.
    pub fn unclear(code: &'static str) -> Self {
        Self::Unclear(code.into())
    }

    /// Adds the evidence.
    pub fn seen(self, evidence: impl Into<Bytes>) -> Lookup {
        Lookup {
            result: self,
            evidence: evidence.into(),
        }
    }
}

impl Schedule {
    /// The delay before the next lookup.
    pub fn backoff(self) -> Backoff {
        Backoff {
            every: self.every,
            max_every: self.max_every,
        }
    }
}

impl Default for Schedule {
    /// The defaults of the gateway's configuration: twelve lookups within about an hour.
    fn default() -> Self {
        Self {
            every: Duration::from_secs(5),
            max_every: Duration::from_mins(10),
            attempts: 12,
            downstream_idempotent: false,
        }
    }
}

/// Without evidence.
impl From<LookupResult> for Lookup {
    fn from(result: LookupResult) -> Self {
        result.seen(Bytes::new())
    }
}
