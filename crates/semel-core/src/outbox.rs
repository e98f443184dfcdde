//! Events that go out to elsewhere, at least once each.
//!
//! An event is written in the transaction of the change that it reports, so neither exists without
//! the other.
//! A relay publishes what is written: in order within an aggregate, and removed only once the
//! broker has confirmed that it keeps it. What was published and not removed is published again,
//! under the same id; a consumer that must act once says so to its inbox.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;

use bytes::Bytes;
use uuid::Uuid;

use crate::Timestamp;

/// Longest kind or aggregate of an event, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// Largest payload of an event, in bytes: the default limit of brokers.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;

/// Longest reason that is kept of a failure, in bytes.
pub const MAX_REASON_BYTES: usize = 1024;

/// The name of an event, the same whenever it is published. It grows with time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(Uuid);

/// Something that happened. `Debug` shows how long it is, not what it says.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    /// Its name: the broker's and the consumers' deduplication id.
    pub id: EventId,
    /// What happened, such as `payment.created`.
    pub kind: Box<str>,
    /// To what, such as `payment/pay_789`: events of one aggregate are published in order.
    pub aggregate: Box<str>,
    /// All else, in JSON.
    pub payload: Bytes,
}

/// What is wrong with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A name that is empty, too long, or has control characters or spaces.
    #[error(
        "the {0} of an event has 1 to {MAX_NAME_BYTES} bytes, without spaces and control characters"
    )]
    Name(&'static str),
    /// A payload that brokers refuse.
    #[error("the payload of an event has at most {MAX_PAYLOAD_BYTES} bytes")]
    Payload,
}

/// An event that waits to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The event.
    pub event: Event,
    /// How often the broker refused it.
    pub tries: u32,
    /// When it was written.
    pub written_at: Timestamp,
}

/// An event that no broker took, and that waits for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadEvent {
    /// The event.
    pub event: Event,
    /// When it was written.
    pub written_at: Timestamp,
    /// When it was set aside.
    pub dead_at: Timestamp,
    /// What the broker said.
    pub reason: Box<str>,
}

/// How an outbox stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Events that wait to be published, up to a bound: counting all of a long backlog is work
    /// that the backlog can do without.
    pub waiting: u64,
    /// When the oldest of them was written.
    pub oldest: Option<Timestamp>,
    /// Events that wait for a person.
    pub dead: u64,
}

/// Counting stops here.
pub const MAX_BACKLOG_COUNTED: u64 = 100_000;

/// Where events go.
pub trait Sink: Send + Sync + 'static {
    /// Publishes one event under its id, and returns once the broker has confirmed that it keeps
    /// it. Called for many events at once.
    fn publish<'a>(&'a self, event: &'a Event) -> Publishing<'a>;
}

/// An event on its way.
pub type Publishing<'a> = Pin<Box<dyn Future<Output = Result<(), Refused>> + Send + 'a>>;

/// Why an event is not published, as far as is known: it may have arrived all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The broker cannot be reached or is not well. All events wait, and none is to blame.
    #[error("the broker is unavailable: {0}")]
    Unavailable(Box<str>),
    /// The broker does not want this one.
    #[error("the broker refused the event: {0}")]
    Rejected(Box<str>),
}

impl Event {
    /// A new event.
    ///
    /// # Errors
    /// See [`Invalid`].
    pub fn new(
        kind: impl Into<Box<str>>,
        aggregate: impl Into<Box<str>>,
        payload: impl Into<Bytes>,
    ) -> Result<Self, Invalid> {
        let event = Self {
            id: EventId::generate(),
            kind: kind.into(),
            aggregate: aggregate.into(),
            payload: payload.into(),
        };
        event.check()?;
        Ok(event)
    }

    /// The same event under a name of the caller's: written again while it waits, it is there once.
    pub fn with_id(self, id: EventId) -> Self {
        Self { id, ..self }
    }

    /// Whether it can be published. Stores ask before they write.
    ///
    /// # Errors
    /// See [`Invalid`].
    pub fn check(&self) -> Result<(), Invalid> {
        // Brokers make subjects and headers of these.
        let fits = |name: &str| {
            (1..=MAX_NAME_BYTES).contains(&name.len())
                && !name.contains(|c: char| c.is_control() || c.is_whitespace())
        };
        if !fits(&self.kind) {
            return Err(Invalid::Name("kind"));
        }
        if !fits(&self.aggregate) {
            return Err(Invalid::Name("aggregate"));
        }
        if self.payload.len() > MAX_PAYLOAD_BYTES {
            return Err(Invalid::Payload);
        }
        Ok(())
    }
}

impl EventId {
    /// A new name, greater than all that this process made before.
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// The name with these bytes, as a store kept them.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The bytes of the name, which sort as the names do.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// Four bytes that spread events over time, the same whenever they are asked for.
    pub fn seed(&self) -> u32 {
        let [.., a, b, c, d] = *self.as_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            kind,
            aggregate,
            payload,
        } = self;
        let bytes = payload.len();
        write!(f, "{kind} {id} of {aggregate} ({bytes} bytes)")
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for EventId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// As much of a reason as is kept.
pub fn cut_reason(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(MAX_REASON_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_no_broker_takes_is_not_made() {
        let made = |kind: &str, aggregate: &str, bytes: usize| {
            Event::new(kind, aggregate, vec![b'1'; bytes]).map(|_| ())
        };
        assert_eq!(
            made("payment.created", "payment/1", MAX_PAYLOAD_BYTES),
            Ok(())
        );
        assert_eq!(made("", "payment/1", 1), Err(Invalid::Name("kind")));
        assert_eq!(made("a b", "payment/1", 1), Err(Invalid::Name("kind")));
        assert_eq!(made("a", "", 1), Err(Invalid::Name("aggregate")));
        assert_eq!(made("a", "b\r\nc", 1), Err(Invalid::Name("aggregate")));
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        assert_eq!(made("a", &long, 1), Err(Invalid::Name("aggregate")));
        assert_eq!(made("a", "b", MAX_PAYLOAD_BYTES + 1), Err(Invalid::Payload));
    }
}
