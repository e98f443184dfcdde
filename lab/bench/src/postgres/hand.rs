//! What most teams write: a table, a pool of sqlx, two statements and two commits a request.
//!
//! The pool is as sqlx makes it but for its size. So it asks each connection whether it is
//! alive before it gives it out, which costs a round trip a statement.

mod service;

use anyhow::{Context, Result, ensure};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{Executor, Row};

pub(crate) use service::service;

use crate::load::{BODY, Contender};

const SCHEMA: &str = include_str!("../../queries/hand_schema.sql");
const RESERVE: &str = include_str!("../../queries/hand_reserve.sql");
const COMPLETE: &str = include_str!("../../queries/hand_complete.sql");
const FIND: &str = include_str!("../../queries/hand_find.sql");

/// Connections of the pool; all of them are there before anything is measured.
const POOL: u32 = 20;

#[derive(Clone)]
pub(super) struct Hand {
    pool: PgPool,
}

/// What is stored under a key.
pub(super) struct Found {
    request_hash: Vec<u8>,
    status: String,
    response_status: Option<i32>,
    response_body: Option<Vec<u8>>,
}

impl Hand {
    /// Makes the table, so the database must be empty.
    pub(super) async fn open(url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .min_connections(POOL)
            .max_connections(POOL)
            .connect(url)
            .await?;
        pool.execute(SCHEMA).await?;
        Ok(Self { pool })
    }

    pub(super) async fn close(self) {
        self.pool.close().await;
    }

    /// Whether this caller is the first, and executes.
    async fn reserve(&self, [tenant, operation, key]: [&str; 3], hash: &[u8]) -> Result<bool> {
        let inserted = sqlx::query(RESERVE)
            .bind(tenant)
            .bind(operation)
            .bind(key)
            .bind(hash)
            .execute(&self.pool)
            .await?;
        Ok(inserted.rows_affected() == 1)
    }

    async fn complete(
        &self,
        [tenant, operation, key]: [&str; 3],
        status: i32,
        body: &[u8],
    ) -> Result<()> {
        let updated = sqlx::query(COMPLETE)
            .bind(tenant)
            .bind(operation)
            .bind(key)
            .bind(status)
            .bind(body)
            .execute(&self.pool)
            .await?;
        ensure!(updated.rows_affected() == 1, "a completion found no row");
        Ok(())
    }

    async fn find(&self, [tenant, operation, key]: [&str; 3]) -> Result<Option<Found>> {
        let row = sqlx::query(FIND)
            .bind(tenant)
            .bind(operation)
            .bind(key)
            .fetch_optional(&self.pool)
            .await?;
        row.map(|row| {
            Ok(Found {
                request_hash: row.try_get(0)?,
                status: row.try_get(1)?,
                response_status: row.try_get(2)?,
                response_body: row.try_get(3)?,
            })
        })
        .transpose()
    }
}

/// As [`crate::load::request`] names them.
fn name(key: &str) -> [&str; 3] {
    ["tenant-1234", "create_payment", key]
}

impl Contender for Hand {
    async fn complete_new(&self, key: &str) -> Result<()> {
        ensure!(
            self.reserve(name(key), &[1; 32]).await?,
            "a new key is not granted"
        );
        self.complete(name(key), 201, &BODY).await
    }

    /// Only the `SELECT`, although a service finds out by an `INSERT` that it needs one.
    async fn replay(&self, key: &str) -> Result<()> {
        let found = self.find(name(key)).await?.context("no such key")?;
        ensure!(
            found.request_hash == [1; 32] && found.response_body.is_some(),
            "a retry finds no answer"
        );
        Ok(())
    }
}
