//! sqlx's transactions.

use semel_core::outbox::Event;
use semel_core::store::Source;
use sqlx::Row as _;
use sqlx::postgres::PgTransactionManager;
use sqlx_core::transaction::TransactionManager as _;

use super::driver::{Call, Driver};
use super::{InTransaction, ONCE, PUBLISH};
use crate::outbox::uuid;
use crate::transaction::Sqlx;

impl InTransaction for sqlx::Transaction<'_, sqlx::Postgres> {}

/// Uses sqlx's own savepoints, which it counts: only these can be rolled back without waiting.
impl Driver for sqlx::Transaction<'_, sqlx::Postgres> {
    async fn call(&mut self, call: Call<'_>) -> Result<bool, Source> {
        match call {
            Call::Publish(event) => {
                let Event {
                    id,
                    kind,
                    aggregate,
                    payload,
                } = event;
                sqlx::query(PUBLISH)
                    .bind(uuid(*id))
                    .bind(kind.to_string())
                    .bind(aggregate.to_string())
                    .bind(payload.to_vec())
                    .execute(&mut **self)
                    .await?;
                Ok(true)
            }
            Call::Once {
                consumer,
                message_id,
                remember_us,
            } => {
                let row = sqlx::query(ONCE)
                    .bind(consumer.to_owned())
                    .bind(message_id.to_owned())
                    .bind(remember_us)
                    .fetch_one(&mut **self)
                    .await?;
                Ok(row.try_get(0)?)
            }
        }
    }

    async fn savepoint(&mut self) -> Result<(), Source> {
        Ok(PgTransactionManager::begin(self, None).await?)
    }

    async fn release(&mut self) -> Result<(), Source> {
        Ok(PgTransactionManager::commit(self).await?)
    }

    fn roll_back(&mut self) {
        PgTransactionManager::start_rollback(self);
    }
}

impl InTransaction for Sqlx {}

impl Driver for Sqlx {
    async fn call(&mut self, call: Call<'_>) -> Result<bool, Source> {
        self.0.call(call).await
    }

    async fn savepoint(&mut self) -> Result<(), Source> {
        self.0.savepoint().await
    }

    async fn release(&mut self) -> Result<(), Source> {
        self.0.release().await
    }

    fn roll_back(&mut self) {
        self.0.roll_back();
    }
}
