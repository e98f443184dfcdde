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

mod connection;
mod sink;
mod subscription;

pub use sink::{MAX_CHANNELS, Options, Sink};
pub use subscription::Subscription;

/// The default template of routing keys.
pub const DEFAULT_ROUTING_KEY: &str = "{kind}";

/// The header with the aggregate of an event. Its id and kind are message properties.
const AGGREGATE: &str = "semel-aggregate";
