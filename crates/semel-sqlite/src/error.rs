//! Errors of opening a store, and why a statement failed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file or its directory does not exist, or may not be read.
    #[error(
        "cannot open {}: {source}. Check that its directory exists and that this user may write \
         to both", path.display()
    )]
    CannotOpen {
        /// The file.
        path: PathBuf,
        /// SQLite's own error.
        source: rusqlite::Error,
    },
    /// The file or its directory may be read but not written.
    #[error(
        "{} cannot be written: {source}. The file and its directory must both be writable, since \
         the log lies beside the file", path.display()
    )]
    ReadOnly {
        /// The file.
        path: PathBuf,
        /// SQLite's own error.
        source: rusqlite::Error,
    },
    /// Another process holds the file.
    #[error(
        "{} is locked by another process ({source}). Several stores may share a file, but \
         none may hold it for longer than the busy timeout", path.display()
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// SQLite's own error.
        source: rusqlite::Error,
    },
    /// The file is damaged, or is not a database.
    #[error(
        "{} is damaged or is not a SQLite database: {source}. It was left as it is: restore it \
         from a backup, or save what can be read with `sqlite3 FILE .recover`", path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// SQLite's own error.
        source: rusqlite::Error,
    },
    /// A newer Semel created the schema.
    #[error(
        "{} has schema version {found}, and this Semel knows up to {supported}. It was left as it \
         is: run the newer version", path.display()
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: i64,
        /// The newest version known here.
        supported: i64,
    },
    /// There is no room for the file.
    #[error("no room for {}: {source}. Free some space, or raise the bound", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// SQLite's own error.
        source: rusqlite::Error,
    },
    /// The file system does not support what SQLite needs for durability.
    #[error(
        "{} cannot be used safely: {reason}. Use a local file system", path.display()
    )]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// The setting that had no effect.
        reason: Box<str>,
    },
    /// Anything else: the disk, the memory, the number of threads.
    #[error("{} failed to open: {source}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// The error for `source` while opening `path`.
    pub(crate) fn opening(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::CannotOpen) => Self::CannotOpen { path, source },
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                Self::ReadOnly { path, source }
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Self::Locked { path, source }
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Corrupt { path, source }
            }
            Some(ErrorCode::DiskFull) => Self::Full { path, source },
            Some(_) | None => Self::Other {
                path,
                source: source.into(),
            },
        }
    }
}

/// Why a statement failed. Its transaction is rolled back.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// SQLite refused.
    Sqlite(Arc<rusqlite::Error>),
    /// The stored data is invalid.
    Corrupt(Box<str>),
    /// The application's statements rolled back the whole transaction.
    RolledBack,
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(Arc::new(error))
    }
}

impl From<Failure> for semel_core::Error {
    /// The error of a call that wrote nothing.
    fn from(failure: Failure) -> Self {
        let error = match failure {
            Failure::Corrupt(reason) => return Self::Corrupt { reason },
            Failure::Sqlite(error) => error,
            Failure::RolledBack => {
                return Self::Unavailable {
                    reason: "the application's statements rolled back the transaction".into(),
                    source: None,
                };
            }
        };
        if is_damage(&error) {
            let reason = format!("{error}; stop, and restore the file from a backup");
            return Self::Corrupt {
                reason: reason.into(),
            };
        }
        let reason = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => "the disk, or the bound set for the database, is full",
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "another process has locked the database"
            }
            Some(ErrorCode::ReadOnly) => "the database has become read-only",
            Some(_) | None => "SQLite refused the statement",
        };
        Self::Unavailable {
            reason: reason.into(),
            source: Some(error.into()),
        }
    }
}

/// Whether the stored data is damaged: a retry would not help.
fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(
        error,
        rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::Utf8Error(..)
    ) || matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}
