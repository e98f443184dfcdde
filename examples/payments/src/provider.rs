//! The provider (a PSP): it moves the money, and it is unreliable on request.
//!
//! | call | does |
//! |---|---|
//! | `POST /charges` | makes a charge; with `Idempotency-Key` at most one per key |
//! | `GET /charges/{id}`, `GET /charges?idempotency_key=`, `GET /charges?operation_id=` | the truth: 200, 404, or 202 while such a request is under way; the operation is that of the metadata, for charges without a key |
//! | `POST /refunds`, `GET /refunds` | pays back some of a charge, at most one refund per key; all refunds |
//! | `GET /ledger`, `GET /ledger/summary` | every charge ever made; what was made more than once |
//! | `GET /ledger/count?reference=` | how often money moved for one thing, as a number |
//! | `GET /pending` | how many charges are under way |
//! | `GET /webhooks/summary` | what became of the events that it sends ([`Webhooks`]) |
//! | `PUT /faults`, `GET /faults` | how it breaks from now on ([`Faults`]) |
//!
//! One request can be made to fail by the header `X-Provider-Fault` with the name of a
//! [`Fault`], or `slow:1500` for a delay in milliseconds. The header wins over what was put.

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
use charges::Desk;
pub use faults::{Fault, Faults};
pub use ledger::{Charge, ChargeRequest, ChargeStatus, Summary};
pub use refunds::{Refund, RefundRequest};
use webhooks::Sender;
pub use webhooks::{Deliveries, Webhooks};

pub(crate) use charges::FAULT_HEADER;
pub(crate) use faults::Named;
pub(crate) use ledger::{MAX_AMOUNT, is_currency};

/// A charge is a few hundred bytes; the rest is room for a long reference.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// How the provider is set up.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// The ledger's file, one JSON object a line. It is read back at the start. Without a file
    /// the ledger is in memory and ends with the server.
    pub ledger: Option<PathBuf>,
    /// How it breaks from the first request on.
    pub faults: Faults,
    /// Whom it tells of its charges.
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
    let desk = Arc::new(Desk::new(ledger, config.faults, running.clone(), webhooks));
    serve::serve(listener, router(desk), running, shutdown).await;
    Ok(())
}

fn router(desk: Arc<Desk>) -> Router {
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
        .with_state(desk)
}

async fn entries(State(desk): State<Arc<Desk>>) -> Json<Vec<Charge>> {
    Json(desk.ledger().entries().to_vec())
}

async fn pending(State(desk): State<Arc<Desk>>) -> Json<usize> {
    Json(desk.pending())
}

async fn summary(State(desk): State<Arc<Desk>>) -> Json<Summary> {
    Json(desk.ledger().summary())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ByReference {
    reference: String,
}

/// What `semel check --count-url` asks.
async fn count(
    State(desk): State<Arc<Desk>>,
    Query(ByReference { reference }): Query<ByReference>,
) -> Json<usize> {
    let moved = |charge: &&Charge| {
        charge.reference == reference && charge.status == ChargeStatus::Succeeded
    };
    Json(desk.ledger().entries().iter().filter(moved).count())
}

async fn deliveries(State(desk): State<Arc<Desk>>) -> Json<Deliveries> {
    Json(desk.deliveries())
}

async fn show_faults(State(desk): State<Arc<Desk>>) -> Json<Faults> {
    Json(desk.switch().current())
}

async fn put_faults(State(desk): State<Arc<Desk>>, body: Bytes) -> Response {
    match serde_json::from_slice::<Faults>(&body) {
        Ok(faults) => match faults.check() {
            Ok(()) => Json(desk.switch().put(faults)).into_response(),
            Err(reason) => problem::invalid(reason),
        },
        Err(error) => problem::unreadable(&error),
    }
}
