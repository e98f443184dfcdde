//! The shop: the merchant's API with the library.
//!
//! | call | does |
//! |---|---|
//! | `POST /payments` | 201 with the payment, 402 where it was declined, 409 where the reference is paid for already (`pay`) |
//! | `POST /payments/{id}/refunds` | 201 with the refund, 402 where the provider declined it, 404, 409 or 422 where there is nothing to refund (`refund`) |
//! | `GET /payments/{id}` | the payment |
//! | `GET /summary` | counts of payments, refunds, ledger entries, receipts and events |
//! | `GET /healthz` | 204 |
//!
//! `X-Account-Id` names the caller, as an authenticating proxy would set it.
//!
//! The process may die between any two statements. A retry, or the completer of the restarted
//! process, continues where it stopped:
//!
//! ```text
//! POST /payments ──► row opened ──► charged ──► row settled + event + answer ──► 201
//!                                                          │
//!                                     relay ◄──────────────┘
//!                                       ├──► ledger: one entry
//!                                       └──► receipts: one e-mail to be sent
//! ```

mod books;
mod consumers;
mod events;
mod money;
mod pay;
mod refund;

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use semel::outbox::Relay;
use semel::worker::CancellationToken;
use semel::{Layer, Postgres, Sqlite, Store, Worker, tenant};
use tokio::net::TcpListener;

use crate::Error;
use crate::client::Provider;
use crate::problem::{bad_header, not_found, problem};
use crate::serve::{self, Running};
use books::Books;
pub use books::{Payment, Refund, Status, Summary};
pub use events::EventTransport;

/// The header that names the caller.
const ACCOUNT_HEADER: &str = "X-Account-Id";
/// A payment is a few hundred bytes; the rest is room for a long reference.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// Longer than a card payment takes, shorter than a person waits.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the lease of a process that died stays valid.
const LEASE: Duration = Duration::from_secs(10);
/// How long a stopping shop waits for payments whose clients disconnected.
const DRAIN: Duration = Duration::from_secs(5);
/// How often an idle relay looks for events.
const RELAY_EVERY: Duration = Duration::from_millis(100);

/// The database of the shop's books and of Semel's records: one for both, so that one commit writes
/// both.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Database {
    /// A file.
    Sqlite(PathBuf),
    /// A server, by its `postgres://` address.
    Postgres(String),
}

/// The configuration of the shop.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The provider's address, `http://host:port`.
    pub provider: String,
    /// The database of the books and the records.
    pub database: Database,
    /// How events reach their consumers.
    pub events: EventTransport,
    /// How long the lease of a process that died stays valid.
    pub lease: Duration,
    /// The name of this process. A restarted process with the same name continues at once with the
    /// events that it had claimed; two concurrent processes need two names.
    pub name: String,
}

impl Config {
    /// A shop that charges through the provider at this address, with consumers in its own process.
    pub fn new(provider: impl Into<String>, database: Database) -> Self {
        Self {
            provider: provider.into(),
            database,
            events: EventTransport::InProcess,
            lease: LEASE,
            name: "shop".to_owned(),
        }
    }
}

/// The state of the handlers.
#[derive(Clone)]
struct Shop {
    books: Arc<dyn Books>,
    provider: Provider,
}

/// Serves the shop until `shutdown` ends, and returns when its requests and jobs have ended too.
///
/// # Errors
/// Where the database cannot be opened, or an address is invalid.
///
/// # Cancellation
/// Like a crash: the next process continues.
pub async fn serve(
    listener: TcpListener,
    config: Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    match &config.database {
        Database::Sqlite(path) => {
            let store = Sqlite::open(path).await.map_err(Error::open)?;
            serve_sqlite(listener, store, path, &config, shutdown).await
        }
        Database::Postgres(url) => {
            let store = Postgres::open(url).await.map_err(Error::open)?;
            let books = books::postgres::open(store.clone(), url).await?;
            run(listener, store, Arc::new(books), &config, shutdown).await
        }
    }
}

