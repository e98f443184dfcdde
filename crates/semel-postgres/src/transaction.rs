//! The application's writes and the completion, in one commit.
//!
//! A handler writes in a transaction and hands it to the layer, which completes or advances the
//! record in it and commits. [`OpenTransaction`] is for tokio-postgres; [`Sqlx`] is for sqlx,
//! behind the feature of that name. For any other driver: `SELECT semel_complete(…)` and
//! `SELECT semel_advance(…)`.

use std::future::Future as _;
use std::ops::Deref;
use std::sync::Arc;
use std::task::{Context, Waker};

use semel_core::transaction::{Conclude, Finished, Finishing, TransactionWrite};
use semel_core::transition::{Completion, Fenced};
use semel_core::{Error, Fence, Held, RecoveryPoint, Status, Transaction, headers};
use tokio_postgres::Client;

use crate::error::Failure;
use crate::row::uuid;

const COMPLETE: &str = include_str!("../queries/complete_in_transaction.sql");
const ADVANCE: &str = include_str!("../queries/advance_in_transaction.sql");
const BEGIN: &str = include_str!("../queries/begin.sql");
const COMMIT: &str = include_str!("../queries/commit.sql");
const ROLLBACK: &str = include_str!("../queries/rollback.sql");

/// One message: the server stops at the first part that fails.
const CHECK_AND_COMMIT: &str = concat!(
    include_str!("../queries/check_transaction.sql"),
    ";",
    include_str!("../queries/commit.sql")
);

/// An application's transaction on a tokio-postgres connection, in the database that holds the
/// records. It derefs to the connection. Dropping it rolls back.
///
/// `C` is a [`Client`] in a box or an [`Arc`], or what a pool gives instead.
#[derive(Debug)]
pub struct OpenTransaction<C: Deref<Target = Client> + Send + Sync + 'static> {
    /// Shared with the task that rolls back: the pool gets the connection back afterwards.
    client: Arc<C>,
    over: bool,
}

impl<C: Deref<Target = Client> + Send + Sync + 'static> OpenTransaction<C> {
    /// Begins a transaction.
    ///
    /// # Errors
    /// The driver's error; then no transaction was begun.
    ///
    /// # Cancellation
    /// Dropping the future rolls back.
    pub async fn begin(client: C) -> Result<Self, tokio_postgres::Error> {
        // Constructed before BEGIN is sent: dropping this future rolls back.
        let open = Self {
            client: Arc::new(client),
            over: false,
        };
        open.batch_execute(BEGIN).await?;
        Ok(open)
    }

    /// Commits without a record, for a consumer of messages.
    ///
    /// # Errors
    /// The driver's error. Where the server refused, also because an earlier statement failed, the
    /// transaction is rolled back. Where the connection broke it may be committed.
    ///
    /// # Cancellation
    /// Dropping the future leaves it committed or rolled back.
    pub async fn commit(mut self) -> Result<(), tokio_postgres::Error> {
        self.batch_execute(CHECK_AND_COMMIT).await?;
        self.over = true;
        Ok(())
    }

    async fn write_outcome(&self, fence: Fence, word: &TransactionWrite) -> Result<Held, Failure> {
        match word {
            TransactionWrite::Complete(completion) => self.complete(fence, completion).await,
            TransactionWrite::Advance(point) => self.advance(fence, point).await,
        }
    }

    async fn advance(&self, fence: Fence, point: &RecoveryPoint) -> Result<Held, Failure> {
        let row = self
            .query_one(
                ADVANCE,
                &[
                    &uuid(fence.id),
                    &i64::from(fence.attempt),
                    &&*point.name,
                    &&point.data[..],
                ],
            )
            .await?;
        held(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)
    }

    async fn complete(&self, fence: Fence, completion: &Completion) -> Result<Held, Failure> {
        let Completion { response, resource } = completion;
        let lines = headers::encode(&response.headers);
        let row = self
            .query_one(
                COMPLETE,
                &[
                    &uuid(fence.id),
                    &i64::from(fence.attempt),
                    &i32::from(response.status),
                    &&lines[..],
                    &response.body.as_deref(),
                    &i32::from(response.schema_version),
                    &resource.as_ref().map(|resource| &*resource.kind),
                    &resource.as_ref().map(|resource| &*resource.id),
                ],
            )
            .await?;
        held(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)
    }

    async fn end(mut self, fence: Fence, conclude: Conclude) -> Result<Finished, Error> {
        let Some(word) = conclude(None) else {
            return Ok(Finished::RolledBack);
        };
        // Before COMMIT is sent nothing can be committed.
        let held = self.write_outcome(fence, &word).await;
        let held = held.map_err(Failure::of_read)?;
        if let Held::Fenced(_) = held {
            return Ok(Finished::Held(held));
        }
        let committed = self.batch_execute(COMMIT).await;
        self.over = true;
        committed.map_err(|error| Failure::from(error).of_write())?;
        Ok(Finished::Held(Held::Applied))
    }
}

