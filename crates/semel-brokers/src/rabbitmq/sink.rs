//! Events to an exchange, each confirmed.
//!
//! One connection, and a channel for each message that is under way. **Why not one channel for
//! all:** the broker tells of a message that no queue took by sending it back before it confirms
//! it, and lapin gives what came back to whichever confirmation it sees next. With one message on a
//! channel there is only one whose it can be; with two, the wrong one would be taken for published.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use semel_core::outbox::{self, Event, Publishing, Refused};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::link::{address, connect, declare_exchange, name};
use super::{AGGREGATE, DEFAULT_ROUTING_KEY};
use crate::consume::RECONNECT;
use crate::template::Template;
use crate::{Error, rejected, unavailable};

/// The most messages under way, and so the most channels: far below the 2047 of a connection.
pub const MAX_CHANNELS: usize = 256;

/// How long a confirmation is waited for, unless it is told. A queue on a busy disk takes its time.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the protocol calls a message that is kept on disk.
const PERSISTENT: u8 = 2;

/// How a [`Sink`] is opened.
#[derive(Clone)]
pub struct Options {
    url: Box<str>,
    exchange: Box<str>,
    routing_key: Box<str>,
    patience: Duration,
    ensure_exchange: bool,
}

/// Publishes to RabbitMQ.
pub struct Sink {
    address: AMQPUri,
    exchange: ShortString,
    routing_key: Template,
    patience: Duration,
    ensure_exchange: bool,
    line: tokio::sync::Mutex<Line>,
    /// Channels with nothing under way.
    idle: Mutex<Vec<Channel>>,
    slots: Semaphore,
}

/// The connection.
enum Line {
    Up(Arc<Connection>),
    Down {
        failures: u32,
        reason: Box<str>,
        /// Not tried again before.
        until: Instant,
    },
    New,
}

impl Options {
    /// An exchange, at a server by its address: `amqp://`, or `amqps://` with the certificates
    /// that the system trusts.
    pub fn new(url: impl Into<Box<str>>, exchange: impl Into<Box<str>>) -> Self {
        Self {
            url: url.into(),
            exchange: exchange.into(),
            routing_key: DEFAULT_ROUTING_KEY.into(),
            patience: PATIENCE,
            ensure_exchange: false,
        }
    }

    /// The routing key of an event, [`DEFAULT_ROUTING_KEY`] unless it is told: `{kind}` and
    /// `{aggregate}` are filled in. Dots of a kind are levels; nothing else of a name is.
    pub fn routing_key(self, template: impl Into<Box<str>>) -> Self {
        Self {
            routing_key: template.into(),
            ..self
        }
    }

    /// How long a confirmation is waited for.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Creates the exchange, durable and by topic, where there is none.
    pub fn ensure_exchange(self) -> Self {
        Self {
            ensure_exchange: true,
            ..self
        }
    }

    /// Opens the sink. The connection is made by the first event.
    ///
    /// # Errors
    /// [`Error`], where the settings make no sense.
    pub fn open(self) -> Result<Sink, Error> {
        Ok(Sink {
            address: address(&self.url)?,
            exchange: name("exchange", &self.exchange)?,
            routing_key: Template::parse("routing key", &self.routing_key)?,
            patience: self.patience,
            ensure_exchange: self.ensure_exchange,
            line: tokio::sync::Mutex::new(Line::New),
            idle: Mutex::default(),
            slots: Semaphore::new(MAX_CHANNELS),
        })
    }
}

impl outbox::Sink for Sink {
    fn publish<'a>(&'a self, event: &'a Event) -> Publishing<'a> {
        Box::pin(async move {
            event.check().map_err(rejected)?;
            let routing_key = ShortString::try_new(self.routing_key.fill(event))
                .map_err(|_| rejected("its routing key has more than 255 bytes"))?;
            // Given up, a message takes its channel with it: what the broker says of it later is
            // heard by nobody.
            tokio::time::timeout(self.patience, self.send(event, routing_key))
                .await
                .unwrap_or_else(|_| {
                    let patience = self.patience;
                    Err(unavailable(format!("no confirmation within {patience:?}")))
                })
        })
    }
}

