//! Where events go, and where they come from: NATS JetStream, RabbitMQ and HTTP.
//!
//! A [sink](semel_core::outbox::Sink) publishes what an outbox holds, and says that it is
//! published only once the broker keeps it. A [consumer](consume()) hands what a broker holds to a
//! function, and says that it is done only once the function is.
//!
//! ```text
//! Sink::publish ──► the broker confirms ──► Ok          consume ──► handler commits ──► Ok ──► ack
//!               └─► anything else ──► Refused                   └─► Err, panic, death ──► again, later
//! ```
//!
//! So everything arrives at least once, and may arrive twice and out of order. What must happen
//! once is for the consumer's inbox to say, in the transaction of the effect.
//!
//! Each broker is a feature: `nats`, `rabbitmq`, `http`.

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

/// What is wrong with the settings of a sink or a consumer. A broker that is away is no error: it
/// is tried again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No server can be meant by this address. The message does not repeat it, since it may hold a
    /// password.
    #[error("the address of the {server} makes no sense: {reason}")]
    Address {
        /// Whose address it is.
        server: &'static str,
        /// What is wrong with it.
        reason: Box<str>,
    },
    /// Nothing can be sent to, or read from, a place of this name.
    #[error("{name:?} is no {what}: {reason}")]
    Name {
        /// What it should name.
        what: &'static str,
        /// The name.
        name: Box<str>,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// What a consumer may do at once, or how often.
    #[error("{what} is {least} to {most}, and not {found}")]
    Bounds {
        /// Which setting.
        what: &'static str,
        /// The least that makes sense.
        least: u64,
        /// The most that is allowed.
        most: u64,
        /// What it is.
        found: u64,
    },
    /// A secret that nothing can be signed with. The message does not repeat it.
    #[error("the secret of the webhook cannot be used: {0}")]
    Secret(Box<str>),
    /// Nobody could be trusted.
    #[error("TLS cannot be set up: {0}")]
    Tls(Box<str>),
}

/// Nothing is to blame but the way to the broker.
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq"))]
fn unavailable(reason: impl std::fmt::Display) -> semel_core::outbox::Refused {
    semel_core::outbox::Refused::Unavailable(cut(&reason.to_string()))
}

/// The event is to blame.
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq"))]
fn rejected(reason: impl std::fmt::Display) -> semel_core::outbox::Refused {
    semel_core::outbox::Refused::Rejected(cut(&reason.to_string()))
}

#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq"))]
fn cut(reason: &str) -> Box<str> {
    semel_core::outbox::cut_reason(reason).into()
}
