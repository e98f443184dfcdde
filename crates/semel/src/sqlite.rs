//! The embedded store, and statements of the application in its file.

pub use semel_sqlite::*;

#[cfg(feature = "axum")]
use {
    axum::body::Body, axum::response::IntoResponse, semel_core::store::Source,
    semel_http::CommitWith, semel_http::Operation, semel_sqlite::rusqlite::Connection,
};

/// Runs a handler's statements on its own tables in the store's file, and completes the operation
/// with the response that they return: both in one commit.
///
/// ```
/// use axum::extract::State;
/// use axum::http::StatusCode;
/// use axum::response::IntoResponse;
/// use axum::routing::post;
/// use axum::{Json, Router};
/// use semel::sqlite::{self, rusqlite};
///
/// async fn create_payment(
///     operation: semel::Operation,
///     State(store): State<semel::Sqlite>,
///     Json(amount): Json<i64>,
/// ) -> impl IntoResponse {
///     sqlite::in_transaction(operation, &store, move |connection| {
///         let balance: i64 = connection.query_row("SELECT cents FROM balance", [], |row| row.get(0))?;
///         if balance < amount {
///             return Ok((StatusCode::PAYMENT_REQUIRED, "insufficient funds"));
///         }
///         connection.execute("UPDATE balance SET cents = cents - ?1", [amount])?;
///         connection.execute("INSERT INTO payments (cents) VALUES (?1)", [amount])?;
///         Ok::<_, rusqlite::Error>((StatusCode::CREATED, "paid"))
///     })
/// }
///
/// fn routes() -> Router<semel::Sqlite> {
///     Router::new().route("/payments", post(create_payment))
/// }
/// ```
///
/// The response is judged as any other: 201 and 402 both complete the operation, and the rows are
/// committed with either. With a response that does not complete it (a 503, an
/// [`Outcome`](crate::Outcome) that says otherwise), and with an error, the rows are rolled back;
/// after an error the client gets 503 `operation_not_executed`, and may retry. Where the handler
/// also did something elsewhere, call
/// [`with_foreign_effects`](CommitWith::with_foreign_effects): then an error is an unknown outcome.
///
/// The statements run on the store's one writing thread, and every other request waits for them.
/// See [`Sqlite::transaction`] for what that forbids. `store` is the one that the layer has, or
/// another on the same file.
#[cfg(feature = "axum")]
pub fn in_transaction<T, E>(
    operation: Operation,
    store: &Sqlite,
    statements: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
) -> CommitWith<Body>
where
    T: IntoResponse,
    E: Into<Source>,
{
    CommitWith::capture_response(operation, |capture| {
        store.transaction(move |connection| {
            let response = statements(connection).map_err(Into::into)?;
            Ok::<_, Source>(capture.capture(response)?)
        })
    })
}
