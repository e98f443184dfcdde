//! The kinds of history entries.

use std::fmt;

/// The kind of a history entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntryKind {
    /// The outcome became unknown.
    Unknown,
    /// The executor proved that nothing happened.
    Released,
    /// Another attempt began, after a proof that nothing had happened.
    Reattempted,
    /// Another attempt went on from a recovery point.
    Resumed,
    /// The executor reported the outcome after it had become unknown.
    CompletedLate,
    /// A reconciler or a person looked for the outcome, and did not find it.
    Asked,
    /// Reconciliation found the outcome.
    ResolvedCompleted,
    /// Reconciliation proved that nothing happened.
    ResolvedNotExecuted,
    /// The record was dead-lettered.
    DeadLettered,
    /// The stored response was erased.
    Erased,
    /// A person was shown the stored response.
    Revealed,
    /// An attempt that no longer owned the record was refused.
    Fenced,
}

impl EntryKind {
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::Unknown,
        Self::Released,
        Self::Reattempted,
        Self::Resumed,
        Self::CompletedLate,
        Self::Asked,
        Self::ResolvedCompleted,
        Self::ResolvedNotExecuted,
        Self::DeadLettered,
        Self::Erased,
        Self::Revealed,
        Self::Fenced,
    ];

    /// The kind as it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Released => "released",
            Self::Reattempted => "reattempted",
            Self::Resumed => "resumed",
            Self::CompletedLate => "completed_late",
            Self::Asked => "asked",
            Self::ResolvedCompleted => "resolved_completed",
            Self::ResolvedNotExecuted => "resolved_not_executed",
            Self::DeadLettered => "dead_lettered",
            Self::Erased => "erased",
            Self::Revealed => "revealed",
            Self::Fenced => "fenced",
        }
    }

    /// The kind with that stored form, if there is one.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|what| what.as_str() == word)
    }

    /// Whether it is one of those of which only so many are kept: nothing changed, and whoever causes
    /// them is a machine that may do so without end.
    pub fn is_remark(self) -> bool {
        matches!(self, Self::Asked | Self::Fenced)
    }
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
