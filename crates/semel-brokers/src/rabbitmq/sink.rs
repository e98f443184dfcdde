//! Publishes events to an exchange, and waits for the confirmation of each.
//!
//! The sink has one connection, and a channel for each unconfirmed message. **Why not one channel
//! for all:** the broker returns a message that no queue accepted before it confirms it, and lapin
//! attaches a returned message to the next confirmation on the channel, whichever message that
//! belongs to. With one message on a channel the assignment is unambiguous. With two, an unroutable
//! message could be reported as published.

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

use super::connection::{connect, declare_exchange, parse_address, short_name};
use super::{AGGREGATE, DEFAULT_ROUTING_KEY};
use crate::consume::RECONNECT;
use crate::template::Template;
use crate::{Error, rejected, unavailable};

/// The maximum number of unconfirmed messages, and so of channels. A connection allows 2047.
pub const MAX_CHANNELS: usize = 256;

/// The default time to wait for a confirmation. A queue on a busy disk can need seconds.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// The protocol's delivery mode of a message that is stored on disk.
const PERSISTENT: u8 = 2;

/// The settings of a [`Sink`].
#[derive(Clone)]
pub struct Options {
    url: Box<str>,
    exchange: Box<str>,
    routing_key: Box<str>,
    timeout: Duration,
    ensure_exchange: bool,
}

/// Publishes to RabbitMQ.
pub struct Sink {
    address: AMQPUri,
    exchange: ShortString,
    routing_key: Template,
    timeout: Duration,
    ensure_exchange: bool,
    connection: tokio::sync::Mutex<ConnectionState>,
    /// Channels without an unconfirmed message.
    idle: Mutex<Vec<Channel>>,
    slots: Semaphore,
}

/// The state of the sink's connection.
enum ConnectionState {
    Connected(Arc<Connection>),
    Failed {
        failures: u32,
        reason: Box<str>,
        /// The earliest time of the next attempt.
        retry_at: Instant,
    },
    NotConnected,
}

impl Options {
    /// The address of a server, `amqp://`, or `amqps://` with the operating system's root
    /// certificates, and the name of an exchange.
    pub fn new(url: impl Into<Box<str>>, exchange: impl Into<Box<str>>) -> Self {
        Self {
            url: url.into(),
            exchange: exchange.into(),
            routing_key: DEFAULT_ROUTING_KEY.into(),
            timeout: CONFIRM_TIMEOUT,
            ensure_exchange: false,
        }
    }

    /// The template of routing keys, by default [`DEFAULT_ROUTING_KEY`], with the placeholders
    /// `{kind}` and `{aggregate}`. Dots in a kind separate levels; all other special characters are
    /// replaced.
    pub fn routing_key(self, template: impl Into<Box<str>>) -> Self {
        Self {
            routing_key: template.into(),
            ..self
        }
    }

    /// How long the sink waits for a confirmation.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Creates the exchange as a durable topic exchange if it does not exist.
    pub fn ensure_exchange(self) -> Self {
        Self {
            ensure_exchange: true,
            ..self
        }
    }

    /// Opens the sink. It connects when the first event is published.
    ///
    /// # Errors
    /// [`Error`] if the settings are invalid.
    pub fn open(self) -> Result<Sink, Error> {
        Ok(Sink {
            address: parse_address(&self.url)?,
            exchange: short_name("exchange", &self.exchange)?,
            routing_key: Template::parse("routing key", &self.routing_key)?,
            timeout: self.timeout,
            ensure_exchange: self.ensure_exchange,
            connection: tokio::sync::Mutex::new(ConnectionState::NotConnected),
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
                .map_err(|_| rejected("the routing key is longer than 255 bytes"))?;
            // On a timeout the channel is dropped with the message, so that a late confirmation
            // cannot be taken for that of another message.
            tokio::time::timeout(self.timeout, self.send(event, routing_key))
                .await
                .unwrap_or_else(|_| {
                    let timeout = self.timeout;
                    Err(unavailable(format!("no confirmation within {timeout:?}")))
                })
        })
    }
}

impl Sink {
    async fn send(&self, event: &Event, routing_key: ShortString) -> Result<(), Refused> {
        let _slot = self.slots.acquire().await.map_err(unavailable)?;
        let channel = self.acquire_channel().await?;
        let options = BasicPublishOptions {
            // Without it the broker confirms and drops a message that no queue accepts.
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
            Confirmation::Nack(_) => Err(unavailable("RabbitMQ could not store the message")),
            Confirmation::NotRequested => {
                return Err(unavailable(
                    "RabbitMQ does not confirm messages on this channel",
                ));
            }
        };
        self.lock_idle().push(channel);
        confirmed
    }

    /// Returns a channel without an unconfirmed message.
    async fn acquire_channel(&self) -> Result<Channel, Refused> {
        let idle = {
            let mut idle = self.lock_idle();
            idle.retain(|channel| channel.status().connected());
            idle.pop()
        };
        if let Some(channel) = idle {
            return Ok(channel);
        }
        let connection = self.ensure_connected().await?;
        let channel = connection.create_channel().await.map_err(unavailable)?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await
            .map_err(unavailable)?;
        Ok(channel)
    }

    /// Returns the connection. One caller connects while the others wait. After a failure the next
    /// attempt is delayed, and callers get the last error until then.
    async fn ensure_connected(&self) -> Result<Arc<Connection>, Refused> {
        let mut state = self.connection.lock().await;
        let failures = match &*state {
            ConnectionState::Connected(connection) if connection.status().connected() => {
                return Ok(Arc::clone(connection));
            }
            ConnectionState::Failed {
                retry_at, reason, ..
            } if Instant::now() < *retry_at => {
                return Err(unavailable(reason));
            }
            ConnectionState::Failed { failures, .. } => *failures,
            ConnectionState::Connected(_) | ConnectionState::NotConnected => 0,
        };
        match self.connect().await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *state = ConnectionState::Connected(Arc::clone(&connection));
                Ok(connection)
            }
            Err(reason) => {
                let failures = failures.saturating_add(1);
                let delay = RECONNECT.spread(std::process::id(), failures);
                tracing::warn!(?delay, "connecting to RabbitMQ failed, retrying: {reason}");
                let refused = unavailable(&reason);
                *state = ConnectionState::Failed {
                    failures,
                    reason: reason.into(),
                    retry_at: Instant::now() + delay,
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
                format!("cannot create the exchange {exchange:?}: {error}")
            })?;
        }
        Ok(connection)
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<Channel>> {
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
