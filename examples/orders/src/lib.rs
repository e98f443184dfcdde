//! Orders that are taken once: the order's row and the completion of its record are one commit.
//!
//! So a retry never creates a second order, and never replays the answer of an order that does not
//! exist.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use semel::postgres::Sqlx;
use semel::{CommitWith, Layer, Operation, Postgres, tenant};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

/// The request body.
#[derive(Debug, Deserialize)]
pub struct Order {
    /// The ordered item.
    pub item: String,
    /// How many.
    pub quantity: i32,
}

/// The response.
#[derive(Debug, Serialize)]
pub struct Taken {
    /// The number of the order.
    pub order: i64,
}

/// The application: its tables and Semel's records live in one database.
pub fn router(pool: PgPool, layer: &Layer<Postgres>) -> Router {
    Router::new()
        .route("/orders", post(take_order))
        .layer(layer.clone())
        .with_state(pool)
}

/// The guarded routes.
pub fn guard(store: Postgres) -> Layer<Postgres> {
    Layer::new(store)
        .tenant(tenant::header("X-Account-Id"))
        .route("POST /orders", |route| route.operation("take_order"))
}

async fn take_order(
    operation: Operation,
    State(pool): State<PgPool>,
    Json(order): Json<Order>,
) -> Result<Response, Failed> {
    let mut transaction = pool.begin().await?;
    let taken = include_str!("../queries/take.sql");
    let left: Option<i64> = sqlx::query_scalar(taken)
        .bind(&order.item)
        .bind(order.quantity)
        .fetch_optional(&mut *transaction)
        .await?;
    let answer = match left {
        Some(order) => (StatusCode::CREATED, Json(Taken { order })).into_response(),
        // Stored as well: a retry replays the refusal, whatever is in stock then.
        None => (StatusCode::CONFLICT, "out of stock\n").into_response(),
    };
    Ok(CommitWith::new(operation, Sqlx(transaction), answer).into_response())
}

/// The database failed before the commit: nothing was executed, and the key may be retried.
pub struct Failed(sqlx::Error);

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        tracing::error!(error = %self.0, "the order was not taken");
        semel::Outcome::not_executed("database_failed").into_response()
    }
}
