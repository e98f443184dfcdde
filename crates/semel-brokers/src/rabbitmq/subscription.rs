//! Messages out of a queue.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::message::Delivery as Received;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
    BasicRejectOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::AMQPUri;
use lapin::{Acker, Channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::AGGREGATE;
use super::link::{address, connect, declare_exchange, name};
use crate::consume::sealed::Run;
use crate::consume::{Again, Message, RECONNECT, Treatment, check};
use crate::{Delivery, Error, Retries};

/// How often a quorum queue delivered a message before.
const DELIVERY_COUNT: &str = "x-delivery-count";

/// What the queue of dead letters is called, after the name of the queue.
const DEAD: &str = ".dead";

/// A queue, and how its messages are treated.
///
/// A message that failed is **held**: it stays with this consumer, unacknowledged, until its pause
/// is over, and keeps its place among those [`in_flight`](Self::in_flight). RabbitMQ knows no later
/// delivery, and to put a message back at once is to have it back at once.
#[derive(Clone)]
pub struct Subscription {
    url: Box<str>,
    queue: Box<str>,
    in_flight: usize,
    retries: Retries,
    bindings: Vec<(Box<str>, Box<str>)>,
    queue_type: QueueType,
}

/// What is declared where there is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueType {
    Quorum,
    Classic,
}

impl Subscription {
    /// The queue of this name at this server; the address is as for
    /// [`Options::new`](super::Options::new).
    pub fn new(url: impl Into<Box<str>>, queue: impl Into<Box<str>>) -> Self {
        Self {
            url: url.into(),
            queue: queue.into(),
            in_flight: 16,
            retries: Retries::default(),
            bindings: Vec::new(),
            queue_type: QueueType::Quorum,
        }
    }

    /// How many messages are treated at once, those that wait for their next try included.
    pub fn in_flight(self, in_flight: usize) -> Self {
        Self { in_flight, ..self }
    }

    /// How often a message is tried. All pauses together must be shorter than the broker's
    /// `consumer_timeout`, half an hour by default.
    pub fn retries(self, retries: Retries) -> Self {
        Self { retries, ..self }
    }

    /// Creates what is missing: the exchange (durable, by topic), the queue (a quorum queue, whose
    /// dead letters go to the queue `NAME.dead`), and a binding between them.
    pub fn ensure_bound(
        mut self,
        exchange: impl Into<Box<str>>,
        routing_key: impl Into<Box<str>>,
    ) -> Self {
        self.bindings.push((exchange.into(), routing_key.into()));
        self
    }

    /// Creates durable classic queues instead of quorum queues: for a broker that is alone. They do
    /// not count deliveries, so a message that ends its consumer comes back for ever.
    pub fn classic_queues(self) -> Self {
        Self {
            queue_type: QueueType::Classic,
            ..self
        }
    }
}

impl crate::Subscription for Subscription {}

impl Run for Subscription {
    async fn run(self, treatment: Treatment, shutdown: CancellationToken) -> Result<(), Error> {
        check(self.in_flight, self.retries)?;
        let consuming = Consuming {
            address: address(&self.url)?,
            queue: name("queue", &self.queue)?,
            dead: name("queue", &format!("{}{DEAD}", self.queue))?,
            bindings: self
                .bindings
                .iter()
                .map(|(exchange, key)| Ok((name("exchange", exchange)?, name("routing key", key)?)))
                .collect::<Result<_, Error>>()?,
            // Checked to be far less.
            in_flight: u16::try_from(self.in_flight).unwrap_or(u16::MAX),
            queue_type: self.queue_type,
            retries: self.retries,
            treatment,
            shutdown,
            release: CancellationToken::new(),
        };
        consuming.run().await;
        Ok(())
    }
}

/// A consumer at work.
struct Consuming {
    address: AMQPUri,
    queue: ShortString,
    dead: ShortString,
    bindings: Vec<(ShortString, ShortString)>,
    queue_type: QueueType,
    in_flight: u16,
    retries: Retries,
    treatment: Treatment,
    shutdown: CancellationToken,
    /// Messages that are held go back: nothing is delivered to us any more.
    release: CancellationToken,
}

