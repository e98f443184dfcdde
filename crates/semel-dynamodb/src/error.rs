//! Errors of opening a store.

/// Why a store could not be opened or created. No message contains a credential.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is invalid.
    #[error("the address of the table cannot be used: {0}")]
    Address(Box<str>),
    /// There is no such table.
    #[error("there is no table {table:?}: create it with `semel migrate --store {url}`")]
    NoTable {
        /// The table.
        table: Box<str>,
        /// The address.
        url: Box<str>,
    },
    /// DynamoDB does not answer, or refuses.
    #[error(
        "cannot use table {table:?}: {reason}. Check the region, the endpoint and the credentials"
    )]
    Connect {
        /// The table.
        table: Box<str>,
        /// The message of the SDK or the server.
        reason: Box<str>,
    },
    /// The table is not one of Semel's, or one that would lose records.
    #[error("table {table:?} cannot be used: {reason}")]
    Unfit {
        /// The table.
        table: Box<str>,
        /// What is wrong with it.
        reason: Box<str>,
    },
    /// A newer Semel created the table.
    #[error(
        "table {table:?} has layout {found}, and this Semel knows up to {supported}. It was left as it is: run the newer version"
    )]
    NewerLayout {
        /// The table.
        table: Box<str>,
        /// The layout of the table.
        found: u32,
        /// The newest layout known here.
        supported: u32,
    },
    /// The table has no backup.
    #[error(
        "table {table:?} was created, but its point-in-time recovery is not on: {reason}. Run `semel migrate` again with the rights dynamodb:UpdateContinuousBackups and dynamodb:DescribeContinuousBackups"
    )]
    NoRecovery {
        /// The table.
        table: Box<str>,
        /// The message of the SDK or the server.
        reason: Box<str>,
    },
    /// This machine's clock is wrong.
    #[error(
        "this machine's clock differs from DynamoDB's by more than {bound_seconds} s: leases would be judged wrongly. Synchronise it"
    )]
    Clock {
        /// The largest accepted difference.
        bound_seconds: u64,
    },
}

/// Why an outcome could not be stored with the application's items.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// The store's error, which says whether the transaction may have been committed.
    #[error(transparent)]
    Store(#[from] semel_core::Error),
    /// DynamoDB refused the application's items. Nothing was written, and the attempt goes on.
    #[error("the transaction was refused: {reasons}")]
    Refused {
        /// A code for each item, the first for the record.
        reasons: Box<str>,
        /// The error of the SDK.
        #[source]
        source: semel_core::store::Source,
    },
}

/// An error with its sources: the SDK keeps the reason there.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
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
