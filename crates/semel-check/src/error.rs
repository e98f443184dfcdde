//! Errors that prevent any probe.

use std::io;

use crate::{Address, junit, text};

/// Why nothing could be probed or measured. No guarantee was judged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is invalid.
    #[error("invalid URL {url}: {reason}")]
    Address {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The target does not respond.
    #[error("no response from {address}: {reason}")]
    Unreachable {
        /// The URL.
        address: String,
        /// The error of the connection.
        reason: String,
    },
    /// The target refuses a first request under a new key, so nothing can be probed.
    #[error(
        "the target refused a first request under a new key: {seen}. Change the request with \
         --body, --header, --method or --dialect"
    )]
    NotAccepted {
        /// What it answered.
        seen: String,
    },
    /// The counter cannot be read, or does not count the target's effects.
    #[error("the counter does not work: {0}")]
    Counter(String),
    /// Local I/O failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Error {
    /// In place of a report: one JSON document with `url` and `error`, safe to print on a terminal.
    pub fn json(&self, url: &Address) -> String {
        let document = serde_json::json!({ "url": url.to_string(), "error": self.to_string() });
        text::document(&format!("{document:#}"))
    }

    /// In place of a report, for CI systems: without it they would read the last run's.
    pub fn junit(&self, url: &Address) -> String {
        junit::render_error(&url.to_string(), &self.to_string())
    }
}