impl Consuming {
    async fn run(&self) {
        let mut tasks = JoinSet::new();
        let mut failures = 0;
        while let Err(error) = self.serve(&mut tasks, &mut failures).await {
            failures += 1;
            let queue = self.queue.as_str();
            tracing::warn!(queue, "RabbitMQ is tried again in a moment: {error}");
            let pause = RECONNECT.spread(std::process::id(), failures);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shutdown.cancelled() => break,
            }
        }
        self.release.cancel();
        while tasks.join_next().await.is_some() {}
    }

    /// Consumes over one connection, until it breaks or all is over.
    async fn serve(&self, tasks: &mut JoinSet<()>, failures: &mut u32) -> Result<(), String> {
        if self.shutdown.is_cancelled() {
            return Ok(());
        }
        let connection = connect(&self.address).await?;
        let served = async {
            let channel = connection.create_channel().await?;
            self.declare(&channel).await?;
            channel
                .basic_qos(self.in_flight, BasicQosOptions::default())
                .await?;
            let mut consumer = channel
                .basic_consume(
                    self.queue.clone(),
                    ShortString::default(),
                    BasicConsumeOptions::default(),
                    FieldTable::default(),
                )
                .await?;
            *failures = 0;
            loop {
                let next = tokio::select! {
                    next = consumer.next() => next,
                    () = self.shutdown.cancelled() => break,
                };
                let Some(received) = next.transpose()? else {
                    return Ok(Over::Cancelled);
                };
                // The broker sends no more than may be in flight.
                self.take(received, tasks);
            }
            // First of all: what goes back must not come here again.
            channel
                .basic_cancel(consumer.tag(), BasicCancelOptions::default())
                .await?;
            self.release.cancel();
            // What is under way can still be acknowledged; the rest goes back with the connection.
            while tasks.join_next().await.is_some() {}
            connection.close(200, "done".into()).await?;
            Ok(Over::ShutDown)
        };
        match served.await {
            Ok(Over::ShutDown) => Ok(()),
            Ok(Over::Cancelled) => Err("the queue is gone, or moved".into()),
            // Whatever the last words of a connection are, nothing more is expected of it.
            Err(_) if self.shutdown.is_cancelled() => Ok(()),
            Err(error) => Err(lapin::Error::to_string(&error)),
        }
    }

    fn take(&self, received: Received, tasks: &mut JoinSet<()>) {
        while tasks.try_join_next().is_some() {}
        let message = Held {
            acker: received.acker.clone(),
            release: self.release.clone(),
        };
        let treatment = self.treatment.clone();
        tasks.spawn(treatment.treat(message, read(received), self.retries));
    }

    async fn declare(&self, channel: &Channel) -> lapin::Result<()> {
        if self.bindings.is_empty() {
            return Ok(());
        }
        let text = |text: &str| AMQPValue::LongString(text.into());
        let mut arguments = FieldTable::default();
        let queue_type = match self.queue_type {
            QueueType::Quorum => "quorum",
            QueueType::Classic => "classic",
        };
        arguments.insert("x-queue-type".into(), text(queue_type));
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        channel
            .queue_declare(self.dead.clone(), durable, arguments.clone())
            .await?;
        // The nameless exchange knows every queue by its name.
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(self.dead.as_str()));
        channel
            .queue_declare(self.queue.clone(), durable, arguments)
            .await?;
        for (exchange, routing_key) in &self.bindings {
            declare_exchange(channel, exchange).await?;
            channel
                .queue_bind(
                    self.queue.clone(),
                    exchange.clone(),
                    routing_key.clone(),
                    QueueBindOptions::default(),
                    FieldTable::default(),
                )
                .await?;
        }
        Ok(())
    }
}

/// How a connection came to its end.
enum Over {
    /// We were told to stop.
    ShutDown,
    /// The broker has nothing more for us.
    Cancelled,
}

fn read(received: Received) -> Delivery {
    let properties = &received.properties;
    let headers = properties.headers().as_ref().map(FieldTable::inner);
    let header = |name: &str| headers.and_then(|headers| headers.get(name));
    let text = |text: &Option<ShortString>| text.as_ref().map(|text| Box::from(text.as_str()));
    let before = header(DELIVERY_COUNT).and_then(count).unwrap_or(0);
    Delivery {
        id: text(properties.message_id()).unwrap_or_default(),
        kind: text(properties.kind()).unwrap_or_else(|| received.routing_key.as_str().into()),
        aggregate: header(AGGREGATE)
            .and_then(AMQPValue::as_long_string)
            .map(|text| text.to_string().into()),
        tries: before.saturating_add(1),
        payload: received.data.into(),
    }
}

/// A number, in whichever width the broker wrote it.
fn count(value: &AMQPValue) -> Option<u32> {
    let wide = value
        .as_long_long_int()
        .or_else(|| value.as_long_int().map(i64::from))
        .or_else(|| value.as_long_uint().map(i64::from));
    wide.and_then(|count| u32::try_from(count).ok())
}

/// A message of which the broker waits for an acknowledgement.
struct Held {
    acker: Acker,
    release: CancellationToken,
}

impl Message for Held {
    async fn keep_alive(&self) -> Infallible {
        // The connection's heartbeat is all that the broker asks for.
        std::future::pending().await
    }

    async fn ack(self) {
        log(self.acker.ack(BasicAckOptions::default()).await);
    }

    async fn retry(&self, delay: Duration) -> Again {
        tokio::select! {
            // With its channel gone it is somebody else's by now.
            () = tokio::time::sleep(delay) => {
                if self.acker.usable() { Again::Here } else { Again::Elsewhere }
            }
            () = self.release.cancelled() => {
                let back = BasicNackOptions {
                    requeue: true,
                    ..BasicNackOptions::default()
                };
                log(self.acker.nack(back).await);
                Again::Elsewhere
            }
        }
    }

    async fn bury(self, _reason: &str) {
        // Not put back: the queue's dead-letter exchange takes it.
        log(self
            .acker
            .reject(BasicRejectOptions { requeue: false })
            .await);
    }
}

fn log(told: lapin::Result<bool>) {
    match told {
        Ok(true) => {}
        Ok(false) => tracing::warn!("a message will be delivered again: its channel is gone"),
        Err(error) => tracing::warn!("a message will be delivered again: {error}"),
    }
}
