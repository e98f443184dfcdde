//! Why a run cannot be judged.

use std::io;
use std::path::PathBuf;

/// Why a run cannot be judged. None of these says that the run was bad, or good.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The last line has no end: whoever wrote it was stopped while writing.
    #[error("{path} ends in the middle of line {line}: whoever wrote it was stopped too early")]
    Torn {
        /// Which.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// A line is longer than any that a campaign writes.
    #[error("line {line} of {path} is longer than {most} bytes")]
    TooLong {
        /// Which.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// As much is read.
        most: usize,
    },
    /// A line is not JSON, or not of the kind expected here.
    #[error("line {line} of {path} cannot be understood: {source}")]
    Unknown {
        /// Which.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// A line contradicts the lines before it.
    #[error("line {line} of {path} cannot be: {what}")]
    Wrong {
        /// Which.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
}
