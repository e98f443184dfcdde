//! What entries are about.

use std::fmt;

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// Nobody could say any more whether it happened.
    Unknown,
    /// The executor had proof that nothing happened.
    Released,
    /// Another attempt began, after a proof that nothing had happened.
    Reattempted,
    /// Another attempt went on from a recovery point.
    Resumed,
    /// The executor said how it ended after it had become unknown.
    CompletedLate,
    /// Somebody looked for the outcome, and did not find it.
    Asked,
    /// Somebody found out how it ended.
    ResolvedCompleted,
    /// Somebody found proof that nothing happened.
    ResolvedNotExecuted,
    /// It began to wait for a person.
    DeadLettered,
    /// What could name a person was removed.
    Erased,
    /// A person was shown the stored response.
    Revealed,
    /// An attempt that no longer owned the record was refused.
    Fenced,
}

impl What {
    /// All of them.
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

    /// The word as it is stored and shown.
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

    /// What that word stands for, if anything.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|what| what.as_str() == word)
    }

    /// Whether it is one of those of which only so many are kept: nothing changed, and whoever causes
    /// them is a machine that may do so without end.
    pub fn is_remark(self) -> bool {
        matches!(self, Self::Asked | Self::Fenced)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
