//! Safe retries for HTTP APIs.
//!
//! A client sends `POST /payments`, the server charges the card, the answer is lost, the client
//! retries. With Semel in between, the retry is given the first answer, and the card is charged
//! once, whatever broke in the meantime.
//!
//! # Ten lines
//! ```no_run
//! use axum::{Router, http::request::Parts, routing::post};
//!
//! async fn create_payment(operation: semel::Operation, body: String) -> String {
//!     // The provider is called with a key that is the same on every attempt.
//!     format!("charged under {}: {body}", operation.downstream_key("charge"))
//! }
//!
//! /// Who is calling, from something that the server knows.
//! fn account_id(head: &Parts) -> Option<String> {
//!     Some(head.headers.get("x-account-id")?.to_str().ok()?.to_owned())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = semel::Sqlite::open("semel.db").await?;
//! let app = Router::new()
//!     .route("/payments", post(create_payment))
//!     .layer(
//!         semel::Layer::new(store)
//!             .tenant(account_id)
//!             .route("POST /payments", |route| route.operation("create_payment")),
//!     );
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! axum::serve(listener, app).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What happens to a request
//! | the key is | and | the client gets |
//! |---|---|---|
//! | new | | the handler's answer, once it is stored |
//! | known | the same request | the stored answer, marked `Idempotent-Replayed: true` |
//! | known | another request | 422: a key is not used twice |
//! | being executed | | 409, or the answer when it comes ([`InFlight`]) |
//! | known, and nobody knows how it ended | | 409, until somebody found out |
//!
//! The handler runs in a task of its own: a client that goes away stops nothing. A handler that
//! panics, or takes longer than [`Route::execute_max`], leaves an *unknown* outcome, which no
//! client can execute again.
//!
//! # Saying how it ended
//! Without a word, the status decides: 2xx, 3xx, 4xx and 500 are final and replayed; 401, 403
//! and 429 are forgotten; 408 and 425 are released; 502, 503 and 504 are unknown. A handler that
//! knows better says so with an [`Outcome`]:
//!
//! ```
//! use semel::Outcome;
//!
//! async fn charge(amount: u64) -> Result<String, Outcome> {
//!     match provider(amount).await {
//!         Ok(charge) => Ok(charge),
//!         // Not a byte was sent: the same key may try again.
//!         Err("refused") => Err(Outcome::not_executed("provider_unreachable")),
//!         // It may have happened. Only reconciliation leads out of here.
//!         Err(_) => Err(Outcome::unknown("provider_timeout")),
//!     }
//! }
//! # async fn provider(_: u64) -> Result<String, &'static str> { Err("timeout") }
//! # let handler: axum::routing::MethodRouter = axum::routing::post(|| charge(1));
//! ```
//!
//! # In one commit
//! A handler that keeps its rows in the store's own database need not choose which of the two is
//! written first: it leaves its transaction to the layer with its answer, and the completion
//! becomes part of it. After a crash at any point both are there, or neither is.
//!
//! With PostgreSQL a handler returns a [`Together`] with the transaction it has open, of
//! tokio-postgres (`Begun`, feature `postgres`) or of sqlx (`Sqlx`, feature `sqlx`). With SQLite,
//! [`in_sqlite`] runs its statements inside of the store's own commit.
//!
//! # Several steps, and telling others
//! With `phases` an operation of several steps goes on where its process died; with an outbox its
//! events are committed with its rows; with an inbox the effects of messages happen once. See the
//! [guide].
//!
//! # Stopping
//! Keep a clone of the layer and drain it when the server has stopped accepting, or executions
//! whose clients went away end with the process:
//!
//! ```no_run
//! # async fn stop<S: semel::Store>(layer: semel::Layer<S>) {
//! layer.drain(std::time::Duration::from_secs(30)).await;
//! # }
//! ```
//!
//! # Nothing stays unknown
//! With the feature `worker`, a `Worker` in the same process, or in another on the same store,
//! turns executions whose owner fell silent into unknowns, asks your `Reconcile` what became of
//! each, sets aside for a person what nobody finds out, and lets go of what has had its time.
//! See `docs/reconcile.md`.
//!
//! # Where the layer goes
//! Inside of authentication, so that [`tenant`] can rely on it, and outside of whatever the
//! operation consists of. Compression and tracing go outside of it: what it stores is replayed
//! byte for byte.
//!
//! # Features
//! `axum` (on by default): [`Operation`] as an extractor, [`Outcome`] as a response. `sqlite`
//! (on by default): the embedded store. `postgres`: the store that many processes share. `sqlx`:
//! transactions of sqlx. `redis`: a replay cache in front of PostgreSQL. `worker`: what happens out
//! of band, and webhooks. `brokers`: NATS JetStream and RabbitMQ. `seal`: encryption at rest. Each
//! only adds.

#[cfg(all(feature = "axum", feature = "sqlite"))]
mod in_sqlite;

#[cfg(all(feature = "axum", feature = "sqlite"))]
pub use in_sqlite::in_sqlite;

pub use semel_core::fingerprint::Options as FingerprintOptions;
pub use semel_core::inbox::Once;
pub use semel_core::key::Dialect;
pub use semel_core::outbox::{Event, EventId};
#[cfg(feature = "worker")]
pub use semel_core::{Code, Completion, Record, Response};
pub use semel_core::{
    Fingerprint, Inbox, Inspect, KeyScope, Local, Maintain, Memory, OnExpired, OperationId, Policy,
    Resource, Store, Transaction, Windows, outbox,
};
#[cfg(feature = "axum")]
pub use semel_http::Completer;
pub use semel_http::{
    Builder, Downstream, Drained, Ending, InFlight, KeyRule, Layer, Operation, Outcome, Phases,
    Route, Stopped, Together, route, tenant,
};
#[cfg(feature = "postgres")]
pub use semel_postgres::Postgres;
#[cfg(feature = "postgres")]
pub use semel_postgres::transaction::Begun;
#[cfg(feature = "sqlx")]
pub use semel_postgres::transaction::Sqlx;
#[cfg(feature = "redis")]
pub use semel_redis::{Cached, Options as Redis};
#[cfg(feature = "seal")]
pub use semel_seal::{Keyring, Sealed};
#[cfg(feature = "sqlite")]
pub use semel_sqlite::{Sqlite, rusqlite};
#[cfg(feature = "worker")]
pub use semel_worker::{
    Asked, CancellationToken, Finding, Found, Pace, Reconcile, Reconcilers, Relay, Schedule,
    Worker, webhook,
};

/// Brokers, as sinks of events and as what consumers listen to.
#[cfg(feature = "brokers")]
pub use semel_brokers as brokers;

/// What is written in transactions of the application's, in SQLite.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use semel_sqlite::{Inbox, Outbox};
}

/// What is written in transactions of the application's, in PostgreSQL.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use semel_postgres::{Inbox, Outbox};
}

/// How to build with it, a page for each part. What the pages show compiles.
#[cfg(all(feature = "axum", feature = "sqlite", feature = "worker"))]
pub mod guide {
    #[doc = include_str!("../../../docs/guide/inbox.md")]
    pub mod inbox {}

    #[doc = include_str!("../../../docs/guide/outbox.md")]
    pub mod outbox {}

    #[doc = include_str!("../../../docs/guide/phases.md")]
    pub mod phases {}
}
