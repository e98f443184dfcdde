//! The shop's books: what is written in one transaction each, and what can be read.
//!
//! A phase of an operation writes into them by a [`Writing`], which leaves its transaction open:
//! the library adds how far the operation has come, and commits both. What consumers write is
//! committed with the marker of the message that they heard.

pub(super) mod postgres;
mod queries;
pub(super) mod sqlite;

use std::pin::Pin;

use semel::{Local, OperationId};
use serde::{Deserialize, Serialize};

use super::pay::Order;
use super::refund::RefundOrder;
use crate::provider::{self, Charge, ChargeStatus};

/// Why something was not written or read. Nothing of it was.
pub(super) type Failed = Box<dyn std::error::Error + Send + Sync>;

/// A transaction on its way, to be committed by whoever takes it further.
pub(super) type Writing<T> = Doing<Local<T>>;

/// Something that is done to the books.
pub(super) type Doing<T> = Pin<Box<dyn Future<Output = Result<T, Failed>> + Send>>;

/// The books, whatever they are kept in.
pub(super) trait Books: Send + Sync {
    /// The row of a payment, unless its reference is taken.
    fn open_payment(&self, operation: OperationId, order: Order) -> Writing<Opened>;

    /// What the provider decided, and the event where money moved.
    fn settle_payment(&self, payment: Payment, charge: Charge) -> Writing<Settled>;

    /// The row of a refund, and room for it in its payment.
    fn open_refund(&self, operation: OperationId, order: RefundOrder) -> Writing<RefundOpened>;

    /// What the provider decided, and the event where money moved back.
    fn settle_refund(&self, refund: Refund, made: provider::Refund) -> Writing<RefundSettled>;

    /// An entry of the ledger, once for each message.
    fn enter(&self, message_id: String, entry: Entry) -> Doing<()>;

    /// An e-mail to be sent, once for each message.
    fn write_receipt(&self, message_id: String, receipt: Receipt) -> Doing<()>;

    /// A payment of an account.
    fn find_payment(&self, id: String, account: String) -> Doing<Option<Payment>>;

    /// How much there is of everything.
    fn summary(&self) -> Doing<Summary>;
}

/// How far a payment or a refund is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The provider has not decided, as far as we know.
    Processing,
    /// Money moved.
    Succeeded,
    /// It did not, and that is final.
    Declined,
}

/// A payment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payment {
    /// Our name for it.
    pub id: String,
    /// Whose it is.
    pub account: String,
    /// What the merchant calls it.
    pub merchant_reference: String,
    /// In minor units.
    pub amount: i64,
    /// Three capital letters.
    pub currency: String,
    /// How far it is.
    pub status: Status,
    /// The provider's name for it, once it decided.
    pub charge_id: Option<String>,
    /// What went back, or is about to, in minor units.
    pub refunded: i64,
}

/// A refund.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refund {
    /// Our name for it.
    pub id: String,
    /// Of which payment.
    pub payment_id: String,
    /// What the provider calls that.
    pub charge_id: String,
    /// In minor units.
    pub amount: i64,
    /// Three capital letters.
    pub currency: String,
    /// How far it is.
    pub status: Status,
    /// The provider's name for it, once it decided.
    pub provider_refund_id: Option<String>,
}

/// What came of opening a payment.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Opened {
    /// It is open.
    Payment(Payment),
    /// Another payment has the reference.
    ReferenceTaken {
        /// Its id.
        by: String,
        /// Whether it is for the same amount of the same currency.
        same_terms: bool,
    },
}

/// A payment that the provider has decided about: what the client is told.
pub(super) struct Settled(pub(super) Payment);

/// What came of opening a refund.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RefundOpened {
    /// It is open.
    Refund(Refund),
    /// There is nothing to be refunded.
    Refused(NoRefund),
}

/// Why there is no refund.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NoRefund {
    /// No payment, or somebody else's.
    NoPayment,
    /// It was declined, or is not decided.
    NotPaid,
    /// Less is left.
    TooMuch {
        /// How much.
        left: i64,
    },
}

/// A refund that the provider has decided about: what the client is told.
pub(super) struct RefundSettled(pub(super) Refund);

/// An entry of the ledger.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The payment or the refund: it has one entry.
    pub(super) about: String,
    pub(super) payment_id: String,
    /// Below zero where it went out.
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

/// How much there is of everything: the answer of `GET /summary`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Payments that nobody has decided about.
    pub processing: i64,
    /// Payments that succeeded.
    pub succeeded: i64,
    /// Payments that were declined.
    pub declined: i64,
    /// Refunds that nobody has decided about.
    pub refunding: i64,
    /// Refunds that succeeded.
    pub refunded: i64,
    /// Entries of the ledger.
    pub ledger_entries: i64,
    /// Their sum.
    pub ledger_total: i64,
    /// E-mails to be sent.
    pub receipts: i64,
    /// Events that no consumer, or no broker, has confirmed yet.
    pub events_waiting: u64,
    /// Events that wait for a person.
    pub events_dead: u64,
}

/// The payment of an operation: the same name on every attempt.
fn payment_id(operation: OperationId) -> String {
    format!("pay_{operation}")
}

fn refund_id(operation: OperationId) -> String {
    format!("ref_{operation}")
}

/// What is made of whoever has the reference now.
fn opened(id: &str, order: &Order, holder: Option<Payment>) -> Result<Opened, Failed> {
    match holder {
        Some(payment) if payment.id == id => Ok(Opened::Payment(payment)),
        Some(other) => Ok(Opened::ReferenceTaken {
            same_terms: (other.amount, &other.currency) == (order.amount, &order.currency),
            by: other.id,
        }),
        None => Err("the reference was given up just now; it may be tried again".into()),
    }
}

/// Why no room for a refund was found.
fn no_refund(payment: Option<Payment>) -> NoRefund {
    match payment {
        None => NoRefund::NoPayment,
        Some(payment) => match payment.status {
            Status::Processing | Status::Declined => NoRefund::NotPaid,
            Status::Succeeded => NoRefund::TooMuch {
                left: payment.amount - payment.refunded,
            },
        },
    }
}

/// A refund of a payment in which there is room for it.
fn opened_refund(id: String, amount: i64, payment: Payment) -> Result<Refund, Failed> {
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

    fn parse(word: &str) -> Result<Self, Failed> {
        match word {
            "processing" => Ok(Self::Processing),
            "succeeded" => Ok(Self::Succeeded),
            "declined" => Ok(Self::Declined),
            other => Err(format!("{other:?} is no status").into()),
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