impl<C: Deref<Target = Client> + Send + Sync + 'static> Deref for OpenTransaction<C> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl<C: Deref<Target = Client> + Send + Sync + 'static> Drop for OpenTransaction<C> {
    fn drop(&mut self) {
        if self.over || self.is_closed() {
            return;
        }
        let client = Arc::clone(&self.client);
        let mut rollback = Box::pin(async move {
            // A connection that breaks now has rolled back.
            let _ = client.batch_execute(ROLLBACK).await;
        });
        // One poll sends the statement, before any later one on this connection.
        let sent = rollback
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        // Without a runtime the connection cannot be used again either.
        if sent.is_pending()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(rollback);
        }
    }
}

impl<C: Deref<Target = Client> + Send + Sync + 'static> Transaction for OpenTransaction<C> {
    fn finish(self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing {
        Box::pin(self.end(fence, conclude))
    }
}

/// The answer of `semel.complete` or `semel.advance`.
fn held(word: &str, status: Option<&str>, attempt: Option<i64>) -> Result<Held, Failure> {
    match word {
        "applied" => Ok(Held::Applied),
        "repeated" => Ok(Held::Repeated),
        "fenced" => {
            let status = status.and_then(Status::from_word);
            let attempt = attempt.and_then(|attempt| u32::try_from(attempt).ok());
            Ok(Held::Fenced(Fenced {
                found: status.zip(attempt),
            }))
        }
        other => Err(Failure::Corrupt(
            format!("unknown answer {other:?} of semel.complete or semel.advance").into(),
        )),
    }
}

#[cfg(feature = "sqlx")]
pub use sqlx_transaction::Sqlx;

#[cfg(feature = "sqlx")]
mod sqlx_transaction {
    use sqlx::Row as _;
    use sqlx::postgres::PgRow;

    use super::{
        ADVANCE, COMPLETE, Completion, Conclude, Error, Fence, Finished, Finishing, Held,
        RecoveryPoint, Transaction, TransactionWrite, headers, held, uuid,
    };

    /// A transaction of sqlx, in the database that holds the records.
    #[derive(Debug)]
    pub struct Sqlx(pub sqlx::Transaction<'static, sqlx::Postgres>);

    impl Sqlx {
        async fn write_outcome(
            &mut self,
            fence: Fence,
            word: &TransactionWrite,
        ) -> Result<Held, sqlx::Error> {
            let row = match word {
                TransactionWrite::Complete(completion) => self.complete(fence, completion).await?,
                TransactionWrite::Advance(point) => self.advance(fence, point).await?,
            };
            let word: String = row.try_get(0)?;
            let status: Option<String> = row.try_get(1)?;
            held(&word, status.as_deref(), row.try_get(2)?)
                .map_err(|failure| sqlx::Error::Decode(failure.of_read().into()))
        }

        async fn advance(
            &mut self,
            fence: Fence,
            point: &RecoveryPoint,
        ) -> Result<PgRow, sqlx::Error> {
            sqlx::query(ADVANCE)
                .bind(uuid(fence.id))
                .bind(i64::from(fence.attempt))
                .bind(point.name.to_string())
                .bind(point.data.to_vec())
                .fetch_one(&mut *self.0)
                .await
        }

        async fn complete(
            &mut self,
            fence: Fence,
            completion: &Completion,
        ) -> Result<PgRow, sqlx::Error> {
            let Completion { response, resource } = completion;
            sqlx::query(COMPLETE)
                .bind(uuid(fence.id))
                .bind(i64::from(fence.attempt))
                .bind(i32::from(response.status))
                .bind(headers::encode(&response.headers).to_vec())
                .bind(response.body.as_ref().map(|body| body.to_vec()))
                .bind(i32::from(response.schema_version))
                .bind(resource.as_ref().map(|resource| resource.kind.to_string()))
                .bind(resource.as_ref().map(|resource| resource.id.to_string()))
                .fetch_one(&mut *self.0)
                .await
        }

        async fn end(mut self, fence: Fence, conclude: Conclude) -> Result<Finished, Error> {
            let Some(word) = conclude(None) else {
                return Ok(Finished::RolledBack);
            };
            // Before COMMIT is sent nothing can be committed.
            let held = match self.write_outcome(fence, &word).await {
                Ok(held) => held,
                Err(error) => {
                    return Err(Error::Unavailable {
                        reason: "the transaction could not be finished".into(),
                        source: Some(error.into()),
                    });
                }
            };
            if let Held::Fenced(_) = held {
                return Ok(Finished::Held(held));
            }
            match self.0.commit().await {
                Ok(()) => Ok(Finished::Held(Held::Applied)),
                Err(error) if is_refusal(&error) => Err(Error::Unavailable {
                    reason: "PostgreSQL refused the commit, and rolled back".into(),
                    source: Some(error.into()),
                }),
                Err(error) => Err(Error::Ambiguous {
                    reason: "the connection broke before the commit was answered".into(),
                    source: Some(error.into()),
                }),
            }
        }
    }

    /// Whether the server refused and the session continues: only an error that ends the session may
    /// come after a commit.
    fn is_refusal(error: &sqlx::Error) -> bool {
        error
            .as_database_error()
            .and_then(|error| error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>())
            .is_some_and(|error| error.severity() == sqlx::postgres::PgSeverity::Error)
    }

    impl Transaction for Sqlx {
        fn finish(self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing {
            Box::pin(self.end(fence, conclude))
        }
    }
}
