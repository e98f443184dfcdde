//! Consumes messages from a queue.

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
use super::connection::{connect, declare_exchange, parse_address, short_name};
use crate::consume::sealed::Run;
use crate::consume::{Message, MessageHandler, NextTry, RECONNECT, check_limits};
use crate::{Delivery, Error, Retries};

/// The header in which a quorum queue counts the earlier deliveries of a message.
const DELIVERY_COUNT: &str = "x-delivery-count";

/// The suffix of the name of the dead-letter queue.
const DEAD_SUFFIX: &str = ".dead";

/// A queue, and the settings with which it is consumed.
///
/// RabbitMQ cannot delay a redelivery: a message that is requeued comes back at once. So a message
/// whose handler failed is **held**: it stays unacknowledged in this consumer until its delay has
/// passed, and counts as [`in_flight`](Self::in_flight).
#[derive(Clone)]
pub struct Subscription {
    url: Box<str>,
    queue: Box<str>,
    in_flight: usize,
    retries: Retries,
    bindings: Vec<(Box<str>, Box<str>)>,
    queue_type: QueueType,
}

/// The type of the queues that are declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueType {
    Quorum,
    Classic,
}

impl Subscription {
    /// A queue of a server. The address has the form that
    /// [`Options::new`](super::Options::new) takes.
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

    /// The number of messages that are handled concurrently, including those that wait for their
    /// next try.
    pub fn in_flight(self, in_flight: usize) -> Self {
        Self { in_flight, ..self }
    }

    /// The retry policy. The sum of all delays must be shorter than the broker's
    /// `consumer_timeout`, 30 minutes by default.
    pub fn retries(self, retries: Retries) -> Self {
        Self { retries, ..self }
    }

    /// Creates the exchange (durable, topic), the queue (a quorum queue, whose dead letters go to the
    /// queue `NAME.dead`) and the binding between them, as far as they do not exist.
    pub fn ensure_bound(
        mut self,
        exchange: impl Into<Box<str>>,
        routing_key: impl Into<Box<str>>,
    ) -> Self {
        self.bindings.push((exchange.into(), routing_key.into()));
        self
    }

    /// Creates durable classic queues instead of quorum queues, for a single broker. They do not
    /// count deliveries, so a message that crashes its consumer is redelivered without end.
    pub fn classic_queues(self) -> Self {
        Self {
            queue_type: QueueType::Classic,
            ..self
        }
    }
}

impl crate::Subscription for Subscription {}

impl Run for Subscription {
    async fn run(self, handler: MessageHandler, shutdown: CancellationToken) -> Result<(), Error> {
        check_limits(self.in_flight, self.retries)?;
        let consumer = ConsumerLoop {
            address: parse_address(&self.url)?,
            queue: short_name("queue", &self.queue)?,
            dead_queue: short_name("queue", &format!("{}{DEAD_SUFFIX}", self.queue))?,
            bindings: self
                .bindings
                .iter()
                .map(|(exchange, key)| {
                    Ok((
                        short_name("exchange", exchange)?,
                        short_name("routing key", key)?,
                    ))
                })
                .collect::<Result<_, Error>>()?,
            // `check_limits` allows far less.
            in_flight: u16::try_from(self.in_flight).unwrap_or(u16::MAX),
            queue_type: self.queue_type,
            retries: self.retries,
            handler,
            shutdown,
            release: CancellationToken::new(),
        };
        consumer.run().await;
        Ok(())
    }
}

/// A running consumer.
struct ConsumerLoop {
    address: AMQPUri,
    queue: ShortString,
    dead_queue: ShortString,
    bindings: Vec<(ShortString, ShortString)>,
    queue_type: QueueType,
    in_flight: u16,
    retries: Retries,
    handler: MessageHandler,
    shutdown: CancellationToken,
    /// Cancelled once nothing more is delivered to this consumer: held messages are requeued.
    release: CancellationToken,
}

