//! `POST /refunds`. Each refund is an entry of the ledger.

use std::io;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::charges::{ProviderState, fault_of, key_of, key_reused, ledger_failed, replayed};
use super::faults::{AppliedFault, Fault};
use super::ledger::{ChargeStatus, MAX_AMOUNT};
use crate::problem::{bad_header, invalid, problem, unreadable};
use crate::serve::cut;

/// The body of `POST /refunds`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefundRequest {
    /// The refunded charge.
    pub charge_id: String,
    /// In minor units: all of the charge, or a part.
    pub amount: i64,
}

/// A refund in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refund {
    /// The id at the provider.
    pub id: String,
    /// The idempotency key of the request, if any.
    pub idempotency_key: Option<String>,
    /// The refunded charge.
    pub charge_id: String,
    /// In minor units.
    pub amount: i64,
    /// That of the charge.
    pub currency: String,
    /// Whether money moved.
    pub status: ChargeStatus,
}

impl Refund {
    pub(super) fn answers(&self, request: &RefundRequest) -> bool {
        self.charge_id == request.charge_id && self.amount == request.amount
    }
}

/// The result of a refund request.
pub(super) enum RefundResult {
    /// A new entry was written.
    Created(Refund),
    /// The key was used before for the same request, with this result.
    Existing(Refund),
    /// The key was used before for another request.
    KeyReused,
    /// There is no such charge, or it was declined.
    NothingPaid,
    /// More than is left of the charge.
    TooMuch,
}

pub(super) async fn create(
    State(state): State<Arc<ProviderState>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (key, named) = match (key_of(&headers), fault_of(&headers)) {
        (Ok(key), Ok(named)) => (key, named),
        (Err(reason), _) | (_, Err(reason)) => return bad_header(reason),
    };
    let request = match serde_json::from_slice::<RefundRequest>(&body) {
        Ok(request) => request,
        Err(error) => return unreadable(&error),
    };
    if !(1..=MAX_AMOUNT).contains(&request.amount) {
        return invalid("amount is from 1 to 1000000000000 minor units");
    }
    let apply = state.switch().apply(named);
    let work = perform(Arc::clone(&state), request, key, apply);
    state.running().detach(work).await.unwrap_or_else(cut)
}

pub(super) async fn list(State(state): State<Arc<ProviderState>>) -> Json<Vec<Refund>> {
    Json(state.ledger().refunds().to_vec())
}

async fn perform(
    state: Arc<ProviderState>,
    request: RefundRequest,
    key: Option<String>,
    mut apply: AppliedFault,
) -> Response {
    let status = match state.decide(&mut apply).await {
        Ok(status) => status,
        Err(broken) => return *broken,
    };
    // On a thread, as for charges.
    let refunding = tokio::task::spawn_blocking(move || {
        let refunded = state.ledger().refund(request, key, status)?;
        state.sync_ledger()?;
        Ok(refunded)
    });
    let refunded: Result<io::Result<RefundResult>, _> = refunding.await;
    match refunded {
        Ok(Ok(_)) if apply.fault == Fault::ResetAfterSuccess => cut(),
        Ok(Ok(RefundResult::Created(refund))) => answer(&refund),
        Ok(Ok(RefundResult::Existing(refund))) => replayed(answer(&refund)),
        Ok(Ok(RefundResult::KeyReused)) => key_reused("this key was used for another refund"),
        Ok(Ok(RefundResult::NothingPaid)) => {
            invalid("there is no such charge, or nothing was paid")
        }
        Ok(Ok(RefundResult::TooMuch)) => problem(
            StatusCode::UNPROCESSABLE_ENTITY,
            "refund_too_large",
            "less than that is left of the charge",
        ),
        Ok(Err(error)) => ledger_failed(&error),
        Err(error) => ledger_failed(&error),
    }
}

fn answer(refund: &Refund) -> Response {
    let status = match refund.status {
        ChargeStatus::Succeeded => StatusCode::CREATED,
        ChargeStatus::Declined => StatusCode::PAYMENT_REQUIRED,
    };
    (status, Json(refund)).into_response()
}
