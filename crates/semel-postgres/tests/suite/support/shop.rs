//! An application whose rows are in the database that holds the records.

use std::sync::Arc;

use semel_core::{Fence, Status, Store as _, Transaction};
use semel_postgres::Postgres;
use semel_postgres::transaction::{OpenTransaction, Sqlx};
use semel_testkit::database::Database;
use tokio_postgres::Client;

/// What commits, as the application sees it.
pub(crate) struct Shop {
    pub(crate) store: Postgres,
    pub(crate) client: Arc<Client>,
    pub(crate) pool: sqlx::PgPool,
    pub(crate) database: Database,
}

impl Shop {
    pub(crate) async fn new() -> Option<Self> {
        let database = Database::new().await?;
        let store = Postgres::open(&database.url).await.unwrap();
        let client = Arc::new(database.client().await);
        client
            .batch_execute(
                "CREATE TABLE payments (id text PRIMARY KEY);
                 CREATE TABLE checked (id text REFERENCES payments DEFERRABLE INITIALLY DEFERRED)",
            )
            .await
            .unwrap();
        let pool = sqlx::PgPool::connect(&database.url).await.unwrap();
        Some(Self {
            store,
            client,
            pool,
            database,
        })
    }

    pub(crate) async fn payments(&self) -> i64 {
        let count = "SELECT count(*) FROM payments";
        self.client.query_one(count, &[]).await.unwrap().get(0)
    }

    pub(crate) async fn status(&self, fence: Fence) -> Status {
        let record = self.store.find(fence.id).await.unwrap().unwrap();
        record.state.status()
    }

    /// A transaction with a payment in it, by either driver.
    pub(crate) async fn pay(&self, driver: Driver, id: &str) -> Box<dyn Transaction> {
        let insert = "INSERT INTO payments VALUES ($1)";
        match driver {
            Driver::TokioPostgres => {
                let begun = OpenTransaction::begin(Arc::clone(&self.client))
                    .await
                    .unwrap();
                begun.execute(insert, &[&id]).await.unwrap();
                Box::new(begun)
            }
            Driver::Sqlx => {
                let mut transaction = self.pool.begin().await.unwrap();
                let query = sqlx::query(insert).bind(id.to_owned());
                query.execute(&mut *transaction).await.unwrap();
                Box::new(Sqlx(transaction))
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Driver {
    TokioPostgres,
    Sqlx,
}

pub(crate) const DRIVERS: [Driver; 2] = [Driver::TokioPostgres, Driver::Sqlx];
