//! What most teams write: a table, a pool of sqlx, an INSERT before the work and an UPDATE after.
//! The statements are those of the benchmark `cargo xtask bench postgres`. `STORE` is a PostgreSQL
//! URL.
//!
//! Settings: a pool of 20 connections, all open from the start. A connection is tested before it is
//! lent only if it was idle for a second: by default every query would be preceded by a ping,
//! which a reader of the figures would not expect. (sqlx pings once more when a connection is given
//! back, after the answer; that cannot be turned off.) There is no lease: only an operator
//! frees the key of a process that died. An answer of any kind and of any size is kept.

use std::time::Duration;

use anyhow::Result;
use app::{Ledger, serve, variable, work};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use sha2::{Digest as _, Sha256};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{Connection as _, Executor as _, Row as _};

const SCHEMA: &str = include_str!("../queries/schema.sql");
const RESERVE: &str = include_str!("../../../../bench/queries/hand_reserve.sql");
const COMPLETE: &str = include_str!("../../../../bench/queries/hand_complete.sql");
const FIND: &str = include_str!("../../../../bench/queries/hand_find.sql");

const POOL: u32 = 20;
/// A store that went away and came back leaves dead connections behind; under load none is idle.
const IDLE: Duration = Duration::from_secs(1);
const OPERATION: &str = "work";

#[tokio::main]
async fn main() -> Result<()> {
    let pool = PgPoolOptions::new()
        .max_connections(POOL)
        .min_connections(POOL)
        .test_before_acquire(false)
        .before_acquire(|connection, lent| {
            Box::pin(async move {
                if lent.idle_for > IDLE {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
        .connect(&variable("STORE")?)
        .await?;
    pool.execute(SCHEMA).await?;
    let app = Router::new()
        .route("/work", post(work))
        .with_state(Ledger::from_environment()?)
        .layer(from_fn_with_state(pool, guard));
    serve(app).await
}

async fn guard(State(pool): State<PgPool>, request: Request, next: Next) -> Response {
    guarded(&pool, request, next).await.unwrap_or_else(|error| {
        let body = format!("{error:#}");
        (StatusCode::INTERNAL_SERVER_ERROR, body).into_response()
    })
}

async fn guarded(pool: &PgPool, request: Request, next: Next) -> Result<Response> {
    let (head, body) = request.into_parts();
    let tenant = text(&head.headers, "authorization").unwrap_or_default();
    let Some(key) = text(&head.headers, "idempotency-key") else {
        return Ok(StatusCode::BAD_REQUEST.into_response());
    };
    let body = body.collect().await?.to_bytes();
    let hash = Sha256::digest(&body);

    let inserted = sqlx::query(RESERVE)
        .bind(&tenant)
        .bind(OPERATION)
        .bind(&key)
        .bind(&hash[..])
        .execute(pool)
        .await?;
    if inserted.rows_affected() == 0 {
        return retried(pool, &tenant, &key, &hash).await;
    }
    let answer = next.run(Request::from_parts(head, body.into())).await;
    let (head, body) = answer.into_parts();
    let body: Bytes = body.collect().await?.to_bytes();
    sqlx::query(COMPLETE)
        .bind(&tenant)
        .bind(OPERATION)
        .bind(&key)
        .bind(i32::from(head.status.as_u16()))
        .bind(&body[..])
        .execute(pool)
        .await?;
    Ok(Response::from_parts(head, body.into()))
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

async fn retried(pool: &PgPool, tenant: &str, key: &str, hash: &[u8]) -> Result<Response> {
    let row = sqlx::query(FIND)
        .bind(tenant)
        .bind(OPERATION)
        .bind(key)
        .fetch_one(pool)
        .await?;
    if row.try_get::<Vec<u8>, _>(0)? != hash {
        return Ok(StatusCode::UNPROCESSABLE_ENTITY.into_response());
    }
    let (Some(status), Some(body)) = (
        row.try_get::<Option<i32>, _>(2)?,
        row.try_get::<Option<Vec<u8>>, _>(3)?,
    ) else {
        return Ok(StatusCode::CONFLICT.into_response());
    };
    let status = StatusCode::from_u16(u16::try_from(status)?)?;
    let headers = [
        (header::CONTENT_TYPE.as_str(), "application/json"),
        ("idempotent-replayed", "true"),
    ];
    Ok((status, headers, body).into_response())
}
