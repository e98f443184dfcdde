//! A handler's statements and its answer, inside of the store's own commit.

use axum::body::Body;
use axum::response::IntoResponse;
use semel_core::store::Source;
use semel_http::{Operation, Together};
use semel_sqlite::Sqlite;
use semel_sqlite::rusqlite::Connection;

/// Runs a handler's statements on its own tables in the store's file, and completes the operation
/// with the answer that they find: both in one commit.
///
/// ```
/// use axum::Json;
/// use axum::extract::State;
/// use axum::http::StatusCode;
/// use axum::response::IntoResponse;
/// use semel::rusqlite;
///
/// async fn create_payment(
///     operation: semel::Operation,
///     State(store): State<semel::Sqlite>,
///     Json(amount): Json<i64>,
/// ) -> impl IntoResponse {
///     semel::in_sqlite(operation, &store, move |connection| {
///         let balance: i64 = connection.query_row("SELECT cents FROM balance", [], |row| row.get(0))?;
///         if balance < amount {
///             return Ok((StatusCode::PAYMENT_REQUIRED, "insufficient funds"));
///         }
///         connection.execute("UPDATE balance SET cents = cents - ?1", [amount])?;
///         connection.execute("INSERT INTO payments (cents) VALUES (?1)", [amount])?;
///         Ok::<_, rusqlite::Error>((StatusCode::CREATED, "paid"))
///     })
/// }
/// # let handler: axum::routing::MethodRouter<semel::Sqlite> = axum::routing::post(create_payment);
/// ```
///
/// The answer is judged as any other: 201 and 402 both complete the operation, and what was
/// written is committed with either. With an answer that does not complete it (a 503, an
/// [`Outcome`](crate::Outcome) that says otherwise), and with an error, all that the statements
/// wrote is taken back; after an error the client is told that nothing was executed, and may
/// retry. Where the handler also did something elsewhere, say so by
/// [`with_foreign_effects`](Together::with_foreign_effects): then an error is an unknown outcome.
///
/// The statements run on the store's one writing thread, where every other request waits for
/// them. See [`Sqlite::transaction`] for what that forbids. `store` is the one that the layer
/// has, or another on the same file.
pub fn in_sqlite<T, E>(
    operation: Operation,
    store: &Sqlite,
    statements: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
) -> Together<Body>
where
    T: IntoResponse,
    E: Into<Source>,
{
    Together::inside(operation, |answering| {
        store.transaction(move |connection| {
            let answer = statements(connection).map_err(Into::into)?;
            Ok::<_, Source>(answering.answer(answer)?)
        })
    })
}
