//! What goes wrong with a server, in words for the person who has to mend it.

use std::sync::Arc;

use tokio_postgres::error::{Severity, SqlState};

/// Why a store could not be opened. The password is in none of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address makes no sense.
    #[error("the address of the database cannot be used: {0}")]
    Address(Box<str>),
    /// Nobody answers there, or the one who does refuses us.
    #[error(
        "cannot connect to {address}: {reason}. Check that the server runs, and the user and password"
    )]
    Connect {
        /// Host and database.
        address: Box<str>,
        /// What the driver and the server say.
        reason: Box<str>,
    },
    /// The certificates that are to be trusted cannot be read.
    #[error("the certificates to trust cannot be read: {0}")]
    Certificates(Box<str>),
    /// The server is older than what Semel's statements need.
    #[error("{address} is PostgreSQL {found}, and Semel needs 13 or newer")]
    TooOld {
        /// Host and database.
        address: Box<str>,
        /// As `server_version_num` has it.
        found: i32,
    },
    /// The server is a standby.
    #[error(
        "{address} is a standby and cannot be written to. Connect to the primary, or add `target_session_attrs=read-write` with all hosts"
    )]
    ReadOnly {
        /// Host and database.
        address: Box<str>,
    },
    /// The schema is not there or too old, and this user may not create it.
    #[error(
        "the schema in {address} cannot be created or upgraded: {reason}. Let a user who may run `semel migrate --store URL`"
    )]
    Migrate {
        /// Host and database.
        address: Box<str>,
        /// What the driver and the server say.
        reason: Box<str>,
    },
    /// A newer Semel wrote the schema.
    #[error(
        "{address} has schema version {found}, and this Semel knows up to {supported}. It was left as it is: run the newer version"
    )]
    NewerSchema {
        /// Host and database.
        address: Box<str>,
        /// The version in the database.
        found: i64,
        /// The newest version known here.
        supported: i64,
    },
    /// The connection was made, and what a store begins with failed.
    #[error("the store cannot start: {0}")]
    Start(Box<str>),
    /// No thread could be had.
    #[error("the operating system refused a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// An error and what it comes from: the driver keeps the reason in its sources.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// Why a group of calls did not do what it should.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The server said no, and rolled back.
    Refused(Arc<tokio_postgres::Error>),
    /// The connection broke, or did not answer in time: a write may have been committed.
    Broken(Option<Arc<tokio_postgres::Error>>),
    /// What is stored cannot be right. Nothing was built on it.
    Corrupt(Box<str>),
    /// Others were faster again and again.
    Contended,
}

impl Failure {
    /// Whether the connection is of no further use.
    pub(crate) fn breaks_the_connection(&self) -> bool {
        matches!(self, Self::Broken(_))
    }

    /// Whether the same again may well succeed: another transaction stood in the way.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Refused(error) => matches!(
                error.code(),
                Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE)
            ),
            Self::Broken(_) | Self::Corrupt(_) | Self::Contended => false,
        }
    }

    /// The error of a call that only reads.
    pub(crate) fn of_read(self) -> semel_core::Error {
        self.into_error(false)
    }

    /// The error of a call that writes.
    pub(crate) fn of_write(self) -> semel_core::Error {
        self.into_error(true)
    }

    fn into_error(self, writes: bool) -> semel_core::Error {
        match self {
            Self::Corrupt(reason) => semel_core::Error::Corrupt { reason },
            Self::Contended => unavailable("others want the same operation at once", None),
            Self::Refused(error) => unavailable(in_words(&error), Some(error)),
            Self::Broken(error) if writes => semel_core::Error::Ambiguous {
                reason: "the connection to PostgreSQL broke before it answered".into(),
                source: error.map(Into::into),
            },
            Self::Broken(error) => unavailable("the connection to PostgreSQL broke", error),
        }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        // An error that ends the session may come after its commit; a plain one never does.
        let plain = error
            .as_db_error()
            .is_some_and(|error| matches!(error.parsed_severity(), Some(Severity::Error)));
        if plain {
            Self::Refused(Arc::new(error))
        } else {
            Self::Broken(Some(Arc::new(error)))
        }
    }
}

/// The error of a call that was never sent.
pub(crate) fn unavailable(
    reason: &str,
    source: Option<Arc<tokio_postgres::Error>>,
) -> semel_core::Error {
    semel_core::Error::Unavailable {
        reason: reason.into(),
        source: source.map(Into::into),
    }
}

fn in_words(error: &tokio_postgres::Error) -> &'static str {
    match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            "a transaction of the application's holds this operation"
        }
        Some(&SqlState::QUERY_CANCELED) => "PostgreSQL took too long",
        Some(&SqlState::DISK_FULL) => "PostgreSQL's disk is full",
        Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => "PostgreSQL has become read-only",
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => {
            "the schema is gone; run `semel migrate`"
        }
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => "this user may not write to the schema",
        Some(_) | None => "PostgreSQL refused the statement",
    }
}
