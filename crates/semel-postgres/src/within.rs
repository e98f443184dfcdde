//! What is said within a transaction of the application's, by any of the drivers.

#[cfg(feature = "sqlx")]
mod of_sqlx;

use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::task::{Context, Waker};

use semel_core::outbox::{self, Event};
use semel_core::store::Source;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::outbox::uuid;
use crate::transaction::Begun;

const PUBLISH: &str = include_str!("../queries/publish.sql");
const ONCE: &str = include_str!("../queries/once.sql");
const SAVEPOINT: &str = include_str!("../queries/savepoint.sql");
const UNDO: &str = include_str!("../queries/undo.sql");
const KEEP: &str = include_str!("../queries/keep.sql");

/// A transaction of the application's, in the database that holds the records:
/// [`Begun`], tokio-postgres' own, and behind the feature `sqlx` also `Sqlx` and sqlx' own.
///
/// A bare connection is none: what is said on it would be committed by itself.
///
/// ```compile_fail
/// # async fn demo(mut client: tokio_postgres::Client, event: semel_core::outbox::Event) {
/// let _ = semel_postgres::Outbox.publish(&mut client, &event).await;
/// # }
/// ```
pub trait InTransaction: Says {}

/// Why nothing was written within a transaction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unwritten {
    /// The event can never be published.
    #[error(transparent)]
    Event(#[from] outbox::Invalid),
    /// The name can never be kept.
    #[error("the name of a {0} has 1 to 255 bytes, none of them zero")]
    Name(&'static str),
    /// The database refused, or went away. The driver's own error says which.
    #[error("the database wrote nothing; roll the transaction back")]
    Database(#[source] Source),
}

/// Nobody else can say what a transaction is.
pub(crate) mod says {
    use super::{Event, Future, Source};

    /// One of Semel's functions.
    #[derive(Clone, Copy)]
    pub enum Call<'a> {
        /// An event is written.
        Publish(&'a Event),
        /// A message is marked, unless it was before.
        Once {
            consumer: &'a str,
            message_id: &'a str,
            remember_us: i64,
        },
    }

    pub trait Says: Send {
        /// Calls it; whether it changed anything, where it says so.
        fn call(&mut self, call: Call<'_>) -> impl Future<Output = Result<bool, Source>> + Send;

        /// What follows can be undone.
        fn savepoint(&mut self) -> impl Future<Output = Result<(), Source>> + Send;

        /// What followed is the transaction's own.
        fn keep(&mut self) -> impl Future<Output = Result<(), Source>> + Send;

        /// What followed is undone before anything else that is said. Waits for nothing, so that
        /// it can be said by somebody who was dropped.
        fn undo(&mut self);
    }
}

use says::{Call, Says};

/// As one message, with the types: nothing has to be asked for first.
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
            let row = rows.first().ok_or("semel_once gave no answer")?;
            Ok(row.try_get(0)?)
        }
    }
}

/// Polled once each is on its way, in this order, before anything else on this connection.
fn undo(client: &Client) {
    for statement in [UNDO, KEEP] {
        let said = pin!(client.batch_execute(statement));
        let _ = said.poll(&mut Context::from_waker(Waker::noop()));
    }
}

impl<C: Deref<Target = Client> + Send + Sync + 'static> InTransaction for Begun<C> {}

impl<C: Deref<Target = Client> + Send + Sync + 'static> Says for Begun<C> {
    async fn call(&mut self, said: Call<'_>) -> Result<bool, Source> {
        call(self, said).await
    }

    async fn savepoint(&mut self) -> Result<(), Source> {
        Ok(self.batch_execute(SAVEPOINT).await?)
    }

    async fn keep(&mut self) -> Result<(), Source> {
        Ok(self.batch_execute(KEEP).await?)
    }

    fn undo(&mut self) {
        undo(self);
    }
}

impl InTransaction for tokio_postgres::Transaction<'_> {}

impl Says for tokio_postgres::Transaction<'_> {
    async fn call(&mut self, said: Call<'_>) -> Result<bool, Source> {
        call(self.client(), said).await
    }

    async fn savepoint(&mut self) -> Result<(), Source> {
        Ok(self.batch_execute(SAVEPOINT).await?)
    }

    async fn keep(&mut self) -> Result<(), Source> {
        Ok(self.batch_execute(KEEP).await?)
    }

    fn undo(&mut self) {
        undo(self.client());
    }
}
