//! The consumers of events: the ledger and the receipts. Messages arrive at least once and in any
//! order. Each takes effect once, since the effect and the message's marker are one commit.

use bytes::Bytes;
use semel::brokers::Delivery;
use semel::outbox::Event;

use super::Shop;
use super::books::{BooksError, Entry, Receipt};
use super::events::{PAYMENT_CREATED, PAYMENT_REFUNDED, PaymentCreated, PaymentRefunded};

/// A consumer of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consumer {
    /// Adds ledger entries for payments and refunds.
    Ledger,
    /// Stores e-mails to be sent.
    Receipts,
}

/// A message of a broker, or of the relay in this process.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// The same in every delivery of the event.
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) payload: Bytes,
}

impl Consumer {
    pub(super) const ALL: [Self; 2] = [Self::Ledger, Self::Receipts];

    /// Its name in the inbox and at brokers.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ledger => "ledger",
            Self::Receipts => "receipts",
        }
    }
}

impl Shop {
    /// Processes a message. It may be acknowledged when this returns.
    pub(super) async fn handle(
        &self,
        consumer: Consumer,
        message: &Message,
    ) -> Result<(), BooksError> {
        match consumer {
            Consumer::Ledger => self.add_entry(message).await,
            Consumer::Receipts => self.add_receipt(message).await,
        }
    }

    async fn add_entry(&self, message: &Message) -> Result<(), BooksError> {
        let entry = match message.kind.as_str() {
            PAYMENT_CREATED => {
                let created: PaymentCreated = serde_json::from_slice(&message.payload)?;
                Entry {
                    about: created.payment_id.clone(),
                    payment_id: created.payment_id,
                    amount: created.amount,
                    currency: created.currency,
                }
            }
            PAYMENT_REFUNDED => {
                let refunded: PaymentRefunded = serde_json::from_slice(&message.payload)?;
                Entry {
                    about: refunded.refund_id,
                    payment_id: refunded.payment_id,
                    amount: -refunded.amount,
                    currency: refunded.currency,
                }
            }
            _ => return Ok(()),
        };
        self.books.add_ledger_entry(message.id.clone(), entry).await
    }

    async fn add_receipt(&self, message: &Message) -> Result<(), BooksError> {
        if message.kind != PAYMENT_CREATED {
            return Ok(());
        }
        let created: PaymentCreated = serde_json::from_slice(&message.payload)?;
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
        self.books.write_receipt(message.id.clone(), receipt).await
    }
}

impl From<&Event> for Message {
    fn from(event: &Event) -> Self {
        Self {
            id: event.id.to_string(),
            kind: event.kind.to_string(),
            payload: event.payload.clone(),
        }
    }
}

impl From<Delivery> for Message {
    fn from(delivery: Delivery) -> Self {
        Self {
            id: delivery.id.into(),
            kind: delivery.kind.into(),
            payload: delivery.payload,
        }
    }
}
