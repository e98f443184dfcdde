//! Sinks and consumers for NATS JetStream and RabbitMQ, and a sink for HTTP.
//!
//! A [sink](semel_core::outbox::Sink) publishes the events of an outbox. It returns `Ok` after the
//! broker has confirmed that it stores the event. A [consumer](consume()) passes messages to a
//! handler, and acknowledges a message after the handler has returned `Ok`.
//!
//! ```text
//! Sink::publish ──► the broker confirms ──► Ok          consume ──► handler commits ──► Ok ──► ack
//!               └─► anything else ──► Refused                   └─► Err, panic, crash ──► redelivered
//! ```
//!
//! So every event is delivered at least once, possibly more than once and out of order. A consumer
//! that must act once uses an inbox in the transaction of its effect.
//!
//! Each broker has its own feature: `nats`, `rabbitmq`, `http`.

#[cfg(any(feature = "nats", feature = "rabbitmq"))]
mod consume;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(any(feature = "nats", feature = "rabbitmq"))]
mod template;

#[cfg(any(feature = "nats", feature = "rabbitmq"))]
pub use consume::{Delivery, MAX_IN_FLIGHT, Retries, Subscription, consume};
pub use tokio_util::sync::CancellationToken;

/// Invalid settings of a sink or a consumer. An unreachable broker is not an error: the connection
/// is retried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is invalid. The message does not contain it, because it may hold a password.
    #[error("invalid address of the {server}: {reason}")]
    Address {
        /// The server whose address it is.
        server: &'static str,
        /// Why it is invalid.
        reason: Box<str>,
    },
    /// The name of a stream, queue, exchange, consumer, subject or routing key is invalid.
    #[error("invalid {kind} {name:?}: {reason}")]
    Name {
        /// What it names.
        kind: &'static str,
        /// The name.
        name: Box<str>,
        /// Why it is invalid.
        reason: &'static str,
    },
    /// A number is outside its bounds.
    #[error("invalid {setting} {value}: must be between {min} and {max}")]
    Bounds {
        /// The setting.
        setting: &'static str,
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
        /// The given value.
        value: u64,
    },
    /// A signing secret is invalid. The message does not contain it.
    #[error("invalid webhook secret: {0}")]
    Secret(Box<str>),
    /// The TLS client cannot be built, for example because there are no root certificates.
    #[error("TLS cannot be set up: {0}")]
    Tls(Box<str>),
}

/// The broker could not be reached or did not confirm; the event is retried.
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq"))]
fn unavailable(reason: impl std::fmt::Display) -> semel_core::outbox::Refused {
    semel_core::outbox::Refused::Unavailable(truncate_reason(&reason.to_string()))
}

/// The broker would refuse this event again.
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq"))]
fn rejected(reason: impl std::fmt::Display) -> semel_core::outbox::Refused {
    semel_core::outbox::Refused::Rejected(truncate_reason(&reason.to_string()))
}

#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq"))]
fn truncate_reason(reason: &str) -> Box<str> {
    semel_core::outbox::cut_reason(reason).into()
}
