//! Messages out of a stream.

use std::convert::Infallible;
use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{AckKind, Message as Received, consumer::PullConsumer};
use futures_util::StreamExt as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::link::Link;
use super::{AGGREGATE, DEAD_REASON, KIND};
use crate::consume::sealed::Run;
use crate::consume::{Again, Message, RECONNECT, Treatment, check};
use crate::{Delivery, Error, Retries, cut};

/// How long the server waits for news of a message, unless it is told, before it delivers it
/// again. News is sent every third of it while the handler is at work.
const ACK_WAIT: Duration = Duration::from_secs(30);

/// How long one request for messages stands before it is made anew.
const PULL_EXPIRES: Duration = Duration::from_secs(30);

/// How long the server may take for anything else.
const PATIENCE: Duration = Duration::from_secs(5);

/// Messages that wait for their next try count as pending, and must not keep the others away.
const MAX_ACK_PENDING: i64 = 10_000;

/// A durable consumer of a stream, which is created where there is none of its name. Processes
/// that share the name share the messages.
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
    /// The consumer of this name, of this stream, at this server; the address is as for
    /// [`Options::new`](super::Options::new).
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

    /// Only messages with such a subject, wildcards and all. Heeded when the consumer is created.
    pub fn filter(self, subject: impl Into<Box<str>>) -> Self {
        Self {
            filter: Some(subject.into()),
            ..self
        }
    }

    /// How many messages are treated at once.
    pub fn in_flight(self, in_flight: usize) -> Self {
        Self { in_flight, ..self }
    }

    /// How often a message is tried.
    pub fn retries(self, retries: Retries) -> Self {
        Self { retries, ..self }
    }

    /// After how long a silent consumer is taken for dead, and its message delivered to another.
    /// Heeded when the consumer is created.
    pub fn ack_wait(self, ack_wait: Duration) -> Self {
        Self { ack_wait, ..self }
    }

    /// Where dead letters are published, with their headers and a reason. A stream must take the
    /// subject. Without one, a dead message stays in its stream, and only the log names it.
    pub fn dead_subject(self, subject: impl Into<Box<str>>) -> Self {
        Self {
            dead_subject: Some(subject.into()),
            ..self
        }
    }

    /// Connects in a way of the caller's, as [`Options::connect_with`](super::Options::connect_with)
    /// does.
    pub fn connect_with(self, connect: ConnectOptions) -> Self {
        Self { connect, ..self }
    }

    fn check(&self) -> Result<(), Error> {
        check(self.in_flight, self.retries)?;
        for (what, name) in [("stream", &self.stream), ("consumer", &self.consumer)] {
            if name.is_empty() || name.contains(|c: char| ".*>/\\".contains(c) || c.is_whitespace())
            {
                return Err(Error::Name {
                    what,
                    name: name.clone(),
                    reason: "it is empty, or has blanks, dots, slashes or wildcards",
                });
            }
        }
        Ok(())
    }

    /// Pulls until something is wrong; says what.
    async fn pull(
        &self,
        link: &Link,
        treatment: &Treatment,
        tasks: &mut JoinSet<()>,
    ) -> async_nats::Error {
        match self.pull_on(link, treatment, tasks).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn pull_on(
        &self,
        link: &Link,
        treatment: &Treatment,
        tasks: &mut JoinSet<()>,
    ) -> Result<Infallible, async_nats::Error> {
        let mut state = link.state.clone();
        state.wait_for(|state| state.connected).await?;
        let before = state.borrow_and_update().changes;
        let consumer = self.consumer(link).await?;
        loop {
            // No message is asked for that could not be treated at once: it would wait here, with
            // the server's patience running.
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
                    // What was asked for before is not answered after.
                    _ = state.wait_for(|state| state.changes != before) => {
                        return Err("the connection broke".into());
                    }
                };
                let Some(received) = next.transpose()? else {
                    break;
                };
                tasks.spawn(
                    self.clone()
                        .treat(received, link.clone(), treatment.clone()),
                );
            }
        }
    }

    async fn consumer(&self, link: &Link) -> Result<PullConsumer, async_nats::Error> {
        let config = pull::Config {
            durable_name: Some(self.consumer.to_string()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            // We count: a server that did would let the message go without a word.
            max_deliver: -1,
            max_ack_pending: MAX_ACK_PENDING,
            filter_subject: self.filter.as_deref().unwrap_or_default().to_owned(),
            ..pull::Config::default()
        };
        let stream = link.jetstream.get_stream(&*self.stream).await?;
        Ok(stream
            .get_or_create_consumer(&self.consumer, config)
            .await?)
    }

    async fn treat(self, received: Received, link: Link, treatment: Treatment) {
        let delivery = read(&received);
        let retries = self.retries;
        let message = Held {
            received,
            link,
            ack_wait: self.ack_wait,
            dead_subject: self.dead_subject,
            max_pause: retries.backoff.max_every,
        };
        treatment.treat(message, delivery, retries).await;
    }
}

