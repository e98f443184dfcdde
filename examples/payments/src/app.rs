//! The merchant's API: it keeps payments in SQLite and charges through the provider.
//!
//! | call | does |
//! |---|---|
//! | `POST /payments` | 201 with the payment, 402 where it was declined, 503 where the provider was not reached, 504 where nobody knows |
//! | `POST /unkeyed/payments` | the same, with no key for the provider and no look at what was charged before: a second execution is a second charge, and the ledger shows it. Served only where it is asked for |
//! | `GET /payments/{id}` | the payment as the service knows it |
//! | `GET /payments/by-operation/{operation_id}` | the truth about an operation, asked from the provider if need be: 200, 402 where it was declined, 404, or 202 while it is undecided |
//! | `GET /summary` | how many payments there are, and how often the handler began on one |
//! | `GET /healthz` | 204 |
//!
//! All it knows of a gateway in front of it are headers. `Semel-Operation-Id` names the
//! operation and `Semel-Downstream-Key` the key for its own call to the provider; it answers
//! with `Semel-Outcome` where the status code does not say whether something happened.
//! `X-Demo-Fault` is handed on to the provider, so that one `curl` can break one payment.
//!
//! **Invariant:** it never calls the provider twice by itself. Whether to try again is for the
//! caller to decide, who knows whether that is safe.

mod book;
mod payments;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::routing::{get, post};
use tokio::net::TcpListener;

use crate::Error;
use crate::client::Provider;
use crate::serve::{self, Running};
pub use book::{Payment, PaymentStatus, Summary};
use payments::Service;

/// A payment is a few hundred bytes; the rest is room for fields that are not looked at.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// Longer than a card payment takes, shorter than a person waits.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(10);

/// How the service is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The provider's address, `http://host:port`.
    pub provider: String,
    /// The file of the payments. Without one they are in memory and end with the server. Only
    /// one process may use it: at the start, what another has under way would be called unknown.
    pub database: Option<PathBuf>,
    /// How long a call to the provider may take, from connecting to the last byte.
    pub provider_timeout: Duration,
    /// Whether the gateway's request headers are heeded. Without them every request is a new
    /// payment with a new key for the provider, as in a service that was never told of a
    /// gateway: then a second execution is a second charge, and the ledger shows it.
    pub heeds_gateway: bool,
    /// Whether `POST /unkeyed/payments` is served.
    pub unkeyed: bool,
}

impl Config {
    /// A service with its payments in memory, that charges through the provider at this address.
    pub fn new(provider: impl Into<String>) -> Self {
        Self {
            provider: provider.into(),
            database: None,
            provider_timeout: PROVIDER_TIMEOUT,
            heeds_gateway: true,
            unkeyed: false,
        }
    }
}

/// Serves the merchant's API until `shutdown` ends, and returns when its requests have ended too.
///
/// The provider need not be up.
///
/// # Errors
/// Where the database cannot be opened or the provider's address is not a URL.
///
/// # Cancellation
/// Dropping the future closes the listener. Connections go on in tasks of their own: end
/// `shutdown` instead.
pub async fn serve(
    listener: TcpListener,
    config: Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    let running = Running::default();
    let provider = Provider::new(&config.provider, config.provider_timeout)?;
    let path = config.database;
    let book = tokio::task::spawn_blocking(move || book::Book::open(path.as_deref())).await??;
    let service = Arc::new(Service {
        book,
        provider,
        heeds_gateway: config.heeds_gateway,
        running: running.clone(),
    });
    serve::serve(listener, router(service, config.unkeyed), running, shutdown).await;
    Ok(())
}

fn router(service: Arc<Service>, unkeyed: bool) -> Router {
    let mut router = Router::new();
    if unkeyed {
        router = router.route("/unkeyed/payments", post(payments::create_unkeyed));
    }
    router
        .route("/payments", post(payments::create))
        .route("/payments/{id}", get(payments::find))
        .route(
            "/payments/by-operation/{operation_id}",
            get(payments::find_by_operation),
        )
        .route("/summary", get(payments::summary))
        .route("/healthz", get(|| async { StatusCode::NO_CONTENT }))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(service)
}
