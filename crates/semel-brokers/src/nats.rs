//! NATS JetStream.
//!
//! ```no_run
//! # async fn demo() -> Result<(), semel_brokers::Error> {
//! use semel_brokers::nats;
//!
//! let sink = nats::Options::new("nats://127.0.0.1:4222")
//!     .ensure_stream(nats::Stream::new("events"))
//!     .open()
//!     .await?;
//! # Ok(())
//! # }
//! ```

mod link;
mod sink;
mod subscription;

pub use async_nats::ConnectOptions;
pub use sink::{Options, Sink, Stream};
pub use subscription::Subscription;

/// What the subjects of events are, unless it is told.
pub const DEFAULT_SUBJECT: &str = "semel.{kind}";

/// The headers of an event, beside the one that NATS has for its id.
const KIND: &str = "Semel-Event-Kind";
const AGGREGATE: &str = "Semel-Aggregate";
/// Why a message is among the dead letters.
const DEAD_REASON: &str = "Semel-Dead-Reason";
