//! The shop's books. Each method is one transaction.
//!
//! A phase of an operation returns a [`PhaseFuture`], which leaves its transaction open: the library
//! adds the recovery point of the operation and commits both. A consumer commits its write together
//! with the marker of the message.

pub(super) mod postgres;
mod queries;
pub(super) mod sqlite;

use std::pin::Pin;

use semel::OperationId;
use semel::store::LocalPhase;
use serde::{Deserialize, Serialize};

use super::pay::Order;
use super::refund::RefundOrder;
use crate::provider::{self, Charge, ChargeStatus};

/// A failed transaction: nothing was committed.
pub(super) type BooksError = Box<dyn std::error::Error + Send + Sync>;

/// An open transaction, which the library commits.
pub(super) type PhaseFuture<T> = BooksFuture<LocalPhase<T>>;

/// A transaction of its own.
pub(super) type BooksFuture<T> = Pin<Box<dyn Future<Output = Result<T, BooksError>> + Send>>;

/// The books, in either database.
pub(super) trait Books: Send + Sync {
    /// Inserts the row of a payment, unless its reference is taken.
    fn open_payment(&self, operation: OperationId, order: Order) -> PhaseFuture<OpenPaymentResult>;

    /// Writes the provider's decision, and the event where money moved.
    fn settle_payment(&self, payment: Payment, charge: Charge) -> PhaseFuture<SettledPayment>;

    /// Inserts the row of a refund, and reserves its amount in the payment.
    fn open_refund(
        &self,
        operation: OperationId,
        order: RefundOrder,
    ) -> PhaseFuture<OpenRefundResult>;

    /// Writes the provider's decision, and the event where money moved back.
    fn settle_refund(&self, refund: Refund, made: provider::Refund) -> PhaseFuture<SettledRefund>;

    /// Adds an entry to the ledger, once for each message.
    fn add_ledger_entry(&self, message_id: String, entry: Entry) -> BooksFuture<()>;

    /// Stores an e-mail to be sent, once for each message.
    fn write_receipt(&self, message_id: String, receipt: Receipt) -> BooksFuture<()>;

    /// Finds a payment of an account.
    fn find_payment(&self, id: String, account: String) -> BooksFuture<Option<Payment>>;

    /// Counts everything.
    fn summary(&self) -> BooksFuture<Summary>;
}

/// The status of a payment or a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The provider's decision is not known.
    Processing,
    /// Money moved.
    Succeeded,
    /// It did not, and that is final.
    Declined,
}

/// A payment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payment {
    /// The id at the shop.
    pub id: String,
    /// The account that pays.
    pub account: String,
    /// The merchant's reference.
    pub merchant_reference: String,
    /// In minor units.
    pub amount: i64,
    /// Three capital letters.
    pub currency: String,
    /// Its status.
    pub status: Status,
    /// The id at the provider, once it has decided.
    pub charge_id: Option<String>,
    /// Refunded or reserved for a refund, in minor units.
    pub refunded: i64,
}

/// A refund.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refund {
    /// The id at the shop.
    pub id: String,
    /// The refunded payment.
    pub payment_id: String,
    /// The payment's id at the provider.
    pub charge_id: String,
    /// In minor units.
    pub amount: i64,
    /// Three capital letters.
    pub currency: String,
    /// Its status.
    pub status: Status,
    /// The id at the provider, once it has decided.
    pub provider_refund_id: Option<String>,
}

/// The result of the first phase of a payment.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OpenPaymentResult {
    /// The row is there.
    Payment(Payment),
    /// Another payment has the reference.
    ReferenceTaken {
        /// Its id.
        by: String,
        /// Whether it is for the same amount of the same currency.
        same_terms: bool,
    },
}

/// A payment with the provider's decision: the response.
pub(super) struct SettledPayment(pub(super) Payment);

