//! The shop: the same business, told with the library.
//!
//! | call | does |
//! |---|---|
//! | `POST /payments` | 201 with the payment, 402 where it was declined, 409 where the reference is paid for already (the story is `pay`) |
//! | `POST /payments/{id}/refunds` | 201 with the refund, 402 where the provider declined it, 404, 409 or 422 where there is nothing to refund (the story is `refund`) |
//! | `GET /payments/{id}` | the payment |
//! | `GET /summary` | how much there is of everything |
//! | `GET /healthz` | 204 |
//!
//! Who is calling is in `X-Account-Id`, as a proxy in front would have set it.
//!
//! The process may die between any two statements. Whoever comes next, a retry or this process
//! started again, goes on where it stopped:
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
#[cfg(feature = "failpoints")]
mod kill_point;
mod money;
mod pay;
mod refund;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use semel::outbox::Outbox;
use semel::{
    CancellationToken, Inbox, Inspect, Layer, Maintain, Postgres, Relay, Sqlite, Store, Worker,
    tenant,
};
use tokio::net::TcpListener;

use crate::Error;
use crate::client::Provider;
use crate::problem::{bad_header, not_found, problem};
use crate::serve::{self, Running};
use books::Books;
pub use books::{Payment, Refund, Status, Summary};
pub use events::Way;

/// Who is calling.
const ACCOUNT_HEADER: &str = "X-Account-Id";
/// A payment is a few hundred bytes; the rest is room for a long reference.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// Longer than a card payment takes, shorter than a person waits.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a process is missed before somebody else goes on with what it had begun.
const LEASE: Duration = Duration::from_secs(10);
/// How long a stopping shop waits for payments whose clients went away.
const DRAIN: Duration = Duration::from_secs(5);
/// How long a customer's receipt waits for a relay that has nothing to do.
const RELAY_EVERY: Duration = Duration::from_millis(100);

/// Where the shop keeps its books, and Semel its records: one database for both, or they could
/// not be written in one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Database {
    /// A file.
    Sqlite(PathBuf),
    /// A server, by its `postgres://` address.
    Postgres(String),
}

/// How the shop is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The provider's address, `http://host:port`.
    pub provider: String,
    /// Where everything is kept.
    pub database: Database,
    /// How events reach their consumers.
    pub events: Way,
    /// How long a silent process is thought to be alive.
    pub lease: Duration,
    /// What this process is called. One that is started again under its name goes on at once with
    /// the events that it held; two at a time need two names.
    pub name: String,
}

impl Config {
    /// A shop that charges through the provider at this address, and tells its consumers itself.
    pub fn new(provider: impl Into<String>, database: Database) -> Self {
        Self {
            provider: provider.into(),
            database,
            events: Way::InProcess,
            lease: LEASE,
            name: "shop".to_owned(),
        }
    }
}

/// What every handler needs.
#[derive(Clone)]
struct Shop {
    books: Arc<dyn Books>,
    provider: Provider,
}

/// Serves the shop until `shutdown` ends, and returns when what it has begun has ended too.
///
/// # Errors
/// Where the database cannot be opened, or an address makes no sense.
///
/// # Cancellation
/// As if the process had died: whoever starts next goes on.
pub async fn serve(
    listener: TcpListener,
    config: Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    match &config.database {
        Database::Sqlite(path) => {
            #[cfg(feature = "failpoints")]
            kill_point::watch();
            let store = Sqlite::open(path).await.map_err(Error::open)?;
            let books = books::sqlite::open(store.clone(), path).await?;
            run(listener, store, Arc::new(books), &config, shutdown).await
        }
        Database::Postgres(url) => {
            let store = Postgres::open(url).await.map_err(Error::open)?;
            let books = books::postgres::open(store.clone(), url).await?;
            run(listener, store, Arc::new(books), &config, shutdown).await
        }
    }
}

async fn run<S>(
    listener: TcpListener,
    store: S,
    books: Arc<dyn Books>,
    config: &Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error>
where
    S: Store + Maintain + Inspect + Inbox + Outbox + Clone,
{
    let provider = Provider::new(&config.provider, PROVIDER_TIMEOUT)?;
    let shop = Shop { books, provider };
    let layer = guard(store.clone(), config.lease);

    // Events go out, and clients that never come back are not waited for.
    let sink = config.events.sink(&shop).await?;
    let relay = Relay::new(store.clone(), sink).every(RELAY_EVERY);
    let worker = Worker::new(store)
        .also(Arc::new(relay.owner(config.name.as_str())))
        .also(Arc::new(completer(
            &layer,
            &shop,
            "create_payment",
            pay::pay,
        )?))
        .also(Arc::new(completer(
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

/// What is guarded, and how.
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

/// Tells a story to its end where nobody comes back to hear it.
fn completer<S, T, F>(
    layer: &Layer<S>,
    shop: &Shop,
    operation: &str,
    story: fn(semel::Operation, Shop, T) -> F,
) -> Result<semel::Completer<S>, Error>
where
    S: Store + Maintain,
    T: serde::de::DeserializeOwned + Send + 'static,
    F: Future<Output: IntoResponse> + Send + 'static,
{
    let shop = shop.clone();
    let completer = layer.completer(operation, move |operation, wish| {
        story(operation, shop.clone(), wish)
    });
    Ok(completer?)
}

fn router<S: Store>(shop: Shop, layer: &Layer<S>) -> Router {
    let router = Router::new()
        .route("/payments", post(pay::create))
        .route("/payments/{id}/refunds", post(refund::create))
        .layer(layer.clone())
        // Looking needs no key.
        .route("/payments/{id}", get(find_payment))
        .route("/summary", get(summary))
        .route("/healthz", get(|| async { StatusCode::NO_CONTENT }))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(shop);
    #[cfg(feature = "failpoints")]
    let router = router.merge(kill_point::router());
    router
}

/// Who is calling: the layer has checked it where it matters.
struct Account(String);

impl<S: Sync> FromRequestParts<S> for Account {
    type Rejection = Response;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Response> {
        let account = tenant::header(ACCOUNT_HEADER)(head);
        let account = account.ok_or_else(|| bad_header("X-Account-Id names who is calling"))?;
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

fn unreadable(error: &books::Failed) -> Response {
    tracing::error!(%error, "the books cannot be read");
    let detail = "the books cannot be read";
    problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
}
