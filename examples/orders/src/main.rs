//! `DATABASE_URL=postgres://… cargo run -p orders`, then
//! `curl -i -H 'X-Account-Id: a' -H 'Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"' --json '{"item":"chair","quantity":1}'
//! 127.0.0.1:3000/orders`, twice.

use std::time::Duration;

use anyhow::Context as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("DATABASE_URL").context("DATABASE_URL is not set")?;
    let pool = sqlx::PgPool::connect(&url).await?;
    sqlx::raw_sql(include_str!("../queries/schema.sql"))
        .execute(&pool)
        .await?;
    let layer = orders::guard(semel::Postgres::open(&url).await?);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, orders::router(pool, &layer))
        .with_graceful_shutdown(async {
            // If the handler cannot be installed, the server stops at once.
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;
    layer.drain(Duration::from_secs(30)).await;
    Ok(())
}
