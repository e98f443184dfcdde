//! Who listens: the ledger and the receipts. Messages come at least once and in any order; each
//! has its effect once, since the effect and its marker are one commit.

use bytes::Bytes;
use semel::Event;
use semel::brokers::Delivery;

use super::Shop;
use super::books::{Entry, Failed, Receipt};
use super::events::{PAYMENT_CREATED, PAYMENT_REFUNDED, PaymentCreated, PaymentRefunded};

/// Somebody who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consumer {
    /// Books what came in and what went out.
    Ledger,
    /// Writes e-mails to be sent.
    Receipts,
}

/// A message, whoever brought it.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// The same in every delivery.
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) payload: Bytes,
}

impl Consumer {
    pub(super) const ALL: [Self; 2] = [Self::Ledger, Self::Receipts];

    /// What it is called by the inbox and by brokers.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ledger => "ledger",
            Self::Receipts => "receipts",
        }
    }
}

impl Shop {
    /// A consumer hears of something. Once this returns, it need not be told again.
    pub(super) async fn hear(&self, consumer: Consumer, heard: &Heard) -> Result<(), Failed> {
        match consumer {
            Consumer::Ledger => self.book(heard).await,
            Consumer::Receipts => self.receipt(heard).await,
        }
    }

    async fn book(&self, heard: &Heard) -> Result<(), Failed> {
        let entry = match heard.kind.as_str() {
            PAYMENT_CREATED => {
                let created: PaymentCreated = serde_json::from_slice(&heard.payload)?;
                Entry {
                    about: created.payment_id.clone(),
                    payment_id: created.payment_id,
                    amount: created.amount,
                    currency: created.currency,
                }
            }
            PAYMENT_REFUNDED => {
                let refunded: PaymentRefunded = serde_json::from_slice(&heard.payload)?;
                Entry {
                    about: refunded.refund_id,
                    payment_id: refunded.payment_id,
                    amount: -refunded.amount,
                    currency: refunded.currency,
                }
            }
            _ => return Ok(()),
        };
        self.books.enter(heard.id.clone(), entry).await
    }

    async fn receipt(&self, heard: &Heard) -> Result<(), Failed> {
        if heard.kind != PAYMENT_CREATED {
            return Ok(());
        }
        let created: PaymentCreated = serde_json::from_slice(&heard.payload)?;
        let PaymentCreated {
            merchant_reference,
            amount,
            currency,
            ..
        } = created;
        let receipt = Receipt {
            text: format!("We received {amount} {currency} for {merchant_reference}."),
            payment_id: created.payment_id,
            account: created.account,
        };
        self.books.write_receipt(heard.id.clone(), receipt).await
    }
}

impl From<&Event> for Heard {
    fn from(event: &Event) -> Self {
        Self {
            id: event.id.to_string(),
            kind: event.kind.to_string(),
            payload: event.payload.clone(),
        }
    }
}

impl From<Delivery> for Heard {
    fn from(delivery: Delivery) -> Self {
        Self {
            id: delivery.id.into(),
            kind: delivery.kind.into(),
            payload: delivery.payload,
        }
    }
}
