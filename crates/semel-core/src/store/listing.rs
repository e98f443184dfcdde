//! Lists of operations, page by page.

use super::MAX_BATCH;
use crate::{Code, Fence, Identity, Key, OperationId, Record, State, Status, Timestamp};

/// Most operations that one [`list`](crate::Store::list) looks at: one that finds little says how far
/// it has come, and is asked to go on.
pub const MAX_WALK: usize = 100_000;

/// Which operations to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Only those in this state.
    pub status: Option<Status>,
    /// Only this tenant's.
    pub tenant: Option<Box<str>>,
    /// Only this command.
    pub operation: Option<Box<str>>,
    /// Only under this key.
    pub key: Option<Key>,
    /// Only those that wait for a person, or only those that do not.
    pub dead_lettered: Option<bool>,
    /// Only those older than this one, or newer where the list is oldest first: the
    /// [`Page::next`] of the page before.
    pub before: Option<OperationId>,
    /// Oldest first. Only for unknown records, dead-lettered or not: other lists are newest first
    /// whatever this says, because they have no index to bound the other order.
    pub oldest_first: bool,
    /// How many at most; [`MAX_BATCH`] bounds it. 0 asks for [`MAX_BATCH`].
    pub limit: usize,
    /// How many to look at at most, whether they fit or not; [`MAX_WALK`] bounds it. 0 asks for
    /// [`MAX_WALK`]. Where an index has just those that are asked for, all are looked at.
    pub walk: usize,
}

/// Some operations, newest first unless the query asks otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The operations.
    pub operations: Vec<Summary>,
    /// Where the next page begins; `None` where this is the last.
    pub next: Option<OperationId>,
}

/// An operation without its response: what a list shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The operation and its latest attempt.
    pub fence: Fence,
    /// Tenant, command and key.
    pub identity: Identity,
    /// Where it stands.
    pub status: Status,
    /// Since when it waits for a person.
    pub dead_lettered_at: Option<Timestamp>,
    /// Why it is where it is.
    pub last_error: Option<Code>,
    /// When the key was first used.
    pub created_at: Timestamp,
    /// When anything last changed.
    pub updated_at: Timestamp,
}

impl Query {
    /// Whether an operation belongs to the list.
    pub fn admits(&self, operation: &Summary) -> bool {
        fn is<T: PartialEq + ?Sized>(wanted: Option<&T>, found: &T) -> bool {
            wanted.is_none_or(|wanted| wanted == found)
        }
        is(self.status.as_ref(), &operation.status)
            && is(self.tenant.as_deref(), operation.identity.tenant())
            && is(self.operation.as_deref(), operation.identity.operation())
            && is(self.key.as_ref(), operation.identity.key())
            && is(
                self.dead_lettered.as_ref(),
                &operation.dead_lettered_at.is_some(),
            )
            && self.before.is_none_or(|before| {
                if self.is_ascending() {
                    before < operation.fence.id
                } else {
                    operation.fence.id < before
                }
            })
    }

    /// The number of operations on one page.
    pub fn page_size(&self) -> usize {
        match self.limit {
            0 => MAX_BATCH,
            limit => limit.min(MAX_BATCH),
        }
    }

    /// The number of operations that are looked at.
    pub fn walk_length(&self) -> usize {
        match self.walk {
            0 => MAX_WALK,
            walk => walk.min(MAX_WALK),
        }
    }

    /// Whether only unknown records can fit: only these are dead-lettered.
    pub fn is_unknown_only(&self) -> bool {
        self.dead_lettered == Some(true) || self.status == Some(Status::Unknown)
    }

    /// Whether the list is oldest first.
    pub fn is_ascending(&self) -> bool {
        self.oldest_first && self.is_unknown_only()
    }

    /// Whether all that can fit are few: what is under way or unresolved. Of these a store has an
    /// index, and looks at all.
    pub fn is_narrow(&self) -> bool {
        self.is_unknown_only() || self.status == Some(Status::InProgress)
    }
}

impl Page {
    /// A page of `size` out of operations of which one more was looked for than fits. `floor` is
    /// the last operation that was looked at, where there are others beyond.
    pub fn of(mut operations: Vec<Summary>, size: usize, floor: Option<OperationId>) -> Self {
        let more = operations.len() > size;
        operations.truncate(size);
        let next = if more {
            operations.last().map(|last| last.fence.id)
        } else {
            floor
        };
        Self { operations, next }
    }
}

impl From<&Record> for Summary {
    fn from(record: &Record) -> Self {
        Self {
            fence: record.fence(),
            identity: record.identity.clone(),
            status: record.state.status(),
            dead_lettered_at: match &record.state {
                State::Unknown(unresolved) => unresolved.dead_lettered_at,
                State::InProgress(_)
                | State::Completed(_)
                | State::FailedRetryable { .. }
                | State::Expired { .. } => None,
            },
            last_error: record.last_error.clone(),
            created_at: record.created_at,
            updated_at: record.updated_at,
        }
    }
}
