//! The shop's events, and how they reach the consumers.

use std::sync::Arc;

use semel::brokers::{self, Delivery, nats, rabbitmq};
use semel::outbox::{Event, Invalid, Publishing, Refused, Sink};
use semel::worker::CancellationToken;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::Shop;
use super::books::{Payment, Refund};
use super::consumers::{Consumer, Message};
use crate::Error;

/// A payment succeeded.
pub(super) const PAYMENT_CREATED: &str = "payment.created";
/// A payment was refunded, fully or partly.
pub(super) const PAYMENT_REFUNDED: &str = "payment.refunded";

/// The payload of [`PAYMENT_CREATED`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PaymentCreated {
    pub(super) payment_id: String,
    pub(super) account: String,
    pub(super) merchant_reference: String,
    pub(super) amount: i64,
    pub(super) currency: String,
}

/// The payload of [`PAYMENT_REFUNDED`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PaymentRefunded {
    pub(super) refund_id: String,
    pub(super) payment_id: String,
    pub(super) amount: i64,
    pub(super) currency: String,
}

/// The event of a payment that succeeded.
pub(super) fn created(payment: &Payment) -> Result<Event, Invalid> {
    let payload = PaymentCreated {
        payment_id: payment.id.clone(),
        account: payment.account.clone(),
        merchant_reference: payment.merchant_reference.clone(),
        amount: payment.amount,
        currency: payment.currency.clone(),
    };
    event(PAYMENT_CREATED, &payment.id, &payload)
}

/// The event of a refund that succeeded.
pub(super) fn refunded(refund: &Refund) -> Result<Event, Invalid> {
    let payload = PaymentRefunded {
        refund_id: refund.id.clone(),
        payment_id: refund.payment_id.clone(),
        amount: refund.amount,
        currency: refund.currency.clone(),
    };
    event(PAYMENT_REFUNDED, &refund.payment_id, &payload)
}

/// The payment is the aggregate, so that its events stay in order.
fn event(kind: &str, payment_id: &str, payload: &impl Serialize) -> Result<Event, Invalid> {
    // Serializing a struct of strings and numbers cannot fail.
    let payload = serde_json::to_vec(payload).unwrap_or_default();
    Event::new(kind, format!("payment/{payment_id}"), payload)
}

/// How events reach the consumers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventTransport {
    /// Without a broker: the relay calls the consumers of its own process.
    #[default]
    InProcess,
    /// Through NATS `JetStream`.
    Nats {
        /// `nats://host:port`
        url: String,
        /// The stream, and the first level of its subjects.
        stream: String,
    },
    /// Through `RabbitMQ`.
    RabbitMq {
        /// `amqp://host:port/vhost`
        url: String,
        /// The exchange, and the prefix of its queues.
        exchange: String,
    },
}

impl EventTransport {
    /// The sink of the relay.
    pub(super) async fn sink(&self, shop: &Shop) -> Result<Arc<dyn Sink>, Error> {
        Ok(match self {
            Self::InProcess => Arc::new(InProcess(shop.clone())),
            Self::Nats { url, stream } => {
                let options = nats::Options::new(url.as_str())
                    .subject(format!("{stream}.{{kind}}"))
                    .ensure_stream(nats::Stream::new(stream.as_str()));
                Arc::new(options.open().await?)
            }
            Self::RabbitMq { url, exchange } => {
                let options = rabbitmq::Options::new(url.as_str(), exchange.as_str());
                Arc::new(options.ensure_exchange().open()?)
            }
        })
    }

    /// Runs the consumers until the shop stops. A message is acknowledged after the consumer's
    /// commit.
    pub(super) fn consume(&self, shop: &Shop, shutdown: &CancellationToken) -> JoinSet<()> {
        let mut consumers = JoinSet::new();
        for consumer in Consumer::ALL {
            let (shop, shutdown) = (shop.clone(), shutdown.clone());
            let handler = move |delivery: Delivery| {
                let shop = shop.clone();
                async move { shop.handle(consumer, &delivery.into()).await }
            };
            match self.clone() {
                Self::InProcess => {}
                Self::Nats { url, stream } => {
                    let from = nats::Subscription::new(url, stream, consumer.name());
                    consumers.spawn(async move {
                        report(brokers::consume(from, handler, shutdown).await);
                    });
                }
                Self::RabbitMq { url, exchange } => {
                    let queue = format!("{exchange}.{}", consumer.name());
                    let from = rabbitmq::Subscription::new(url, queue).ensure_bound(exchange, "#");
                    consumers.spawn(async move {
                        report(brokers::consume(from, handler, shutdown).await);
                    });
                }
            }
        }
        consumers
    }
}

fn report(ended: Result<(), brokers::Error>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a consumer stopped");
    }
}

/// The consumers of this process as a sink: an event is confirmed when they have committed.
struct InProcess(Shop);

impl Sink for InProcess {
    fn publish<'a>(&'a self, event: &'a Event) -> Publishing<'a> {
        Box::pin(async move {
            let message = Message::from(event);
            for consumer in Consumer::ALL {
                let handled = self.0.handle(consumer, &message).await;
                handled.map_err(|error| Refused::Unavailable(error.to_string().into()))?;
            }
            Ok(())
        })
    }
}
