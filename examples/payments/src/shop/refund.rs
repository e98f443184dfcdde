//! The story of a refund: a second operation, with phases of its own.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use semel::{Downstream, Operation, Resource, Stopped};
use serde::{Deserialize, Serialize};

use super::books::{NoRefund, Refund, RefundOpened, RefundSettled, Status};
use super::{Account, Shop};
use crate::problem::{invalid, not_found, problem, unreadable};
use crate::provider::MAX_AMOUNT;

/// What is to be paid back: all that is needed to do it without the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RefundOrder {
    pub(super) account: String,
    pub(super) payment_id: String,
    /// In minor units: all that was paid, or a part.
    pub(super) amount: i64,
}

/// Pays back some of a payment.
pub(super) async fn refund(
    operation: Operation,
    shop: Shop,
    order: RefundOrder,
) -> Result<Response, Stopped> {
    let (mut operation, order) = operation.begin(order)?;

    // Takes room for it, so that all refunds together are never more than was paid.
    let opening = shop.books.open_refund(operation.id(), order);
    let refund = match operation.phase("refund_opened", opening).await? {
        RefundOpened::Refund(refund) => refund,
        RefundOpened::Refused(why) => return Ok(why.into_response()),
    };

    let paid_back = operation
        .call("paid_back", Downstream::Idempotent, |key| {
            shop.pay_back(&refund, key)
        })
        .await?;

    operation
        .finish(shop.books.settle_refund(refund, paid_back))
        .await
}

/// `POST /payments/{id}/refunds`
pub(super) async fn create(
    operation: Operation,
    State(shop): State<Shop>,
    Account(account): Account,
    Path(payment_id): Path<String>,
    body: Bytes,
) -> Response {
    /// The body.
    #[derive(Deserialize)]
    struct Wanted {
        amount: i64,
    }
    let Wanted { amount } = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(error) => return unreadable(&error),
    };
    if !(1..=MAX_AMOUNT).contains(&amount) {
        return invalid("amount is from 1 to 1000000000000 minor units");
    }
    let order = RefundOrder {
        account,
        payment_id,
        amount,
    };
    refund(operation, shop, order).await.into_response()
}

impl IntoResponse for RefundSettled {
    fn into_response(self) -> Response {
        let Self(refund) = self;
        let status = match refund.status {
            Status::Succeeded => StatusCode::CREATED,
            Status::Declined | Status::Processing => StatusCode::PAYMENT_REQUIRED,
        };
        let resource = axum::Extension(Resource {
            kind: "refund".into(),
            id: refund.id.as_str().into(),
        });
        (status, resource, Json::<Refund>(refund)).into_response()
    }
}

impl IntoResponse for NoRefund {
    fn into_response(self) -> Response {
        match self {
            Self::NoPayment => not_found("there is no such payment"),
            Self::NotPaid => problem(
                StatusCode::CONFLICT,
                "payment_not_succeeded",
                "only a payment that succeeded can be refunded; ask again under another key",
            ),
            Self::TooMuch { left } => problem(
                StatusCode::UNPROCESSABLE_ENTITY,
                "refund_too_large",
                &format!("{left} is left of this payment"),
            ),
        }
    }
}