/// The result of the first phase of a refund.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OpenRefundResult {
    /// The row is there.
    Refund(Refund),
    /// Nothing can be refunded.
    Refused(RefundRefusal),
}

/// Why a refund is refused.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RefundRefusal {
    /// The account has no such payment.
    NoPayment,
    /// The payment was declined, or is not decided.
    NotPaid,
    /// Less is left of the payment.
    TooMuch {
        /// How much.
        left: i64,
    },
}

/// A refund with the provider's decision: the response.
pub(super) struct SettledRefund(pub(super) Refund);

/// An entry of the ledger.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The payment or the refund, which has one entry.
    pub(super) about: String,
    pub(super) payment_id: String,
    /// Negative for a refund.
    pub(super) amount: i64,
    pub(super) currency: String,
}

/// An e-mail to be sent.
#[derive(Clone, Debug)]
pub(super) struct Receipt {
    pub(super) payment_id: String,
    pub(super) account: String,
    pub(super) text: String,
}

/// Counts of everything: the answer of `GET /summary`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Payments without a decision.
    pub processing: i64,
    /// Payments that succeeded.
    pub succeeded: i64,
    /// Payments that were declined.
    pub declined: i64,
    /// Refunds without a decision.
    pub refunding: i64,
    /// Refunds that succeeded.
    pub refunded: i64,
    /// Entries of the ledger.
    pub ledger_entries: i64,
    /// Their sum.
    pub ledger_total: i64,
    /// E-mails to be sent.
    pub receipts: i64,
    /// Events that the consumers or the broker have not confirmed yet.
    pub events_waiting: u64,
    /// Dead-lettered events.
    pub events_dead: u64,
}

/// The id of an operation's payment: the same on every attempt.
fn payment_id(operation: OperationId) -> String {
    format!("pay_{operation}")
}

fn refund_id(operation: OperationId) -> String {
    format!("ref_{operation}")
}

/// The result for the payment that holds the reference now.
fn open_payment_result(
    id: &str,
    order: &Order,
    holder: Option<Payment>,
) -> Result<OpenPaymentResult, BooksError> {
    match holder {
        Some(payment) if payment.id == id => Ok(OpenPaymentResult::Payment(payment)),
        Some(other) => Ok(OpenPaymentResult::ReferenceTaken {
            same_terms: (other.amount, &other.currency) == (order.amount, &order.currency),
            by: other.id,
        }),
        None => Err("the reference was released just now: retry".into()),
    }
}

/// Why the amount of a refund could not be reserved.
fn refund_refusal(payment: Option<Payment>) -> RefundRefusal {
    match payment {
        None => RefundRefusal::NoPayment,
        Some(payment) => match payment.status {
            Status::Processing | Status::Declined => RefundRefusal::NotPaid,
            Status::Succeeded => RefundRefusal::TooMuch {
                left: payment.amount - payment.refunded,
            },
        },
    }
}

/// A refund whose amount is reserved.
fn new_refund(id: String, amount: i64, payment: Payment) -> Result<Refund, BooksError> {
    Ok(Refund {
        id,
        payment_id: payment.id,
        charge_id: payment.charge_id.ok_or("a payment without a charge")?,
        amount,
        currency: payment.currency,
        status: Status::Processing,
        provider_refund_id: None,
    })
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Self::Processing => "processing",
            Self::Succeeded => "succeeded",
            Self::Declined => "declined",
        }
    }

    fn parse(text: &str) -> Result<Self, BooksError> {
        match text {
            "processing" => Ok(Self::Processing),
            "succeeded" => Ok(Self::Succeeded),
            "declined" => Ok(Self::Declined),
            other => Err(format!("{other:?} is not a status").into()),
        }
    }
}

impl From<ChargeStatus> for Status {
    fn from(decided: ChargeStatus) -> Self {
        match decided {
            ChargeStatus::Succeeded => Self::Succeeded,
            ChargeStatus::Declined => Self::Declined,
        }
    }
}
