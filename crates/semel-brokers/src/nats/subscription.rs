//! Consumes messages from a stream.

use std::convert::Infallible;
use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{AckKind, Message as Received, consumer::PullConsumer};
use futures_util::StreamExt as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::{AGGREGATE, DEAD_REASON, KIND};
use crate::consume::sealed::Run;
use crate::consume::{Message, MessageHandler, NextTry, RECONNECT, check_limits};
use crate::{Delivery, Error, Retries, truncate_reason};

/// The default time after which the server redelivers a message without an acknowledgement. While
/// the handler runs, the consumer reports progress three times within it.
const ACK_WAIT: Duration = Duration::from_secs(30);

/// How long one pull request stays open.
const PULL_EXPIRES: Duration = Duration::from_secs(30);

/// The timeout of all other requests to the server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages that wait for their next try count as pending, and must not block the others.
const MAX_ACK_PENDING: i64 = 10_000;

/// A durable consumer of a stream. It is created if there is none of that name. Processes that use
/// the same name share the messages.
#[derive(Clone)]
pub struct Subscription {
    url: Box<str>,
    stream: Box<str>,
    consumer: Box<str>,
    filter: Option<Box<str>>,
    in_flight: usize,
    ack_wait: Duration,
    retries: Retries,
    dead_subject: Option<Box<str>>,
    connect: ConnectOptions,
}

impl Subscription {
    /// A consumer of a stream. The address has the form that
    /// [`Options::new`](super::Options::new) takes.
    pub fn new(
        url: impl Into<Box<str>>,
        stream: impl Into<Box<str>>,
        consumer: impl Into<Box<str>>,
    ) -> Self {
        Self {
            url: url.into(),
            stream: stream.into(),
            consumer: consumer.into(),
            filter: None,
            in_flight: 16,
            ack_wait: ACK_WAIT,
            retries: Retries::default(),
            dead_subject: None,
            connect: ConnectOptions::new(),
        }
    }

    /// Consumes only messages with a matching subject, which may contain wildcards. Applied when the
    /// consumer is created.
    pub fn filter(self, subject: impl Into<Box<str>>) -> Self {
        Self {
            filter: Some(subject.into()),
            ..self
        }
    }

    /// The number of messages that are handled concurrently.
    pub fn in_flight(self, in_flight: usize) -> Self {
        Self { in_flight, ..self }
    }

    /// The retry policy.
    pub fn retries(self, retries: Retries) -> Self {
        Self { retries, ..self }
    }

    /// The time after which the server redelivers the message of a consumer that does not respond.
    /// Applied when the consumer is created.
    pub fn ack_wait(self, ack_wait: Duration) -> Self {
        Self { ack_wait, ..self }
    }

    /// The subject to which dead letters are published, with their headers and the reason. A stream
    /// must store the subject. Without a dead subject, a dead letter stays in its stream and is only
    /// logged.
    pub fn dead_subject(self, subject: impl Into<Box<str>>) -> Self {
        Self {
            dead_subject: Some(subject.into()),
            ..self
        }
    }

    /// Connects with these options. See [`Options::connect_with`](super::Options::connect_with).
    pub fn connect_with(self, connect: ConnectOptions) -> Self {
        Self { connect, ..self }
    }

    fn check(&self) -> Result<(), Error> {
        check_limits(self.in_flight, self.retries)?;
        for (kind, name) in [("stream", &self.stream), ("consumer", &self.consumer)] {
            if name.is_empty() || name.contains(|c: char| ".*>/\\".contains(c) || c.is_whitespace())
            {
                return Err(Error::Name {
                    kind,
                    name: name.clone(),
                    reason: "it is empty, or contains whitespace, dots, slashes or wildcards",
                });
            }
        }
        Ok(())
    }

