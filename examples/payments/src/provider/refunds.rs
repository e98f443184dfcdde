//! `POST /refunds`: money that goes back, each time an entry of its own in the ledger.

use std::io;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::charges::{Desk, fault_of, key_of, key_reused, ledger_failed, replayed};
use super::faults::{Fault, Strike};
use super::ledger::{ChargeStatus, MAX_AMOUNT};
use crate::problem::{bad_header, invalid, problem, unreadable};
use crate::serve::cut;

/// What a refund is asked for with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefundRequest {
    /// Of which charge.
    pub charge_id: String,
    /// In minor units: all of the charge, or a part.
    pub amount: i64,
}

/// An entry of the ledger by which money moves back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refund {
    /// The provider's name for it.
    pub id: String,
    /// The key it was asked for under, if any.
    pub idempotency_key: Option<String>,
    /// Of which charge.
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

/// What became of a request.
pub(super) enum Refunded {
    /// A new entry was written.
    Made(Refund),
    /// The key had been used for the same request, and this came of it.
    Before(Refund),
    /// The key had been used for another request.
    KeyReused,
    /// There is no such charge, or it was declined.
    NothingPaid,
    /// More than is left of the charge.
    TooMuch,
}

pub(super) async fn create(
    State(desk): State<Arc<Desk>>,
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
    let strike = desk.switch().strike(named);
    let work = perform(Arc::clone(&desk), request, key, strike);
    desk.running().detach(work).await.unwrap_or_else(cut)
}

pub(super) async fn list(State(desk): State<Arc<Desk>>) -> Json<Vec<Refund>> {
    Json(desk.ledger().refunds().to_vec())
}

async fn perform(
    desk: Arc<Desk>,
    request: RefundRequest,
    key: Option<String>,
    mut strike: Strike,
) -> Response {
    let status = match desk.decide(&mut strike).await {
        Ok(status) => status,
        Err(broken) => return *broken,
    };
    // On a thread, and one at a time, as charges are.
    let refunding = tokio::task::spawn_blocking(move || {
        let refunded = desk.ledger().refund(request, key, status)?;
        desk.durable()?;
        Ok(refunded)
    });
    let refunded: Result<io::Result<Refunded>, _> = refunding.await;
    match refunded {
        Ok(Ok(_)) if strike.fault == Fault::ResetAfterSuccess => cut(),
        Ok(Ok(Refunded::Made(refund))) => answer(&refund),
        Ok(Ok(Refunded::Before(refund))) => replayed(answer(&refund)),
        Ok(Ok(Refunded::KeyReused)) => key_reused("this key was used for another refund"),
        Ok(Ok(Refunded::NothingPaid)) => invalid("there is no such charge, or nothing was paid"),
        Ok(Ok(Refunded::TooMuch)) => problem(
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
