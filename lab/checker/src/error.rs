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
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The last line is incomplete: its writer was stopped.
    #[error("{path} ends in the middle of line {line}: its writer was stopped")]
    Torn {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// A line is longer than any that a campaign writes.
    #[error("line {line} of {path} is longer than {most} bytes")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// As much is read.
        most: usize,
    },
    /// A line is not JSON, or not of the kind expected here.
    #[error("line {line} of {path} cannot be understood: {source}")]
    Unknown {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// A line contradicts the lines before it.
    #[error("line {line} of {path} cannot be: {what}")]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
}
