//! Errors of stores.

use super::Verb;

/// Why a store did not perform a call.
///
/// The variants answer the question that decides what the caller may do: may it have been written?
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was written. Nothing may execute; repeating the call later is safe.
    #[error("the store is unavailable and wrote nothing: {reason}")]
    Unavailable {
        /// The cause, and what to do.
        reason: Box<str>,
        /// The driver's error.
        #[source]
        source: Option<Source>,
    },
    /// It may or may not have been written. Only another write finds out, not a read: a delayed
    /// write may still land after the read.
    #[error("the store did not say whether it wrote: {reason}")]
    Ambiguous {
        /// The cause, and what to do.
        reason: Box<str>,
        /// The driver's error.
        #[source]
        source: Option<Source>,
    },
    /// The stored data is inconsistent, so nothing was decided or written.
    #[error("the store holds something that cannot be right: {reason}")]
    Corrupt {
        /// What was found where.
        reason: Box<str>,
    },
    /// The store does not implement the verb. Nothing was written.
    #[error("the store does not support {verb}; use a store that does, or implement it")]
    Unsupported {
        /// The verb.
        verb: Verb,
    },
    /// The store, or a wrapper around it, answered with a reply of the wrong kind: a bug in it. The
    /// call may have been performed.
    #[error(
        "the store answered {verb} with a reply of the kind {reply}; this is a bug in the store"
    )]
    WrongReply {
        /// The verb.
        verb: Verb,
        /// The [`kind`](super::Reply::kind) of the reply.
        reply: &'static str,
    },
}

/// The error of a driver, kept as the source of ours.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// The result of a store's call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the call may have been performed although it failed.
    pub fn may_have_written(&self) -> bool {
        match self {
            Self::Ambiguous { .. } | Self::WrongReply { .. } => true,
            Self::Unavailable { .. } | Self::Corrupt { .. } | Self::Unsupported { .. } => false,
        }
    }
}
