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

mod connection;
mod sink;
mod subscription;

pub use async_nats::ConnectOptions;
pub use sink::{Options, Sink, Stream};
pub use subscription::Subscription;

/// The default template of subjects.
pub const DEFAULT_SUBJECT: &str = "semel.{kind}";

/// The headers of an event. Its id is in NATS's own header.
const KIND: &str = "Semel-Event-Kind";
const AGGREGATE: &str = "Semel-Aggregate";
/// The header of a dead letter that contains the reason.
const DEAD_REASON: &str = "Semel-Dead-Reason";
