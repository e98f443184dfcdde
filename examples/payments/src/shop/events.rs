//! What the shop tells, and how it gets to those who listen.

use std::sync::Arc;

use semel::brokers::{self, Delivery, nats, rabbitmq};
use semel::outbox::{Invalid, Publishing, Refused, Sink};
use semel::{CancellationToken, Event};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::Shop;
use super::books::{Payment, Refund};
use super::consumers::{Consumer, Heard};
use crate::Error;

/// A payment succeeded.
pub(super) const PAYMENT_CREATED: &str = "payment.created";
/// Some of a payment was paid back.
pub(super) const PAYMENT_REFUNDED: &str = "payment.refunded";

/// What [`PAYMENT_CREATED`] says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PaymentCreated {
    pub(super) payment_id: String,
    pub(super) account: String,
    pub(super) merchant_reference: String,
    pub(super) amount: i64,
    pub(super) currency: String,
}

/// What [`PAYMENT_REFUNDED`] says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PaymentRefunded {
    pub(super) refund_id: String,
    pub(super) payment_id: String,
    pub(super) amount: i64,
    pub(super) currency: String,
}

/// The event of a payment that succeeded.
pub(super) fn created(payment: &Payment) -> Result<Event, Invalid> {
    let said = PaymentCreated {
        payment_id: payment.id.clone(),
        account: payment.account.clone(),
        merchant_reference: payment.merchant_reference.clone(),
        amount: payment.amount,
        currency: payment.currency.clone(),
    };
    event(PAYMENT_CREATED, &payment.id, &said)
}

/// The event of a refund that succeeded.
pub(super) fn refunded(refund: &Refund) -> Result<Event, Invalid> {
    let said = PaymentRefunded {
        refund_id: refund.id.clone(),
        payment_id: refund.payment_id.clone(),
        amount: refund.amount,
        currency: refund.currency.clone(),
    };
    event(PAYMENT_REFUNDED, &refund.payment_id, &said)
}

/// Events of one payment stay in order: it is their aggregate.
fn event(kind: &str, payment_id: &str, said: &impl Serialize) -> Result<Event, Invalid> {
    // A struct of strings and numbers always has a form in JSON.
    let payload = serde_json::to_vec(said).unwrap_or_default();
    Event::new(kind, format!("payment/{payment_id}"), payload)
}

/// How events get to their consumers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// Nothing is installed: the relay hands them to the consumers of its own process.
    #[default]
    InProcess,
    /// By NATS `JetStream`, in a stream of that name.
    Nats {
        /// `nats://host:port`
        url: String,
        /// The stream, and the first level of its subjects.
        stream: String,
    },
    /// By `RabbitMQ`, through an exchange of that name.
    RabbitMq {
        /// `amqp://host:port/vhost`
        url: String,
        /// The exchange, and how the names of its queues begin.
        exchange: String,
    },
}

impl Way {
    /// Where the relay publishes.
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

    /// Every consumer listens, until the shop stops. A message is acknowledged after the
    /// consumer's commit.
    pub(super) fn consume(&self, shop: &Shop, shutdown: &CancellationToken) -> JoinSet<()> {
        let mut listening = JoinSet::new();
        for consumer in Consumer::ALL {
            let (shop, shutdown) = (shop.clone(), shutdown.clone());
            let handler = move |delivery: Delivery| {
                let shop = shop.clone();
                async move { shop.hear(consumer, &delivery.into()).await }
            };
            match self.clone() {
                Self::InProcess => {}
                Self::Nats { url, stream } => {
                    let from = nats::Subscription::new(url, stream, consumer.name());
                    listening.spawn(async move {
                        report(brokers::consume(from, handler, shutdown).await);
                    });
                }
                Self::RabbitMq { url, exchange } => {
                    let queue = format!("{exchange}.{}", consumer.name());
                    let from = rabbitmq::Subscription::new(url, queue).ensure_bound(exchange, "#");
                    listening.spawn(async move {
                        report(brokers::consume(from, handler, shutdown).await);
                    });
                }
            }
        }
        listening
    }
}

fn report(ended: Result<(), brokers::Error>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a consumer does not listen");
    }
}

/// Consumers in this process as a broker: what they have committed is confirmed.
struct InProcess(Shop);

impl Sink for InProcess {
    fn publish<'a>(&'a self, event: &'a Event) -> Publishing<'a> {
        Box::pin(async move {
            let heard = Heard::from(event);
            for consumer in Consumer::ALL {
                let hearing = self.0.hear(consumer, &heard).await;
                hearing.map_err(|error| Refused::Unavailable(error.to_string().into()))?;
            }
            Ok(())
        })
    }
}
