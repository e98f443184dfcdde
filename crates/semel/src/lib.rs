//! Safe retries for HTTP APIs.
//!
//! A client sends `POST /payments`, the server charges the card, the response is lost, the client
//! retries. With Semel in between, the retry gets the first response, and the card is charged once,
//! whatever failed in the meantime.
//!
//! # Start
//! ```no_run
//! use axum::{Router, routing::post};
//! use semel::worker::CancellationToken;
//!
//! async fn create_payment(operation: semel::Operation, body: String) -> String {
//!     // The provider is called with a key that is the same on every attempt.
//!     format!("charged under {}: {body}", operation.downstream_key("charge"))
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let store = semel::Sqlite::open("semel.db").await?;
//!     // Finds executions whose process died, reconciles unknown outcomes, removes expired records.
//!     tokio::spawn(semel::Worker::new(store.clone()).run(CancellationToken::new()));
//!     let app = Router::new().route("/payments", post(create_payment)).layer(
//!         semel::Layer::new(store)
//!             .tenant(semel::tenant::header("X-Account-Id"))
//!             .route("POST /payments", |route| route.operation("create_payment")),
//!     );
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     Ok(axum::serve(listener, app).await?)
//! }
//! ```
//!
//! # What happens to a request
//! | the key is | and | the client gets |
//! |---|---|---|
//! | new | | the handler's response, once it is stored |
//! | known | the same request | the stored response, marked `Idempotent-Replayed: true` |
//! | known | another request | 422: a key is not used twice |
//! | being executed | | 409, or the response when it is there ([`InFlight`]) |
//! | known, with an unknown outcome | | 409, until it is reconciled |
//!
//! The handler runs in a task of its own: a client that disconnects stops nothing. A handler that
//! panics, or takes longer than [`Route::execute_max`], leaves an *unknown* outcome, which no
//! request can execute again.
//!
//! # How an execution ended
//! By default the status decides: 2xx, 3xx, 4xx and 500 are final and replayed; 401, 403 and 429
//! are forgotten; 408 and 425 are released; 502, 503 and 504 are unknown. A handler that knows
//! better returns an [`Outcome`]:
//!
//! ```
//! use semel::Outcome;
//!
//! async fn charge(amount: u64) -> Result<String, Outcome> {
//!     match call_provider(amount).await {
//!         Ok(charge) => Ok(charge),
//!         // Not a byte was sent: the same key may try again.
//!         Err(Failure::Refused) => Err(Outcome::not_executed("provider_unreachable")),
//!         // It may have happened: the worker reconciles it.
//!         Err(Failure::TimedOut) => Err(Outcome::unknown("provider_timeout")),
//!     }
//! }
//!
//! enum Failure {
//!     Refused,
//!     TimedOut,
//! }
//!
//! async fn call_provider(amount: u64) -> Result<String, Failure> {
//!     if amount == 0 { Err(Failure::Refused) } else { Err(Failure::TimedOut) }
//! }
//! ```
//!
//! # What counts as the same request
//! By default the canonical JSON of the body, with method, path and query. A route with
//! [`Route::command`] parses and validates its command before the key is reserved, compares by it,
//! and gives it to the handler as [`Command`].
//!
//! # What a retry gets
//! The stored response. A route can state the [`schema`](Route::schema) version of its responses,
//! [`reconstruct`](Route::reconstruct) the current representation in place of the stored one, and
//! [`authorize`](Route::authorize) each replay first. None of these executes anything again.
//!
//! # In one commit
//! A handler that keeps its rows in the store's own database leaves its transaction to the layer,
//! and the completion becomes part of it. After a crash at any point both exist, or neither does.
//!
//! With PostgreSQL a handler returns a [`CommitWith`] with its open transaction, of tokio-postgres
//! or of sqlx (feature `sqlx`). With SQLite, [`sqlite::in_transaction`] runs its statements inside
//! of the store's commit.
//!
//! # Several steps, and events
//! With [`Phases`] an operation of several steps resumes where its process died; with an [`outbox`]
//! its events are committed with its rows; with an [`inbox`] the effect of a message happens once.
//! See the [guide].
//!
//! # Unknown outcomes
//! A [`worker::Worker`] in the same process, or in another on the same store, marks records whose
//! lease expired as unknown, calls your [`Reconcile`] for each, dead-letters those that it cannot
//! settle, and removes what has expired. See `docs/reconcile.md`.
//!
//! # Stopping
//! Keep a clone of the layer, and drain it when the server has stopped accepting requests.
//! Otherwise executions whose clients disconnected end with the process:
//!
//! ```
//! async fn stop(layer: semel::Layer<semel::Sqlite>) {
//!     layer.drain(std::time::Duration::from_secs(30)).await;
//! }
//! ```
//!
//! # Where the layer goes
//! Inside of authentication, so that [`tenant`] can rely on it, and outside of what the operation
//! consists of. Compression and tracing go outside of it: what it stores is replayed byte for byte.
//!
//! # Features
//! On by default: `axum` ([`Operation`] as an extractor, [`Outcome`] as a response),
//! `decompression` (fingerprints of compressed bodies are those of the decoded bodies), `sqlite` (the
//! embedded store), `status` ([`Layer::status`], the status resource) and `worker` (background jobs,
//! reconciling, webhooks).
//!
//! Off by default: `postgres` (the store that many processes share), `dynamodb` (a store without a
//! leader), `sqlx` (transactions of sqlx), `redis` (a replay cache in front of PostgreSQL), `brokers`
//! (NATS JetStream and RabbitMQ), `seal` (encryption at rest) and `client` (the other half of a safe
//! retry: a client that persists its keys, and retries until the outcome is known).

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
pub mod inbox;
pub mod outbox;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "seal")]
pub mod seal;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod store;
#[cfg(feature = "worker")]
pub mod worker;

/// A client that persists its key before it sends, and retries until the outcome is known.
#[cfg(feature = "client")]
pub use semel_client as client;

/// NATS JetStream and RabbitMQ, as sinks of events and as sources of messages.
#[cfg(feature = "brokers")]
pub use semel_brokers as brokers;

pub use semel_core::fingerprint::Options as FingerprintOptions;
pub use semel_core::key::{Dialect, Format as KeyFormat, KeyHasher};
pub use semel_core::{KeyScope, Memory, OnExpired, OperationId, Policy, Resource, Store, Windows};
#[cfg(feature = "dynamodb")]
pub use semel_dynamodb::Dynamo;
pub use semel_http::{
    Builder, CommitWith, Downstream, Drained, InFlight, KeyRule, Layer, OnSchemaChange, Operation,
    Outcome, OutcomeKind, Phases, ReplayMode, Retry, Route, Stopped, WeakKeys, route, tenant,
};
#[cfg(feature = "axum")]
pub use semel_http::{Command, ResumeJob};
#[cfg(feature = "postgres")]
pub use semel_postgres::Postgres;
#[cfg(feature = "sqlite")]
pub use semel_sqlite::Sqlite;
#[cfg(feature = "worker")]
pub use semel_worker::{Reconcile, Worker};

/// Pages on how to build with it. Their examples compile.
#[cfg(all(
    feature = "axum",
    feature = "sqlite",
    feature = "postgres",
    feature = "worker"
))]
pub mod guide {
    #[doc = include_str!("../../../docs/guide/inbox.md")]
    pub mod inbox {}

    #[doc = include_str!("../../../docs/guide/outbox.md")]
    pub mod outbox {}

    #[doc = include_str!("../../../docs/guide/phases.md")]
    pub mod phases {}
}
