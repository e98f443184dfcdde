//! Errors of opening a store, and why a batch of calls failed.

use std::sync::Arc;

use tokio_postgres::error::{Severity, SqlState};

use crate::server::Unfit;

/// Why a store could not be opened. No message contains the password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is invalid.
    #[error("the address of the database cannot be used: {0}")]
    Address(Box<str>),
    /// The server does not answer, or refuses the connection.
    #[error(
        "cannot connect to {address}: {reason}. Check that the server runs, and the user and password"
    )]
    Connect {
        /// Host and database.
        address: Box<str>,
        /// The message of the driver or the server.
        reason: Box<str>,
    },
    /// The root certificates cannot be read.
    #[error("the certificates to trust cannot be read: {0}")]
    Certificates(Box<str>),
    /// The server is too old for Semel's statements.
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
    /// The server does not keep what it acknowledges, or a pooler is in front of it.
    #[error("{address} cannot be used: {reason}")]
    Unfit {
        /// Host and database.
        address: Box<str>,
        /// What is wrong with it.
        reason: Box<str>,
    },
    /// The schema is missing or too old, and this user may not create it.
    #[error(
        "the schema in {address} cannot be created or upgraded: {reason}. Let a user who may run `semel migrate --store URL`"
    )]
    Migrate {
        /// Host and database.
        address: Box<str>,
        /// The message of the driver or the server.
        reason: Box<str>,
    },
    /// A newer Semel created the schema.
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
    /// The connection was opened, but setting it up failed.
    #[error("the store cannot start: {0}")]
    Start(Box<str>),
    /// The thread could not be started.
    #[error("the operating system refused a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// An error with its sources: the driver keeps the reason there.
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

/// Why a batch of calls failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The server refused, and rolled back.
    Refused(Arc<tokio_postgres::Error>),
    /// The connection broke, or did not answer in time: a write may have been committed.
    Broken(Option<Arc<tokio_postgres::Error>>),
    /// No server could be connected to that may be used. Nothing was sent.
    NoServer(Arc<NoServer>),
    /// The server committed, but did not wait for its standby: a failover may lose the commit.
    NotReplicated,
    /// The stored data is invalid. Nothing was decided by it.
    Corrupt(Box<str>),
    /// Other requests were faster again and again.
    Contended,
}

/// Why each host was passed over.
#[derive(Debug)]
pub(crate) struct NoServer {
    pub(crate) reason: String,
    /// What is wrong with a server that answered.
    pub(crate) unfit: Option<Unfit>,
}

impl Failure {
    /// Whether the connection cannot be used any more.
    pub(crate) fn breaks_the_connection(&self) -> bool {
        match self {
            Self::Broken(_) | Self::NoServer(_) | Self::NotReplicated => true,
            Self::Refused(_) => self.was_sent_to_wrong_server(),
            Self::Corrupt(_) | Self::Contended => false,
        }
    }

    /// Whether the server wrote nothing because it does not lead any more, or because a pooler
    /// gave us another server process: a retry on another connection may succeed.
    pub(crate) fn was_sent_to_wrong_server(&self) -> bool {
        matches!(self, Self::Refused(error) if matches!(
            error.code(),
            Some(
                &SqlState::READ_ONLY_SQL_TRANSACTION
                    | &SqlState::INVALID_SQL_STATEMENT_NAME
                    | &SqlState::DUPLICATE_PSTATEMENT
            )
        ))
    }

    /// Whether a retry may succeed: another transaction was in the way.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Refused(error) => matches!(
                error.code(),
                Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE)
            ),
            Self::Broken(_)
            | Self::NoServer(_)
            | Self::NotReplicated
            | Self::Corrupt(_)
            | Self::Contended => false,
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
            Self::Contended => {
                unavailable("too many requests for the same key at once; retry", None)
            }
            Self::Refused(error) => unavailable(describe(&error), Some(error)),
            Self::NoServer(none) => unavailable(&none.reason, None),
            Self::NotReplicated if writes => semel_core::Error::Ambiguous {
                reason: "PostgreSQL committed without waiting for its standby".into(),
                source: None,
            },
            Self::NotReplicated => {
                unavailable("PostgreSQL committed without waiting for its standby", None)
            }
            Self::Broken(error) if writes => semel_core::Error::Ambiguous {
                reason: "the connection to PostgreSQL broke before it answered".into(),
                source: error.map(Into::into),
            },
            Self::Broken(error) => unavailable("the connection to PostgreSQL broke", error),
        }
    }
}

impl Error {
    /// Why a store could not be opened.
    pub(crate) fn opening(failure: Failure, address: &str) -> Self {
        let address = address.into();
        match failure {
            Failure::NoServer(none) => match none.unfit {
                Some(Unfit::ReadOnly) => Self::ReadOnly { address },
                Some(_) => {
                    let reason = none.reason.as_str().into();
                    Self::Unfit { address, reason }
                }
                None => {
                    let reason = none.reason.as_str().into();
                    Self::Connect { address, reason }
                }
            },
            Failure::Refused(error) | Failure::Broken(Some(error)) => {
                Self::Start(chain(&*error).into())
            }
            Failure::Broken(None) => Self::Start("it does not answer in time".into()),
            Failure::NotReplicated => Self::Start("it commits without its standby".into()),
            Failure::Corrupt(reason) => Self::Start(reason),
            Failure::Contended => Self::Start("it is busy".into()),
        }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        // An error that ends the session may come after its commit; one of severity ERROR never does.
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

fn describe(error: &tokio_postgres::Error) -> &'static str {
    match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            "a transaction of the application has locked this record"
        }
        Some(&SqlState::QUERY_CANCELED) => "PostgreSQL took too long",
        Some(&SqlState::DISK_FULL) => "PostgreSQL's disk is full",
        Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => "PostgreSQL has become read-only",
        Some(&SqlState::INVALID_SQL_STATEMENT_NAME | &SqlState::DUPLICATE_PSTATEMENT) => {
            "a pooler in transaction mode is in front of PostgreSQL; Semel needs session mode, or a direct connection"
        }
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => {
            "the schema is missing; run `semel migrate`"
        }
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => "this user may not write to the schema",
        Some(_) | None => "PostgreSQL refused the statement",
    }
}