    /// Pulls messages until an error occurs, and returns it.
    async fn pull(
        &self,
        connection: &Connection,
        handler: &MessageHandler,
        tasks: &mut JoinSet<()>,
    ) -> async_nats::Error {
        match self.try_pull(connection, handler, tasks).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn try_pull(
        &self,
        connection: &Connection,
        handler: &MessageHandler,
        tasks: &mut JoinSet<()>,
    ) -> Result<Infallible, async_nats::Error> {
        let mut state = connection.state.clone();
        state.wait_for(|state| state.connected).await?;
        let before = state.borrow_and_update().changes;
        let consumer = self.create_consumer(connection).await?;
        loop {
            // Requests only as many messages as can be handled now: others would wait here while
            // their acknowledgement deadline runs.
            while tasks.len() >= self.in_flight {
                tasks.join_next().await;
            }
            while tasks.try_join_next().is_some() {}
            let mut batch = consumer
                .batch()
                .max_messages(self.in_flight - tasks.len())
                .expires(PULL_EXPIRES)
                .messages()
                .await?;
            loop {
                let next = tokio::select! {
                    next = batch.next() => next,
                    // Pull requests sent before a reconnection get no reply after it.
                    _ = state.wait_for(|state| state.changes != before) => {
                        return Err("the connection was lost".into());
                    }
                };
                let Some(received) = next.transpose()? else {
                    break;
                };
                tasks.spawn(
                    self.clone()
                        .process(received, connection.clone(), handler.clone()),
                );
            }
        }
    }

    async fn create_consumer(
        &self,
        connection: &Connection,
    ) -> Result<PullConsumer, async_nats::Error> {
        let config = pull::Config {
            durable_name: Some(self.consumer.to_string()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            // This consumer counts the tries. With a limit, the server would drop the message
            // silently.
            max_deliver: -1,
            max_ack_pending: MAX_ACK_PENDING,
            filter_subject: self.filter.as_deref().unwrap_or_default().to_owned(),
            ..pull::Config::default()
        };
        let stream = connection.jetstream.get_stream(&*self.stream).await?;
        Ok(stream
            .get_or_create_consumer(&self.consumer, config)
            .await?)
    }

    async fn process(self, received: Received, connection: Connection, handler: MessageHandler) {
        let delivery = to_delivery(&received);
        let retries = self.retries;
        let message = PendingMessage {
            received,
            connection,
            ack_wait: self.ack_wait,
            dead_subject: self.dead_subject,
            max_delay: retries.backoff.max_every,
        };
        handler.process(message, delivery, retries).await;
    }
}

impl crate::Subscription for Subscription {}

impl Run for Subscription {
    async fn run(self, handler: MessageHandler, shutdown: CancellationToken) -> Result<(), Error> {
        self.check()?;
        let connection = Connection::open(&self.url, self.connect.clone(), REQUEST_TIMEOUT).await?;
        let mut tasks = JoinSet::new();
        let mut failures = 0;
        loop {
            let before = connection.state.borrow().changes;
            let error = tokio::select! {
                error = self.pull(&connection, &handler, &mut tasks) => error,
                () = shutdown.cancelled() => break,
            };
            // The backoff restarts if the connection changed in the meantime.
            failures = if connection.state.borrow().changes == before {
                failures + 1
            } else {
                1
            };
            let (stream, consumer) = (&*self.stream, &*self.consumer);
            tracing::warn!(
                stream,
                consumer,
                "pulling from NATS failed, retrying: {error}"
            );
            let delay = RECONNECT.spread(std::process::id(), failures);
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = shutdown.cancelled() => break,
            }
        }
        while tasks.join_next().await.is_some() {}
        if let Err(error) = connection.client.flush().await {
            tracing::warn!("flushing failed, the last messages may be redelivered: {error}");
        }
        Ok(())
    }
}

fn to_delivery(received: &Received) -> Delivery {
    let header = |name: &str| -> Option<Box<str>> {
        Some(received.headers.as_ref()?.get(name)?.as_str().into())
    };
    let delivered = received.info().map_or(1, |info| info.delivered);
    Delivery {
        id: header(async_nats::header::NATS_MESSAGE_ID.as_ref()).unwrap_or_default(),
        kind: header(KIND).unwrap_or_else(|| received.subject.as_str().into()),
        aggregate: header(AGGREGATE),
        payload: received.payload.clone(),
        tries: u32::try_from(delivered).unwrap_or(u32::MAX),
    }
}

/// A message that is delivered and not acknowledged.
struct PendingMessage {
    received: Received,
    connection: Connection,
    ack_wait: Duration,
    dead_subject: Option<Box<str>>,
    max_delay: Duration,
}

impl PendingMessage {
    async fn send_ack(&self, kind: AckKind) {
        if let Err(error) = self.received.ack_with(kind).await {
            let subject = self.received.subject.as_str();
            tracing::warn!(
                subject,
                "acknowledging failed, the message will be redelivered: {error}"
            );
        }
    }

    /// Publishes a copy to the dead-letter subject, and waits for its confirmation.
    async fn publish_copy(&self, subject: &str, reason: &str) -> Result<(), async_nats::Error> {
        let mut headers = self.received.headers.clone().unwrap_or_default();
        let reason: String = truncate_reason(reason)
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        headers.insert(DEAD_REASON, reason);
        // An event can become a dead letter of several consumers, once for each.
        if let Some(id) = headers.get(async_nats::header::NATS_MESSAGE_ID) {
            let consumer = self.received.info().map_or("", |info| info.consumer);
            let id = format!("dead:{consumer}:{id}");
            headers.insert(async_nats::header::NATS_MESSAGE_ID, id);
        }
        let message = PublishMessage::build()
            .payload(self.received.payload.clone())
            .headers(headers);
        let published = self
            .connection
            .jetstream
            .send_publish(subject.to_owned(), message);
        published.await?.await?;
        Ok(())
    }
}

impl Message for PendingMessage {
    async fn keep_alive(&self) -> Infallible {
        loop {
            tokio::time::sleep(self.ack_wait / 3).await;
            self.send_ack(AckKind::Progress).await;
        }
    }

    async fn ack(self) {
        self.send_ack(AckKind::Ack).await;
    }

    async fn retry(&self, delay: Duration) -> NextTry {
        self.send_ack(AckKind::Nak(Some(delay))).await;
        NextTry::Redelivered
    }

    async fn dead_letter(self, reason: &str) {
        if let Some(subject) = &self.dead_subject
            && let Err(error) = self.publish_copy(subject, reason).await
        {
            tracing::error!("publishing a dead letter to {subject:?} failed, retrying: {error}");
            return self.send_ack(AckKind::Nak(Some(self.max_delay))).await;
        }
        self.send_ack(AckKind::Term).await;
    }
}
