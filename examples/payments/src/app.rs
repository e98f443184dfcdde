//! The merchant's API: it keeps payments in SQLite and charges through the provider.
//!
//! | call | does |
//! |---|---|
//! | `POST /payments` | 201 with the payment, 402 where it was declined, 503 where the provider was not reached, 504 where the outcome is unknown |
//! | `POST /unkeyed/payments` | the same without a key for the provider, so that a second execution is a second charge. Served only if enabled |
//! | `GET /payments/{id}` | the payment as the service knows it |
//! | `GET /payments/by-operation/{operation_id}` | the outcome of an operation, looked up at the provider if needed: 200, 402 where it was declined, 404, or 202 while it is undecided |
//! | `GET /summary` | how many payments there are, and how often the handler began on one |
//! | `GET /healthz` | 204 |
//!
//! It uses only headers of the gateway in front of it. `Semel-Operation-Id` names the operation, and
//! `Semel-Downstream-Key` is the key for the call to the provider; the service answers with
//! `Semel-Outcome` where the status code does not say whether something was executed.
//! `X-Demo-Fault` is passed on to the provider, so that one `curl` can break one payment.
//!
//! **Invariant:** it never retries the call to the provider. The caller decides about a retry.

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

/// A payment is a few hundred bytes; the rest is for fields that the service ignores.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// Longer than a card payment takes, shorter than a person waits.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration of the service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The provider's address, `http://host:port`.
    pub provider: String,
    /// The file of the payments; in memory without one. Only one process may use it: at the start
    /// all payments under way become unknown.
    pub database: Option<PathBuf>,
    /// How long a call to the provider may take, from connecting to the last byte.
    pub provider_timeout: Duration,
    /// Whether the gateway's request headers are used. Without them every request is a new payment
    /// with a new key for the provider, so that a second execution is a second charge.
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
