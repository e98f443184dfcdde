//! Why nothing could be probed.

use std::io;

use crate::{Address, junit, text};

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

impl Error {
    /// In place of a report: one JSON document with `url` and `error`, harmless on a terminal.
    pub fn json(&self, url: &Address) -> String {
        let document = serde_json::json!({ "url": url.to_string(), "error": self.to_string() });
        text::document(&format!("{document:#}"))
    }

    /// In place of a report, as CI systems read it. Without, they would take the last run's.
    pub fn junit(&self, url: &Address) -> String {
        junit::unprobed(&url.to_string(), &self.to_string())
    }
}
