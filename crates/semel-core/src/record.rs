//! What a store remembers of an operation.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::{Fingerprint, Identity, Timestamp, Windows};

/// One operation: who asked for what, and how far it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The opaque public name, new for every record.
    pub id: OperationId,
    /// Tenant, command and key.
    pub identity: Identity,
    /// What the client asked for when the key was first used.
    pub fingerprint: Fingerprint,
    /// Starts at 1 and grows by one with every grant of execution.
    pub attempt: u32,
    /// Who the current attempt was granted to, in every state. Where a caller names itself anew for
    /// each reservation, it finds a grant by this whose answer was lost.
    pub owner: Owner,
    /// Where the operation stands.
    pub state: State,
    /// The last phase that committed, where the operation has phases.
    pub recovery: Option<RecoveryPoint>,
    /// What the operation created, where the application said so.
    pub resource: Option<Resource>,
    /// How long the outcome will be remembered.
    pub windows: Windows,
    /// Why the operation is where it is, where that needs a reason.
    pub last_error: Option<Code>,
    /// Who resolved it, if it was unknown and is resolved.
    pub resolved_by: Option<Box<str>>,
    /// When the key was first used.
    pub created_at: Timestamp,
    /// When anything of this record last changed.
    pub updated_at: Timestamp,
}

/// Where an operation stands. There are five states, and no sixth is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// An attempt owns the execution until its lease runs out.
    InProgress(Lease),
    /// The unit of work is over, with success or with a final failure.
    Completed(Completed),
    /// It is proven that nothing happened; the next request may execute.
    FailedRetryable {
        /// When this stops being remembered.
        expires_at: Timestamp,
    },
    /// It may have happened. Only reconciliation leads out of here.
    Unknown(Unresolved),
    /// The replay window is over: a tombstone without a response.
    Expired {
        /// When the tombstone itself may go.
        purge_at: Timestamp,
    },
}

/// The right of one attempt to execute, for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Until when the owner is believed to be alive.
    pub locked_until: Timestamp,
    /// How long after that it may be resumed; `None` where it must not be.
    pub resume_within: Option<Duration>,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// What every retry is given.
    pub response: Response,
    /// When it ended.
    pub completed_at: Timestamp,
    /// When replaying stops: at this instant it is over.
    pub expires_at: Timestamp,
    /// When the body goes, where it goes before the rest.
    pub body_expires_at: Option<Timestamp>,
}

/// What is known about finding out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// When reconciliation next looks.
    pub reconcile_after: Timestamp,
    /// How often it has looked.
    pub reconcile_attempts: u32,
    /// Since when this waits for a person instead.
    pub dead_lettered_at: Option<Timestamp>,
}

/// A [`State`] without its data: the word that is stored, filtered by and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// See [`State::InProgress`].
    InProgress,
    /// See [`State::Completed`].
    Completed,
    /// See [`State::FailedRetryable`].
    FailedRetryable,
    /// See [`State::Unknown`].
    Unknown,
    /// See [`State::Expired`].
    Expired,
}

/// What was sent to the first caller, and is sent to every other.
///
/// It may be confidential, so `Debug` shows its size and not its content.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status, or the application's own code.
    pub status: u16,
    /// The stored headers, all lines, in order. Values are bytes: not all are text.
    pub headers: Vec<(Box<str>, Bytes)>,
    /// The body, exactly. `None` where it is not stored (too large, dropped, erased),
    /// which is not the same as an empty one.
    pub body: Option<Bytes>,
    /// Which version of the API's representation this is; 0 where the API has none.
    pub schema_version: u16,
}

/// Where an operation made of phases stands. `Debug` shows the name and not the data.
#[derive(Clone, PartialEq, Eq)]
pub struct RecoveryPoint {
    /// The name of the last phase that committed.
    pub name: Box<str>,
    /// What that phase left for later ones.
    pub data: Bytes,
}

/// What an operation created, for callers whose response is no longer stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// For example `payment`.
    pub kind: Box<str>,
    /// For example `pay_789`.
    pub id: Box<str>,
}

/// One grant of execution: every write of its holder names it, and no other grant is ever
/// named the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The record.
    pub id: OperationId,
    /// The attempt within it.
    pub attempt: u32,
}

/// The opaque public name of an operation: a UUIDv7, so that names sort by creation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(Uuid);

/// A stable machine-readable reason, such as `in_progress_lock_expired`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Code(Cow<'static, str>);

/// Who executes: host, process, task. The fence protects a record, not this; but an attempt whose
/// number its caller never heard is found by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(Arc<str>);

