//! Events that come in from elsewhere, once each.
//!
//! Senders deliver at least once, in any order, and sometimes before the operation that an event
//! is about has been recorded here. So an event is kept, durably, before its sender is told that
//! it arrived; a second delivery finds it; and one that nothing can be made of yet is parked and
//! looked at again.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::store::Result;
use crate::{Backoff, Timestamp};

/// Longest source or id of a message, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// How long the marker of a message is remembered, unless it is told: longer than brokers keep what
/// they could repeat. Most keep a week, and people repeat what was set aside after a weekend or a
/// holiday.
pub const REMEMBER: Duration = Duration::from_hours(14 * 24);

/// An event as it came in. `Debug` shows how long it is, not what it says.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// Who sent it.
    pub source: Box<str>,
    /// The sender's name for it, the same in every delivery.
    pub id: Box<str>,
    /// What it says, as whoever looks at it later needs it.
    pub payload: Bytes,
}

/// How a message is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handling {
    /// When it is looked at if the one who received it does not settle it.
    pub look_after: Duration,
    /// How long its id is remembered: longer than the sender repeats it.
    pub remember: Duration,
}

/// What the one who received a message is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// It is new, and parked until it is settled.
    New,
    /// It came before.
    Repeated,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once<T> {
    /// The effect happened now, with this result.
    Done(T),
    /// It happened before.
    Again,
}

/// A message that nothing could be made of yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// The message.
    pub message: Message,
    /// How often it was looked at, this time included.
    pub tries: u32,
    /// When it came in.
    pub received_at: Timestamp,
}

/// What a store keeps of events from elsewhere. May be used by many processes at once.
///
/// # Errors
/// As in [`store`](crate::store).
///
/// # Cancellation
/// As for [`Store`](crate::Store).
pub trait Inbox: Send + Sync + 'static {
    /// Remembers a message unless one of that source and id is remembered already. Where it is
    /// new it is durable and parked by the time this returns.
    fn receive(
        &self,
        message: Message,
        handling: Handling,
    ) -> impl Future<Output = Result<Receipt>> + Send;

    /// Nothing more is to be done with it: only its id is kept.
    fn settle(&self, source: &str, id: &str) -> impl Future<Output = Result<()>> + Send;

    /// Hands up to `limit` parked messages whose time has come to this caller, longest due
    /// first, and schedules the next look at each.
    fn claim_parked(
        &self,
        backoff: Backoff,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Parked>>> + Send;

    /// Forgets up to `limit` messages whose time is over, parked or not; says how many.
    fn forget(&self, limit: usize) -> impl Future<Output = Result<usize>> + Send;
}

impl Message {
    /// Four bytes that spread messages over time, the same whenever they are asked for.
    pub fn seed(&self) -> u32 {
        use sha2::{Digest as _, Sha256};
        let digest = Sha256::new()
            .chain_update(self.source.as_bytes())
            .chain_update([0])
            .chain_update(self.id.as_bytes())
            .finalize();
        u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{} ({} bytes)",
            self.source,
            self.id,
            self.payload.len()
        )
    }
}