impl Sink {
    async fn send(&self, event: &Event, routing_key: ShortString) -> Result<(), Refused> {
        let _slot = self.slots.acquire().await.map_err(unavailable)?;
        let channel = self.channel().await?;
        let options = BasicPublishOptions {
            // Without it a message that no queue takes is confirmed, and gone.
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let confirmation = async {
            let published = channel.basic_publish(
                self.exchange.clone(),
                routing_key.clone(),
                options,
                &event.payload,
                properties(event)?,
            );
            published
                .await
                .map_err(unavailable)?
                .await
                .map_err(unavailable)
        };
        let confirmed = match confirmation.await? {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) => Err(unavailable(format!(
                "no queue is bound to the exchange {:?} for the routing key {:?}",
                self.exchange.as_str(),
                routing_key.as_str(),
            ))),
            Confirmation::Nack(_) => Err(unavailable("RabbitMQ could not keep the message")),
            Confirmation::NotRequested => return Err(unavailable("RabbitMQ does not confirm")),
        };
        self.idle().push(channel);
        confirmed
    }

    /// A channel on which nothing is under way.
    async fn channel(&self) -> Result<Channel, Refused> {
        let idle = {
            let mut idle = self.idle();
            idle.retain(|channel| channel.status().connected());
            idle.pop()
        };
        if let Some(channel) = idle {
            return Ok(channel);
        }
        let connection = self.connection().await?;
        let channel = connection.create_channel().await.map_err(unavailable)?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await
            .map_err(unavailable)?;
        Ok(channel)
    }

    /// The connection, made by one for all who wait. After failures nobody tries for a while.
    async fn connection(&self) -> Result<Arc<Connection>, Refused> {
        let mut line = self.line.lock().await;
        let failures = match &*line {
            Line::Up(connection) if connection.status().connected() => {
                return Ok(Arc::clone(connection));
            }
            Line::Down { until, reason, .. } if Instant::now() < *until => {
                return Err(unavailable(reason));
            }
            Line::Down { failures, .. } => *failures,
            Line::Up(_) | Line::New => 0,
        };
        match self.connect().await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *line = Line::Up(Arc::clone(&connection));
                Ok(connection)
            }
            Err(reason) => {
                let failures = failures.saturating_add(1);
                let pause = RECONNECT.spread(std::process::id(), failures);
                tracing::warn!(?pause, "RabbitMQ is tried again: {reason}");
                let refused = unavailable(&reason);
                *line = Line::Down {
                    failures,
                    reason: reason.into(),
                    until: Instant::now() + pause,
                };
                Err(refused)
            }
        }
    }

    async fn connect(&self) -> Result<Connection, String> {
        let connection = connect(&self.address).await?;
        if self.ensure_exchange {
            let declared = async {
                let channel = connection.create_channel().await?;
                declare_exchange(&channel, &self.exchange).await
            };
            declared.await.map_err(|error| {
                let exchange = self.exchange.as_str();
                format!("the exchange {exchange:?} cannot be created: {error}")
            })?;
        }
        Ok(connection)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn properties(event: &Event) -> Result<BasicProperties, Refused> {
    let short = |text: &str| ShortString::try_new(text).map_err(rejected);
    let mut headers = FieldTable::default();
    headers.insert(
        AGGREGATE.into(),
        AMQPValue::LongString((&*event.aggregate).into()),
    );
    Ok(BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short(&event.id.to_string())?)
        .with_type(short(&event.kind)?)
        .with_content_type("application/json".into())
        .with_headers(headers))
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the address, which may hold a password.
        f.debug_struct("Sink")
            .field("exchange", &self.exchange.as_str())
            .field("routing_key", &self.routing_key)
            .finish_non_exhaustive()
    }
}