impl crate::Subscription for Subscription {}

impl Run for Subscription {
    async fn run(self, treatment: Treatment, shutdown: CancellationToken) -> Result<(), Error> {
        self.check()?;
        let link = Link::open(&self.url, self.connect.clone(), PATIENCE).await?;
        let mut tasks = JoinSet::new();
        let mut failures = 0;
        loop {
            let begun = link.state.borrow().changes;
            let error = tokio::select! {
                error = self.pull(&link, &treatment, &mut tasks) => error,
                () = shutdown.cancelled() => break,
            };
            // A connection that was made since is news, and waits for nobody.
            failures = if link.state.borrow().changes == begun {
                failures + 1
            } else {
                1
            };
            let (stream, consumer) = (&*self.stream, &*self.consumer);
            tracing::warn!(stream, consumer, "NATS is asked again in a moment: {error}");
            let pause = RECONNECT.spread(std::process::id(), failures);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.cancelled() => break,
            }
        }
        while tasks.join_next().await.is_some() {}
        if let Err(error) = link.client.flush().await {
            tracing::warn!("the last acknowledgements may be lost: {error}");
        }
        Ok(())
    }
}

fn read(received: &Received) -> Delivery {
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

/// A message of which the server waits for news.
struct Held {
    received: Received,
    link: Link,
    ack_wait: Duration,
    dead_subject: Option<Box<str>>,
    max_pause: Duration,
}

impl Held {
    async fn tell(&self, kind: AckKind) {
        if let Err(error) = self.received.ack_with(kind).await {
            let subject = self.received.subject.as_str();
            tracing::warn!(subject, "a message will be delivered again: {error}");
        }
    }

    /// Publishes a copy where the dead letters are. Confirmed before the original is let go.
    async fn copy_to(&self, subject: &str, reason: &str) -> Result<(), async_nats::Error> {
        let mut headers = self.received.headers.clone().unwrap_or_default();
        let reason: String = cut(reason)
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        headers.insert(DEAD_REASON, reason);
        // The same event may be dead for several consumers, and once for each.
        if let Some(id) = headers.get(async_nats::header::NATS_MESSAGE_ID) {
            let consumer = self.received.info().map_or("", |info| info.consumer);
            let id = format!("dead:{consumer}:{id}");
            headers.insert(async_nats::header::NATS_MESSAGE_ID, id);
        }
        let message = PublishMessage::build()
            .payload(self.received.payload.clone())
            .headers(headers);
        let published = self
            .link
            .jetstream
            .send_publish(subject.to_owned(), message);
        published.await?.await?;
        Ok(())
    }
}

impl Message for Held {
    async fn keep_alive(&self) -> Infallible {
        loop {
            tokio::time::sleep(self.ack_wait / 3).await;
            self.tell(AckKind::Progress).await;
        }
    }

    async fn ack(self) {
        self.tell(AckKind::Ack).await;
    }

    async fn retry(&self, delay: Duration) -> Again {
        self.tell(AckKind::Nak(Some(delay))).await;
        Again::Elsewhere
    }

    async fn bury(self, reason: &str) {
        if let Some(subject) = &self.dead_subject
            && let Err(error) = self.copy_to(subject, reason).await
        {
            tracing::error!("a dead message is kept, since {subject:?} does not take it: {error}");
            return self.tell(AckKind::Nak(Some(self.max_pause))).await;
        }
        self.tell(AckKind::Term).await;
    }
}
