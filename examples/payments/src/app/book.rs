//! The payments, in SQLite.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, ToSql, types::FromSql};
use serde::{Deserialize, Serialize};

const CREATE: &str = include_str!("../../queries/create_payments.sql");
const OPEN: &str = include_str!("../../queries/open_payment.sql");
const SETTLE: &str = include_str!("../../queries/settle_payment.sql");
const FIND: &str = include_str!("../../queries/find_payment.sql");
const FIND_BY_OPERATION: &str = include_str!("../../queries/find_payment_by_operation.sql");
const ABANDON: &str = include_str!("../../queries/abandon_payments.sql");
const SUMMARISE: &str = include_str!("../../queries/summarise_payments.sql");

/// Another process, such as a SQLite shell, may hold a lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The status of a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaymentStatus {
    /// The provider is being called.
    Processing,
    /// The provider charged.
    Succeeded,
    /// The provider refused for good.
    Declined,
    /// The provider was called, and its answer is not known.
    Unknown,
    /// The provider was not reached.
    NotExecuted,
}

impl PaymentStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::Processing => "processing",
            Self::Succeeded => "succeeded",
            Self::Declined => "declined",
            Self::Unknown => "unknown",
            Self::NotExecuted => "not_executed",
        }
    }
}

impl FromSql for PaymentStatus {
    fn column_result(value: rusqlite::types::ValueRef<'_>) -> rusqlite::types::FromSqlResult<Self> {
        match value.as_str()? {
            "processing" => Ok(Self::Processing),
            "succeeded" => Ok(Self::Succeeded),
            "declined" => Ok(Self::Declined),
            "unknown" => Ok(Self::Unknown),
            "not_executed" => Ok(Self::NotExecuted),
            _ => Err(rusqlite::types::FromSqlError::InvalidType),
        }
    }
}

impl ToSql for PaymentStatus {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        Ok(self.as_str().into())
    }
}

/// A payment as clients see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payment {
    /// The id at the service.
    pub id: String,
    /// Its status.
    pub status: PaymentStatus,
    /// In minor units: cents, yen.
    pub amount: i64,
    /// Three capital letters.
    pub currency: String,
    /// The account that is charged.
    pub account: String,
    /// The merchant's reference.
    pub merchant_reference: Option<String>,
    /// The gateway's id of the operation, if the request came through a gateway.
    pub operation_id: Option<String>,
    /// The id of the charge, once the provider has decided.
    pub charge_id: Option<String>,
    /// When it was first requested.
    pub created_at: String,
}

/// Counts of payments: the answer of `GET /summary`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// All payments.
    pub payments: u32,
    /// Executions of the handler. More than `payments` where an operation was executed again.
    pub executions: u32,
    /// Payments by status.
    pub by_status: BTreeMap<PaymentStatus, u32>,
}

/// A payment with its internal columns.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) payment: Payment,
    /// `None` where the provider gets no key.
    pub(super) downstream_key: Option<String>,
    /// The number of this execution.
    pub(super) execution: i64,
}

impl Entry {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            payment: Payment {
                id: row.get("id")?,
                status: row.get("status")?,
                amount: row.get("amount")?,
                currency: row.get("currency")?,
                account: row.get("account")?,
                merchant_reference: row.get("merchant_reference")?,
                operation_id: row.get("operation_id")?,
                charge_id: row.get("charge_id")?,
                created_at: row.get("created_at")?,
            },
            downstream_key: row.get("downstream_key")?,
            execution: row.get("executions")?,
        })
    }
}

/// A requested payment.
#[derive(Clone, Debug)]
pub(super) struct NewPayment {
    pub(super) id: String,
    pub(super) operation_id: Option<String>,
    pub(super) downstream_key: Option<String>,
    pub(super) amount: i64,
    pub(super) currency: String,
    pub(super) account: String,
    pub(super) merchant_reference: Option<String>,
}

/// Errors of the book.
#[derive(Debug, thiserror::Error)]
pub(super) enum BookError {
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
    #[error("the thread that used the database panicked")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// One connection: SQLite has one writer at a time, and nothing here takes long.
#[derive(Clone)]
pub(super) struct Book(Arc<Mutex<Connection>>);

impl Book {
    pub(super) fn open(path: Option<&Path>) -> rusqlite::Result<Self> {
        let connection = match path {
            Some(path) => Connection::open(path)?,
            None => Connection::open_in_memory()?,
        };
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        // Without its row a charge could not be looked up after a power failure.
        connection.pragma_update(None, "synchronous", "full")?;
        connection.execute(CREATE, [])?;
        connection.execute(ABANDON, [])?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Begins an execution. `None` where the operation exists with another payment.
    pub(super) async fn open_payment(&self, new: NewPayment) -> Result<Option<Entry>, BookError> {
        self.run(move |connection| {
            let values = rusqlite::params![
                new.id,
                new.operation_id,
                new.downstream_key,
                new.amount,
                new.currency,
                new.account,
                new.merchant_reference,
            ];
            let mut statement = connection.prepare(OPEN)?;
            statement.query_row(values, Entry::read).optional()
        })
        .await
    }

    /// Writes the end of an execution and returns the resulting row, to which a concurrent execution
    /// may have written a later status.
    pub(super) async fn settle(
        &self,
        entry: &Entry,
        status: PaymentStatus,
        charge_id: Option<String>,
    ) -> Result<Entry, BookError> {
        let (id, execution) = (entry.payment.id.clone(), entry.execution);
        self.run(move |connection| {
            let settled = connection
                .prepare(SETTLE)?
                .query_row((&id, status, charge_id, execution), Entry::read)
                .optional()?;
            match settled {
                Some(entry) => Ok(entry),
                None => connection.prepare(FIND)?.query_row([&id], Entry::read),
            }
        })
        .await
    }

    pub(super) async fn find(&self, id: String) -> Result<Option<Entry>, BookError> {
        self.query(FIND, id).await
    }

    pub(super) async fn find_by_operation(
        &self,
        operation_id: String,
    ) -> Result<Option<Entry>, BookError> {
        self.query(FIND_BY_OPERATION, operation_id).await
    }

    pub(super) async fn summary(&self) -> Result<Summary, BookError> {
        self.run(|connection| {
            let mut summary = Summary::default();
            let mut statement = connection.prepare(SUMMARISE)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let payments: u32 = row.get(1)?;
                summary.payments += payments;
                summary.executions += row.get::<_, u32>(2)?;
                summary.by_status.insert(row.get(0)?, payments);
            }
            Ok(summary)
        })
        .await
    }

    async fn query(&self, query: &'static str, name: String) -> Result<Option<Entry>, BookError> {
        self.run(move |connection| {
            let mut statement = connection.prepare(query)?;
            statement.query_row([name], Entry::read).optional()
        })
        .await
    }

    async fn run<T, F>(&self, work: F) -> Result<T, BookError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let connection = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || {
            // Every use is one statement, so a panic leaves nothing half done.
            work(&connection.lock().unwrap_or_else(PoisonError::into_inner))
        });
        Ok(done.await??)
    }
}
