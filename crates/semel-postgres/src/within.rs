//! Events and markers in an application's transaction, with any of the drivers.

#[cfg(feature = "sqlx")]
mod sqlx_driver;

use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::task::{Context, Waker};

use semel_core::outbox::{self, Event};
use semel_core::store::Source;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::outbox::uuid;
use crate::transaction::OpenTransaction;

const PUBLISH: &str = include_str!("../queries/publish.sql");
const ONCE: &str = include_str!("../queries/once.sql");
const SAVEPOINT: &str = include_str!("../queries/savepoint.sql");
const ROLLBACK_TO: &str = include_str!("../queries/rollback_savepoint.sql");
const RELEASE: &str = include_str!("../queries/release_savepoint.sql");

/// An application's transaction in the database that holds the records:
/// [`OpenTransaction`], tokio-postgres' own, and behind the feature `sqlx` also `Sqlx` and sqlx' own.
///
/// A bare connection is not a transaction: each statement on it would be committed by itself.
///
/// ```compile_fail
/// # async fn demo(mut client: tokio_postgres::Client, event: semel_core::outbox::Event) {
/// let _ = semel_postgres::Outbox.publish(&mut client, &event).await;
/// # }
/// ```
pub trait InTransaction: Driver {}

/// Why nothing was written within a transaction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unwritten {
    /// The event can never be published.
    #[error(transparent)]
    Event(#[from] outbox::Invalid),
    /// The name cannot be stored.
    #[error("the name of a {0} has 1 to 255 bytes, none of them zero")]
    Name(&'static str),
    /// The database refused, or the connection broke. The driver's error says which.
    #[error("the database wrote nothing; roll the transaction back")]
    Database(#[source] Source),
}

/// Private, so that other crates cannot implement [`InTransaction`].
pub(crate) mod driver {
    use super::{Event, Future, Source};

    /// A call of one of Semel's SQL functions.
    #[derive(Clone, Copy)]
    pub enum Call<'a> {
        /// Writes an event.
        Publish(&'a Event),
        /// Marks a message, unless it is marked already.
        Once {
            consumer: &'a str,
            message_id: &'a str,
            remember_us: i64,
        },
    }

    pub trait Driver: Send {
        /// Calls the function. Returns whether it changed anything.
        fn call(&mut self, call: Call<'_>) -> impl Future<Output = Result<bool, Source>> + Send;

        /// Sets a savepoint.
        fn savepoint(&mut self) -> impl Future<Output = Result<(), Source>> + Send;

        /// Releases the savepoint, and keeps what followed it.
        fn release(&mut self) -> impl Future<Output = Result<(), Source>> + Send;

        /// Sends the rollback to the savepoint before any later statement. Does not wait, so that it
        /// can be called while a future is dropped.
        fn roll_back(&mut self);
    }
}

use driver::{Call, Driver};

/// Sends the types with the statement, so that one round trip is enough.
async fn call(client: &Client, call: Call<'_>) -> Result<bool, Source> {
    match call {
        Call::Publish(event) => {
            let Event {
                id,
                kind,
                aggregate,
                payload,
            } = event;
            let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
                (&uuid(*id), Type::UUID),
                (&&**kind, Type::TEXT),
                (&&**aggregate, Type::TEXT),
                (&&payload[..], Type::BYTEA),
            ];
            client.query_typed(PUBLISH, &parameters).await?;
            Ok(true)
        }
        Call::Once {
            consumer,
            message_id,
            remember_us,
        } => {
            let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
                (&consumer, Type::TEXT),
                (&message_id, Type::TEXT),
                (&remember_us, Type::INT8),
            ];
            let rows: Vec<Row> = client.query_typed(ONCE, &parameters).await?;
            let row = rows.first().ok_or("semel_once returned no row")?;
            Ok(row.try_get(0)?)
        }
    }
}

/// One poll sends a statement: both are sent in this order, before any later one.
fn roll_back(client: &Client) {
    for statement in [ROLLBACK_TO, RELEASE] {
        let sent = pin!(client.batch_execute(statement));
        let _ = sent.poll(&mut Context::from_waker(Waker::noop()));
    }
}

impl<C: Deref<Target = Client> + Send + Sync + 'static> InTransaction for OpenTransaction<C> {}

impl<C: Deref<Target = Client> + Send + Sync + 'static> Driver for OpenTransaction<C> {
    async fn call(&mut self, function: Call<'_>) -> Result<bool, Source> {
        call(self, function).await
    }

    async fn savepoint(&mut self) -> Result<(), Source> {
        Ok(self.batch_execute(SAVEPOINT).await?)
    }

    async fn release(&mut self) -> Result<(), Source> {
        Ok(self.batch_execute(RELEASE).await?)
    }

    fn roll_back(&mut self) {
        roll_back(self);
    }
}

impl InTransaction for tokio_postgres::Transaction<'_> {}

impl Driver for tokio_postgres::Transaction<'_> {
    async fn call(&mut self, function: Call<'_>) -> Result<bool, Source> {
        call(self.client(), function).await
    }

    async fn savepoint(&mut self) -> Result<(), Source> {
        Ok(self.batch_execute(SAVEPOINT).await?)
    }

    async fn release(&mut self) -> Result<(), Source> {
        Ok(self.batch_execute(RELEASE).await?)
    }

    fn roll_back(&mut self) {
        roll_back(self.client());
    }
}
