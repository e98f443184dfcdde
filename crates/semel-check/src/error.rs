//! Why nothing could be probed.

use std::io;

/// Why nothing could be probed or driven. No guarantee was judged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was given as an address is none.
    #[error("{url} is no address: {reason}")]
    Address {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Nothing answers there.
    #[error("no answer from {address}: {reason}")]
    Unreachable {
        /// Where.
        address: String,
        /// What the connection said.
        reason: String,
    },
    /// The target refuses even a first, good request, so that nothing can be learned.
    #[error(
        "the target does not take a first request under a new key: {seen}. Give it one that it \
         takes: --body, --header, --method, --dialect"
    )]
    NotAccepted {
        /// What it answered.
        seen: String,
    },
    /// The counter cannot be read, or does not count what the target does.
    #[error("the counter is of no use: {0}")]
    Counter(String),
    /// Something of this machine failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}
