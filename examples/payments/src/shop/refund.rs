//! The operation `refund_payment`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use semel::{Downstream, Operation, Resource, Stopped};
use serde::{Deserialize, Serialize};

use super::books::{OpenRefundResult, Refund, RefundRefusal, SettledRefund, Status};
use super::{Account, Shop};
use crate::problem::{invalid, not_found, problem, unreadable};
use crate::provider::MAX_AMOUNT;

/// What is refunded. It is stored with the record, so that the completer can finish the refund.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RefundOrder {
    pub(super) account: String,
    pub(super) payment_id: String,
    /// In minor units: the whole payment, or a part.
    pub(super) amount: i64,
}

/// Refunds a payment, or a part of it.
pub(super) async fn refund(
    operation: Operation,
    shop: Shop,
    order: RefundOrder,
) -> Result<Response, Stopped> {
    let (mut operation, order) = operation.begin(order)?;

    // Reserves the amount, so that all refunds together never exceed the payment.
    let opening = shop.books.open_refund(operation.id(), order);
    let refund = match operation.phase("refund_opened", opening).await? {
        OpenRefundResult::Refund(refund) => refund,
        OpenRefundResult::Refused(why) => return Ok(why.into_response()),
    };

    let paid_back = operation
        .call("paid_back", Downstream::Idempotent, |key| {
            shop.refund(&refund, key)
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
    /// The request body.
    #[derive(Deserialize)]
    struct Body {
        amount: i64,
    }
    let Body { amount } = match serde_json::from_slice(&body) {
        Ok(body) => body,
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

impl IntoResponse for SettledRefund {
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

impl IntoResponse for RefundRefusal {
    fn into_response(self) -> Response {
        match self {
            Self::NoPayment => not_found("there is no such payment"),
            Self::NotPaid => problem(
                StatusCode::CONFLICT,
                "payment_not_succeeded",
                "only a payment that succeeded can be refunded; retry later under another key",
            ),
            Self::TooMuch { left } => problem(
                StatusCode::UNPROCESSABLE_ENTITY,
                "refund_too_large",
                &format!("{left} is left of this payment"),
            ),
        }
    }
}