/// Like [`serve`], with the books in the SQLite file of a store that the caller has opened: with
/// its own options, or to trace its statements. `config.database` is not used.
///
/// # Errors
/// See [`serve`].
///
/// # Cancellation
/// See [`serve`].
pub async fn serve_sqlite(
    listener: TcpListener,
    store: Sqlite,
    path: &FilePath,
    config: &Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    let books = books::sqlite::open(store.clone(), path).await?;
    run(listener, store, Arc::new(books), config, shutdown).await
}

async fn run<S>(
    listener: TcpListener,
    store: S,
    books: Arc<dyn Books>,
    config: &Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error>
where
    S: Store + Clone,
{
    let provider = Provider::new(&config.provider, PROVIDER_TIMEOUT)?;
    let shop = Shop { books, provider };
    let layer = guard(store.clone(), config.lease);

    // The relay publishes events, and the completers finish operations whose clients do not retry.
    let sink = config.events.sink(&shop).await?;
    let relay = Relay::new(store.clone(), sink).every(RELAY_EVERY);
    let worker = Worker::new(store)
        .with_job(Arc::new(relay.owner(config.name.as_str())))
        .with_job(Arc::new(completer(
            &layer,
            &shop,
            "create_payment",
            pay::pay,
        )?))
        .with_job(Arc::new(completer(
            &layer,
            &shop,
            "refund_payment",
            refund::refund,
        )?));

    let ending = CancellationToken::new();
    let working = tokio::spawn(worker.run(ending.clone()));
    let consuming = config.events.consume(&shop, &ending);
    serve::serve(listener, router(shop, &layer), Running::default(), shutdown).await;
    layer.drain(DRAIN).await;
    ending.cancel();
    working.await?;
    consuming.join_all().await;
    Ok(())
}

/// The guarded routes.
fn guard<S: Store>(store: S, lease: Duration) -> Layer<S> {
    Layer::new(store)
        .tenant(tenant::header(ACCOUNT_HEADER))
        .route("POST /payments", |route| {
            route.operation("create_payment").phases().lease(lease)
        })
        .route("POST /payments/{id}/refunds", |route| {
            route.operation("refund_payment").phases().lease(lease)
        })
}

/// Finishes operations whose clients do not retry.
fn completer<S, T, F>(
    layer: &Layer<S>,
    shop: &Shop,
    operation: &str,
    run: fn(semel::Operation, Shop, T) -> F,
) -> Result<semel::ResumeJob<S>, Error>
where
    S: Store,
    T: serde::de::DeserializeOwned + Send + 'static,
    F: Future<Output: IntoResponse> + Send + 'static,
{
    let shop = shop.clone();
    let completer = layer.resume_job(operation, move |operation, order| {
        run(operation, shop.clone(), order)
    });
    Ok(completer?)
}

fn router<S: Store>(shop: Shop, layer: &Layer<S>) -> Router {
    Router::new()
        .route("/payments", post(pay::create))
        .route("/payments/{id}/refunds", post(refund::create))
        .layer(layer.clone())
        // Reading needs no key.
        .route("/payments/{id}", get(find_payment))
        .route("/summary", get(summary))
        .route("/healthz", get(|| async { StatusCode::NO_CONTENT }))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(shop)
}

/// The calling account. On guarded routes the layer has checked the header.
struct Account(String);

impl<S: Sync> FromRequestParts<S> for Account {
    type Rejection = Response;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Response> {
        let account = tenant::header(ACCOUNT_HEADER)(head);
        let account =
            account.ok_or_else(|| bad_header("send the calling account in X-Account-Id"))?;
        Ok(Self(account.into()))
    }
}

async fn find_payment(
    State(shop): State<Shop>,
    Account(account): Account,
    Path(id): Path<String>,
) -> Response {
    match shop.books.find_payment(id, account).await {
        Ok(Some(payment)) => Json(payment).into_response(),
        Ok(None) => not_found("there is no such payment"),
        Err(error) => unreadable(&error),
    }
}

async fn summary(State(shop): State<Shop>) -> Response {
    match shop.books.summary().await {
        Ok(summary) => Json(summary).into_response(),
        Err(error) => unreadable(&error),
    }
}

fn unreadable(error: &books::BooksError) -> Response {
    tracing::error!(%error, "the books cannot be read");
    let detail = "the books cannot be read";
    problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
}