impl ConsumerLoop {
    async fn run(&self) {
        let mut tasks = JoinSet::new();
        let mut failures = 0;
        while let Err(error) = self.consume_connection(&mut tasks, &mut failures).await {
            failures += 1;
            let queue = self.queue.as_str();
            tracing::warn!(queue, "consuming from RabbitMQ failed, retrying: {error}");
            let delay = RECONNECT.spread(std::process::id(), failures);
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = self.shutdown.cancelled() => break,
            }
        }
        self.release.cancel();
        while tasks.join_next().await.is_some() {}
    }

    /// Consumes over one connection, until it is lost or the consumer shuts down.
    async fn consume_connection(
        &self,
        tasks: &mut JoinSet<()>,
        failures: &mut u32,
    ) -> Result<(), String> {
        if self.shutdown.is_cancelled() {
            return Ok(());
        }
        let connection = connect(&self.address).await?;
        let consumed = async {
            let channel = connection.create_channel().await?;
            self.declare_queues(&channel).await?;
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
                    return Ok(EndReason::Cancelled);
                };
                // The prefetch count keeps the broker from delivering more than `in_flight`.
                self.spawn_handler(received, tasks);
            }
            // Before the release, so that requeued messages are not delivered to this consumer.
            channel
                .basic_cancel(consumer.tag(), BasicCancelOptions::default())
                .await?;
            self.release.cancel();
            // Running handlers can still acknowledge. Closing the connection requeues the rest.
            while tasks.join_next().await.is_some() {}
            connection.close(200, "done".into()).await?;
            Ok(EndReason::Shutdown)
        };
        match consumed.await {
            Ok(EndReason::Shutdown) => Ok(()),
            Ok(EndReason::Cancelled) => {
                Err("the broker cancelled the consumer: the queue was deleted or moved".into())
            }
            // An error of the connection does not matter during the shutdown.
            Err(_) if self.shutdown.is_cancelled() => Ok(()),
            Err(error) => Err(lapin::Error::to_string(&error)),
        }
    }

    fn spawn_handler(&self, received: Received, tasks: &mut JoinSet<()>) {
        while tasks.try_join_next().is_some() {}
        let message = PendingMessage {
            acker: received.acker.clone(),
            release: self.release.clone(),
        };
        let handler = self.handler.clone();
        tasks.spawn(handler.process(message, to_delivery(received), self.retries));
    }

    async fn declare_queues(&self, channel: &Channel) -> lapin::Result<()> {
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
            .queue_declare(self.dead_queue.clone(), durable, arguments.clone())
            .await?;
        // The default exchange routes to every queue by its name.
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert(
            "x-dead-letter-routing-key".into(),
            text(self.dead_queue.as_str()),
        );
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

/// Why consuming over a connection ended.
enum EndReason {
    /// The consumer shuts down.
    Shutdown,
    /// The broker cancelled the consumer.
    Cancelled,
}

fn to_delivery(received: Received) -> Delivery {
    let properties = &received.properties;
    let headers = properties.headers().as_ref().map(FieldTable::inner);
    let header = |name: &str| headers.and_then(|headers| headers.get(name));
    let text = |text: &Option<ShortString>| text.as_ref().map(|text| Box::from(text.as_str()));
    let before = header(DELIVERY_COUNT).and_then(to_count).unwrap_or(0);
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

/// Reads a number of any integer type.
fn to_count(value: &AMQPValue) -> Option<u32> {
    let wide = value
        .as_long_long_int()
        .or_else(|| value.as_long_int().map(i64::from))
        .or_else(|| value.as_long_uint().map(i64::from));
    wide.and_then(|count| u32::try_from(count).ok())
}

/// A message that is delivered and not acknowledged.
struct PendingMessage {
    acker: Acker,
    release: CancellationToken,
}

impl Message for PendingMessage {
    async fn keep_alive(&self) -> Infallible {
        // The heartbeat of the connection is enough.
        std::future::pending().await
    }

    async fn ack(self) {
        log_failure(self.acker.ack(BasicAckOptions::default()).await);
    }

    async fn retry(&self, delay: Duration) -> NextTry {
        tokio::select! {
            // If the channel is closed, the broker has requeued the message.
            () = tokio::time::sleep(delay) => {
                if self.acker.usable() {
                    NextTry::InProcess
                } else {
                    NextTry::Redelivered
                }
            }
            () = self.release.cancelled() => {
                let requeue = BasicNackOptions {
                    requeue: true,
                    ..BasicNackOptions::default()
                };
                log_failure(self.acker.nack(requeue).await);
                NextTry::Redelivered
            }
        }
    }

    async fn dead_letter(self, _reason: &str) {
        // Rejected without requeueing: the queue's dead-letter exchange receives it.
        let rejected = self.acker.reject(BasicRejectOptions { requeue: false });
        log_failure(rejected.await);
    }
}

fn log_failure(result: lapin::Result<bool>) {
    match result {
        Ok(true) => {}
        Ok(false) => tracing::warn!(
            "acknowledging failed, the message will be redelivered: the channel is closed"
        ),
        Err(error) => {
            tracing::warn!("acknowledging failed, the message will be redelivered: {error}");
        }
    }
}
