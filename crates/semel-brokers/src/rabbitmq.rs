//! RabbitMQ.
//!
//! ```no_run
//! # async fn demo() -> Result<(), semel_brokers::Error> {
//! use semel_brokers::rabbitmq;
//!
//! let sink = rabbitmq::Options::new("amqp://127.0.0.1:5672/%2f", "events")
//!     .ensure_exchange()
//!     .open()?;
//! # Ok(())
//! # }
//! ```

mod link;
mod sink;
mod subscription;

pub use sink::{MAX_CHANNELS, Options, Sink};
pub use subscription::Subscription;

/// What the routing keys of events are, unless it is told.
pub const DEFAULT_ROUTING_KEY: &str = "{kind}";

/// The header that says to what an event happened. Its id and kind are properties.
const AGGREGATE: &str = "semel-aggregate";
