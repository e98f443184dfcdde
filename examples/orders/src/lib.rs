//! Orders, taken once: the order's row and the completion of its request are one commit.
//!
//! There is no moment at which the order exists and a retry would make another, and none at
//! which a retry is told of an order that does not exist.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use semel::{Layer, Operation, Postgres, Sqlx, Together, tenant};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

/// What is ordered.
#[derive(Debug, Deserialize)]
pub struct Order {
    /// What.
    pub item: String,
    /// How many.
    pub quantity: i32,
}

/// What became of it.
#[derive(Debug, Serialize)]
pub struct Taken {
    /// Its number.
    pub order: i64,
}

/// The application: its tables and Semel's records live in one database.
pub fn router(pool: PgPool, layer: &Layer<Postgres>) -> Router {
    Router::new()
        .route("/orders", post(take_order))
        .layer(layer.clone())
        .with_state(pool)
}

/// What is guarded, and how.
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
        // Also an end, and also remembered: a retry is told the same, whatever is in stock then.
        None => (StatusCode::CONFLICT, "out of stock\n").into_response(),
    };
    Ok(Together::new(operation, Sqlx(transaction), answer).into_response())
}

/// The database failed before anything was committed: it is certain that nothing happened, and
/// the same key may be used again.
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
