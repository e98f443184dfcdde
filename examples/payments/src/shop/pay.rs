//! The story of a payment.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use semel::{Downstream, Operation, Resource, Stopped};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::books::{Opened, Payment, Settled, Status};
use super::{Account, Shop};
use crate::problem::{PROBLEM_JSON, invalid, unreadable};
use crate::provider::{MAX_AMOUNT, is_currency};

/// As much of a reference as the provider takes.
const MAX_REFERENCE_BYTES: usize = 255;

/// What is paid for: all that is needed to do it without the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) account: String,
    /// What the merchant calls it. One reference is paid for once.
    pub(super) merchant_reference: String,
    /// In minor units.
    pub(super) amount: i64,
    pub(super) currency: String,
}

/// Pays for an order. This runs from the top on every attempt; a phase that is over is not run
/// again, and gives what it found.
pub(super) async fn pay(
    operation: Operation,
    shop: Shop,
    order: Order,
) -> Result<Response, Stopped> {
    let (mut operation, order) = operation.begin(order)?;

    // Our own row comes first: after a crash it says what the charge is for.
    let opening = shop.books.open_payment(operation.id(), order);
    let payment = match operation.phase("payment_opened", opening).await? {
        Opened::Payment(payment) => payment,
        Opened::ReferenceTaken { by, same_terms } => return Ok(taken(&by, same_terms)),
    };

    // The key is the same on every attempt, and the provider knows it again. So a charge whose
    // answer was lost is asked for once more, and is still one charge.
    let charge = operation
        .call("charged", Downstream::Idempotent, |key| {
            shop.charge(&payment, key)
        })
        .await?;

    // What it came to, the event that tells of it, and the client's answer: one commit.
    operation
        .finish(shop.books.settle_payment(payment, charge))
        .await
}

/// `POST /payments`
pub(super) async fn create(
    operation: Operation,
    State(shop): State<Shop>,
    Account(account): Account,
    body: Bytes,
) -> Response {
    match Order::read(account, &body) {
        Ok(order) => pay(operation, shop, order).await.into_response(),
        Err(refusal) => *refusal,
    }
}

impl Order {
    fn read(account: String, body: &[u8]) -> Result<Self, Box<Response>> {
        /// The body. Further fields are the client's own and not looked at.
        #[derive(Deserialize)]
        struct Wanted {
            amount: i64,
            currency: String,
            merchant_reference: String,
        }
        let wanted: Wanted = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
        let order = Self {
            account,
            merchant_reference: wanted.merchant_reference,
            amount: wanted.amount,
            currency: wanted.currency,
        };
        if !(1..=MAX_AMOUNT).contains(&order.amount) {
            return Err(invalid("amount is from 1 to 1000000000000 minor units").into());
        }
        if !is_currency(&order.currency) {
            return Err(invalid("currency is three capital letters").into());
        }
        if !(1..=MAX_REFERENCE_BYTES).contains(&order.merchant_reference.len()) {
            return Err(invalid("merchant_reference is from 1 to 255 bytes").into());
        }
        Ok(order)
    }
}

impl IntoResponse for Settled {
    fn into_response(self) -> Response {
        let Self(payment) = self;
        let status = match payment.status {
            Status::Succeeded => StatusCode::CREATED,
            Status::Declined | Status::Processing => StatusCode::PAYMENT_REQUIRED,
        };
        let location = [(header::LOCATION, format!("/payments/{}", payment.id))];
        // For operators: which payment an operation is about.
        let resource = axum::Extension(Resource {
            kind: "payment".into(),
            id: payment.id.as_str().into(),
        });
        (status, location, resource, Json::<Payment>(payment)).into_response()
    }
}

/// The second fence. Another key asked for the same reference: a client that lost its key, or a
/// second one that does not know of the first. Also where the terms are the same it is told of the
/// payment instead of being given its answer: the key is what says that two requests are one, and
/// this one says that they are two. The answer is final for its key.
fn taken(by: &str, same_terms: bool) -> Response {
    let conflict = StatusCode::CONFLICT;
    let detail = if same_terms {
        "this reference is paid for, or being paid for, under another key"
    } else {
        "this reference was used under another key for another amount"
    };
    let problem = json!({
        "type": "about:blank",
        "title": "Conflict",
        "status": conflict.as_u16(),
        "code": "merchant_reference_taken",
        "detail": detail,
        "payment_id": by,
    });
    let headers = [
        (header::CONTENT_TYPE, PROBLEM_JSON.to_owned()),
        (header::LOCATION, format!("/payments/{by}")),
    ];
    (conflict, headers, problem.to_string()).into_response()
}
