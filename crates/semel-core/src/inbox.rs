//! Events that come in from elsewhere, once each.
//!
//! Senders deliver at least once, in any order, and sometimes before the operation that an event
//! is about has been recorded here. So an event is stored durably before its delivery is
//! acknowledged; a second delivery finds it; and one that nothing can be made of yet is parked and
//! looked at again.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::Timestamp;

/// Longest source or id of a message, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// How long the marker of a message is remembered, by default: longer than brokers keep what
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
    /// Its content, in the form that a later look needs.
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

/// The result of receiving a message.
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
