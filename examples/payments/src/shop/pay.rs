//! The operation `create_payment`.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use semel::{Downstream, Operation, Resource, Stopped};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::books::{OpenPaymentResult, Payment, SettledPayment, Status};
use super::{Account, Shop};
use crate::problem::{PROBLEM_JSON, invalid, unreadable};
use crate::provider::{MAX_AMOUNT, is_currency};

/// The provider's limit.
const MAX_REFERENCE_BYTES: usize = 255;

/// What is paid for. It is stored with the record, so that the completer can finish the payment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) account: String,
    /// The merchant's reference, which is paid for once.
    pub(super) merchant_reference: String,
    /// In minor units.
    pub(super) amount: i64,
    pub(super) currency: String,
}

/// Pays for an order. Every attempt runs this from the top; a phase that was committed is not run
/// again, and returns its stored result.
pub(super) async fn pay(
    operation: Operation,
    shop: Shop,
    order: Order,
) -> Result<Response, Stopped> {
    let (mut operation, order) = operation.begin(order)?;

    // The row comes first: after a crash it shows what the charge is for.
    let opening = shop.books.open_payment(operation.id(), order);
    let payment = match operation.phase("payment_opened", opening).await? {
        OpenPaymentResult::Payment(payment) => payment,
        OpenPaymentResult::ReferenceTaken { by, same_terms } => {
            return Ok(reference_taken(&by, same_terms));
        }
    };

    // The key is the same on every attempt. A charge whose answer was lost is requested again, and
    // the provider makes it once.
    let charge = operation
        .call("charged", Downstream::Idempotent, |key| {
            shop.charge(&payment, key)
        })
        .await?;

    // One commit: the outcome, its event and the client's response.
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
        /// The request body. Other fields are ignored.
        #[derive(Deserialize)]
        struct Body {
            amount: i64,
            currency: String,
            merchant_reference: String,
        }
        let body: Body = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
        let order = Self {
            account,
            merchant_reference: body.merchant_reference,
            amount: body.amount,
            currency: body.currency,
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

impl IntoResponse for SettledPayment {
    fn into_response(self) -> Response {
        let Self(payment) = self;
        let status = match payment.status {
            Status::Succeeded => StatusCode::CREATED,
            Status::Declined | Status::Processing => StatusCode::PAYMENT_REQUIRED,
        };
        let location = [(header::LOCATION, format!("/payments/{}", payment.id))];
        // Shows operators which payment the operation created.
        let resource = axum::Extension(Resource {
            kind: "payment".into(),
            id: payment.id.as_str().into(),
        });
        (status, location, resource, Json::<Payment>(payment)).into_response()
    }
}

/// The second guard: another key has paid for this reference, from a client that lost its key or
/// from a second client. The response names that payment, even for the same amount, because a new
/// key means a new request. The response is final for its key.
fn reference_taken(by: &str, same_terms: bool) -> Response {
    let conflict = StatusCode::CONFLICT;
    let detail = if same_terms {
        "this reference is paid for, or being paid for, under another key"
    } else {
        "this reference was used under another key, for another amount"
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
