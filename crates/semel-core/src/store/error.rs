//! What a store says when it cannot.

/// Why a store could not do what it was asked.
///
/// The variants answer the one question that matters then: may it have been written?
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was written. Nothing may execute; asking again later is safe.
    #[error("the store is unavailable and wrote nothing: {reason}")]
    Unavailable {
        /// What is wrong, and the way out.
        reason: Box<str>,
        /// The driver's own error.
        #[source]
        source: Option<Source>,
    },
    /// It may or may not have been written. Find out by writing again, never by reading: a
    /// delayed write may still land after the read.
    #[error("the store did not say whether it wrote: {reason}")]
    Ambiguous {
        /// What is wrong, and the way out.
        reason: Box<str>,
        /// The driver's own error.
        #[source]
        source: Option<Source>,
    },
    /// What is stored cannot be trusted, so nothing was decided or written.
    #[error("the store holds something that cannot be right: {reason}")]
    Corrupt {
        /// What was found where.
        reason: Box<str>,
    },
}

/// The error of a driver, kept as the source of ours.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// A store's answer.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the call may have been performed although it failed.
    pub fn may_have_written(&self) -> bool {
        match self {
            Self::Ambiguous { .. } => true,
            Self::Unavailable { .. } | Self::Corrupt { .. } => false,
        }
    }
}
