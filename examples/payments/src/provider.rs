//! The payment provider: it moves the money, and fails on request.
//!
//! | call | does |
//! |---|---|
//! | `POST /charges` | makes a charge; with `Idempotency-Key` at most one per key |
//! | `GET /charges/{id}`, `GET /charges?idempotency_key=`, `GET /charges?operation_id=` | the charge: 200, 404, or 202 while such a request is under way; `operation_id` is that of the metadata, for charges without a key |
//! | `POST /refunds`, `GET /refunds` | refunds a charge or a part of it, at most once per key; all refunds |
//! | `GET /ledger`, `GET /ledger/summary` | every charge; the duplicates |
//! | `GET /ledger/count?reference=` | the number of successful charges with a reference |
//! | `GET /pending` | how many charges are under way |
//! | `GET /webhooks/summary` | counts of sent events ([`Webhooks`]) |
//! | `PUT /faults`, `GET /faults` | how it fails from now on ([`Faults`]) |
//!
//! The header `X-Provider-Fault` makes one request fail: the name of a [`Fault`], or `slow:1500` for
//! a delay in milliseconds. It takes precedence over `PUT /faults`.

mod charges;
mod faults;
mod ledger;
mod refunds;
mod webhooks;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use bytes::Bytes;
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::Error;
use crate::problem;
use crate::serve::{self, Running};
use charges::ProviderState;
pub use faults::{Fault, Faults};
pub use ledger::{Charge, ChargeRequest, ChargeStatus, Summary};
pub use refunds::{Refund, RefundRequest};
use webhooks::Sender;
pub use webhooks::{Deliveries, Webhooks};

pub(crate) use charges::FAULT_HEADER;
pub(crate) use faults::FaultHeader;
pub(crate) use ledger::{MAX_AMOUNT, is_currency};

/// A charge is a few hundred bytes; the rest is room for a long reference.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// The configuration of the provider.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// The ledger's file, one JSON object a line, which is read at the start; in memory without one.
    pub ledger: Option<PathBuf>,
    /// How it fails from the first request on.
    pub faults: Faults,
    /// Where it sends events about its charges.
    pub webhooks: Option<Webhooks>,
}

impl Config {
    /// A provider whose ledger is in this file.
    pub fn with_ledger(path: impl Into<PathBuf>) -> Self {
        Self {
            ledger: Some(path.into()),
            ..Self::default()
        }
    }
}

/// Serves the provider until `shutdown` ends, and returns when its requests have ended too.
///
/// Requests that `slow` still holds are cut on shutdown, without a charge.
///
/// # Errors
/// Where the ledger cannot be opened or holds something else than charges.
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
    let path = config.ledger;
    let ledger = tokio::task::spawn_blocking(move || ledger::Ledger::open(path)).await??;
    let webhooks = config
        .webhooks
        .map(|webhooks| Sender::new(webhooks, running.clone()))
        .transpose()?;
    let state = Arc::new(ProviderState::new(
        ledger,
        config.faults,
        running.clone(),
        webhooks,
    ));
    serve::serve(listener, router(state), running, shutdown).await;
    Ok(())
}

fn router(state: Arc<ProviderState>) -> Router {
    Router::new()
        .route("/charges", post(charges::create).get(charges::find_by_name))
        .route("/charges/{id}", get(charges::find))
        .route("/refunds", post(refunds::create).get(refunds::list))
        .route("/pending", get(pending))
        .route("/ledger", get(entries))
        .route("/ledger/summary", get(summary))
        .route("/ledger/count", get(count))
        .route("/webhooks/summary", get(deliveries))
        .route("/faults", put(put_faults).get(show_faults))
        .route("/healthz", get(|| async { StatusCode::NO_CONTENT }))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(state)
}

async fn entries(State(state): State<Arc<ProviderState>>) -> Json<Vec<Charge>> {
    Json(state.ledger().entries().to_vec())
}

async fn pending(State(state): State<Arc<ProviderState>>) -> Json<usize> {
    Json(state.pending())
}

async fn summary(State(state): State<Arc<ProviderState>>) -> Json<Summary> {
    Json(state.ledger().summary())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ByReference {
    reference: String,
}

/// For `semel check --count-url`.
async fn count(
    State(state): State<Arc<ProviderState>>,
    Query(ByReference { reference }): Query<ByReference>,
) -> Json<usize> {
    let moved = |charge: &&Charge| {
        charge.reference == reference && charge.status == ChargeStatus::Succeeded
    };
    Json(state.ledger().entries().iter().filter(moved).count())
}

async fn deliveries(State(state): State<Arc<ProviderState>>) -> Json<Deliveries> {
    Json(state.deliveries())
}

async fn show_faults(State(state): State<Arc<ProviderState>>) -> Json<Faults> {
    Json(state.switch().current())
}

async fn put_faults(State(state): State<Arc<ProviderState>>, body: Bytes) -> Response {
    match serde_json::from_slice::<Faults>(&body) {
        Ok(faults) => match faults.check() {
            Ok(()) => Json(state.switch().put(faults)).into_response(),
            Err(reason) => problem::invalid(reason),
        },
        Err(error) => problem::unreadable(&error),
    }
}