impl Record {
    /// What the holder of the current attempt must name in every write.
    pub fn fence(&self) -> Fence {
        Fence {
            id: self.id,
            attempt: self.attempt,
        }
    }
}

impl Lease {
    /// When the sweeper may mark it unknown.
    pub fn sweep_at(&self) -> Timestamp {
        let waits = self.resume_within.unwrap_or_default();
        self.locked_until.saturating_add(waits)
    }

    /// When the owner may be replaced; `None` where it must not be.
    pub fn resume_at(&self) -> Option<Timestamp> {
        self.resume_within.map(|_| self.locked_until)
    }
}

impl State {
    /// The status of this state.
    pub fn status(&self) -> Status {
        match self {
            Self::InProgress(_) => Status::InProgress,
            Self::Completed(_) => Status::Completed,
            Self::FailedRetryable { .. } => Status::FailedRetryable,
            Self::Unknown(_) => Status::Unknown,
            Self::Expired { .. } => Status::Expired,
        }
    }
}

impl Status {
    /// All five, in the order of a life.
    pub const ALL: [Self; 5] = [
        Self::InProgress,
        Self::Completed,
        Self::FailedRetryable,
        Self::Unknown,
        Self::Expired,
    ];

    /// The status as it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::FailedRetryable => "failed_retryable",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
        }
    }

    /// The status with that stored form, if there is one.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RecoveryPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.name, self.data.len())
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("headers", &self.headers.len())
            .field("body_bytes", &self.body.as_ref().map(Bytes::len))
            .field("schema_version", &self.schema_version)
            .finish()
    }
}

impl OperationId {
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

    /// The key for a call that this operation makes elsewhere: the same on every attempt,
    /// another for every step, and in the form of a UUID, which every provider takes.
    ///
    /// ```
    /// # use semel_core::OperationId;
    /// let id: OperationId = "01890a5d-ac96-774b-bcce-b302099a8057".parse()?;
    /// assert_eq!(id.downstream_key("charge"), "1bb40324-1c38-8251-b3f9-5d4b6cd76ccd");
    /// assert_ne!(id.downstream_key("charge"), id.downstream_key("refund"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn downstream_key(&self, step: &str) -> String {
        let digest = Sha256::new()
            .chain_update(b"semel downstream key\0")
            .chain_update(self.as_bytes())
            .chain_update(step.as_bytes())
            .finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Uuid::new_v8(bytes).to_string()
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for OperationId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl Code {
    /// Longest code, in bytes: it is an identifier, not a message.
    pub const MAX_BYTES: usize = 64;

    /// The lease ran out before the owner said how it ended.
    pub const LEASE_EXPIRED: Self = Self(Cow::Borrowed("in_progress_lock_expired"));

    /// A code, cut at [`Code::MAX_BYTES`] where it is longer.
    pub fn new(code: impl Into<Cow<'static, str>>) -> Self {
        let mut code = code.into();
        if code.len() > Self::MAX_BYTES {
            let end = code.floor_char_boundary(Self::MAX_BYTES);
            code.to_mut().truncate(end);
        }
        Self(code)
    }

    /// The code's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&'static str> for Code {
    fn from(code: &'static str) -> Self {
        Self::new(code)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Owner {
    /// The owner's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Into<Arc<str>>> From<T> for Owner {
    fn from(owner: T) -> Self {
        Self(owner.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_words_lead_back() {
        for status in Status::ALL {
            assert_eq!(Status::from_word(status.as_str()), Some(status));
        }
        assert_eq!(Status::from_word("failed"), None);
    }

    #[test]
    fn operation_ids_grow_and_lead_back() {
        let ids: Vec<_> = (0..1000).map(|_| OperationId::generate()).collect();
        assert!(ids.is_sorted_by(|a, b| a < b));
        for id in ids {
            assert_eq!(OperationId::from_bytes(*id.as_bytes()), id);
            assert_eq!(id.to_string().parse::<OperationId>().unwrap(), id);
        }
    }

    #[test]
    fn a_response_does_not_show_in_debug_output() {
        let response = Response {
            status: 201,
            headers: vec![("set-cookie".into(), Bytes::from_static(b"secret"))],
            body: Some(Bytes::from_static(b"secret")),
            schema_version: 0,
        };
        let shown = format!("{response:?}");
        assert!(
            !shown.contains("secret") && !shown.contains("115"),
            "{shown}"
        );
    }

    #[test]
    fn a_code_is_cut_between_characters() {
        let code = Code::new("é".repeat(40));
        assert_eq!(code.as_str(), "é".repeat(32));
        assert_eq!(Code::new("x".repeat(65)).as_str().len(), Code::MAX_BYTES);
    }
}
