//! The verbs of a store: one table, from which [`Request`], [`Verb`] and the typed methods of
//! [`Store`] are made.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::{
    AttemptEnded, Backend, OperationFilter, Page, Query, Result, Summary, UnfinishedCounts,
};
use crate::contract::{Contracts, Published, RecordFilter, RecordsInUse};
use crate::history::Entry;
use crate::inbox::{Handling, Message, Parked, Receipt};
use crate::outbox::{Backlog, DeadEvent, EventId, Waiting};
use crate::statistics::{Activity, Caller, Misuse, RecordCounts, RecordScan};
use crate::transition::{Completion, Decision, Held, Reserve, Resolution, Resolve};
use crate::{
    Actor, Backoff, Code, Fence, Identity, Key, OperationId, Owner, Record, RecoveryPoint,
    Resource, Timestamp,
};

/// The type of a request's field: the argument's own, or the owned one that it is kept as.
macro_rules! field {
    ($given:ty) => {
        $given
    };
    ($given:ty as $kept:ty) => {
        $kept
    };
}

/// The value of a request's field.
macro_rules! value {
    ($argument:ident) => {
        $argument
    };
    ($argument:ident as $kept:ty) => {
        <$kept>::from($argument.to_owned())
    };
}

macro_rules! verbs {
    ($(
        $(#[doc = $doc:literal])*
        $verb:ident: $method:ident(
            $($argument:ident: $given:ty $(as $kept:ty)?),*
        ) -> $answer:ty;
    )*) => {
        /// One call of a store: a verb with its arguments. [`Store`] has a method for each, which
        /// says what it means.
        #[derive(Clone, Debug)]
        #[allow(missing_docs, reason = "fields are the arguments of the method of that name")]
        #[allow(
            clippy::large_enum_variant,
            reason = "a box would cost every reservation an allocation"
        )]
        pub enum Request {
            $(
                #[doc = concat!("[`Store::", stringify!($method), "`]")]
                $verb { $($argument: field!($given $(as $kept)?)),* },
            )*
        }

        /// The name of a [`Request`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Verb {
            $(
                #[doc = concat!("[`Store::", stringify!($method), "`]")]
                $verb,
            )*
        }

        impl Request {
            /// Its verb, for metrics, logs and fault injection.
            pub fn verb(&self) -> Verb {
                match self {
                    $(Self::$verb { .. } => Verb::$verb,)*
                }
            }
        }

        impl Verb {
            /// All verbs, in the order in which a new store implements them.
            pub const ALL: &[Self] = &[$(Self::$verb),*];

            /// The verb as its method is called, such as `reserve`.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$verb => stringify!($method),)*
                }
            }
        }

        /// The typed methods of a store, one for each verb of a [`Request`].
        ///
        /// Every [`Backend`] has them, and none can replace them: a wrapper that handles a verb
        /// handles it in [`Backend::call`], where all callers pass.
        ///
        /// # Errors
        /// All methods return [`Error`](super::Error), which says whether the call may have
        /// been performed.
        ///
        /// # Cancellation
        /// Dropping the future of any method does not take the call back: it may or may not be
        /// performed, exactly as if the process had died.
        pub trait Store: Backend {
            $(
                $(#[doc = $doc])*
                fn $method(
                    &self,
                    $($argument: $given),*
                ) -> impl Future<Output = Result<$answer>> + Send {
                    let request = Request::$verb {
                        $($argument: value!($argument $(as $kept)?)),*
                    };
                    async move { self.call(request).await?.into_answer(Verb::$verb) }
                }
            )*
        }
    };
}

verbs! {
    // Request path: the layer's calls for every request.

    /// Asks to execute. See [`transition::reserve`](fn@crate::transition::reserve).
    ///
    /// # Errors
    /// On any error the caller must not execute.
    Reserve: reserve(request: Reserve) -> Decision;

    /// Reports the outcome of an attempt. See
    /// [`transition::complete`](crate::transition::complete).
    ///
    /// # Errors
    /// After [`Error::Ambiguous`](super::Error::Ambiguous) the caller repeats the same call until
    /// it is answered.
    Complete: complete(fence: Fence, completion: Completion) -> Held;

    /// Reports that the attempt had no effect. See
    /// [`transition::release`](crate::transition::release).
    ///
    /// # Errors
    /// After an error the lease expires and the record becomes unknown: safe, but slow.
    Release: release(fence: Fence, code: Code) -> Held;

    /// As [`release`](Store::release), and deletes the record if this was its first attempt. See
    /// [`transition::evict`](crate::transition::evict).
    ///
    /// # Errors
    /// As [`release`](Store::release).
    Evict: evict(fence: Fence, code: Code) -> Held;

    /// Reports that the attempt may have had its effect, and which resource it created if it
    /// did, where that is known. See
    /// [`transition::mark_unknown`](crate::transition::mark_unknown).
    ///
    /// # Errors
    /// As [`release`](Store::release).
    MarkUnknown: mark_unknown(fence: Fence, code: Code, resource: Option<Resource>) -> Held;

    /// Extends the lease of a running attempt. See
    /// [`transition::heartbeat`](crate::transition::heartbeat).
    ///
    /// # Errors
    /// The lease is unchanged, or extended.
    Heartbeat: heartbeat(fence: Fence, lease: Duration) -> Held;

    /// Stores a recovery point: a phase of the attempt has committed. See
    /// [`transition::advance`](crate::transition::advance).
    ///
    /// # Errors
    /// After [`Error::Ambiguous`](super::Error::Ambiguous) the caller repeats the same call until
    /// it is answered. The first write may still land after that and set the point back to
    /// itself, so the caller must not act on a later point before another attempt holds the
    /// record.
    Advance: advance(fence: Fence, point: RecoveryPoint) -> Held;

    /// Subscribes to the end of an attempt, in any process. The store listens by the time this
    /// returns, so a lookup after it misses nothing. `None` where the store has no
    /// notifications; the caller polls then.
    Watch: watch(fence: Fence) -> Option<AttemptEnded>;

    // Maintenance: the worker's calls. Each does a bounded amount of work, and many processes may
    // make it at once. After an error some or none of the batch is done; the next call finds
    // the rest.

    /// Turns up to `limit` attempts whose lease has expired, and which are not to be resumed, into
    /// unknowns, and returns them.
    Sweep: sweep(limit: usize) -> Vec<Fence>;

    /// Gives up to `limit` resumable attempts of one operation whose lease has expired to `owner`
    /// as their next attempts, longest expired first.
    ClaimAbandoned: claim_abandoned(
        operation: &str as Box<str>,
        owner: Owner,
        lease: Duration,
        limit: usize
    ) -> Vec<Record>;

    /// Gives up to `limit` due unknowns to this caller, longest due first, and schedules the next
    /// look at each.
    ClaimDue: claim_due(
        filter: OperationFilter,
        backoff: Backoff,
        limit: usize
    ) -> Vec<Record>;

    /// Applies a verdict to an unknown record.
    Resolve: resolve(verdict: Resolve) -> Resolution;

    /// Marks an unknown record for manual resolution.
    DeadLetter: dead_letter(fence: Fence, code: Code) -> Resolution;

    /// Ends up to `limit` replay windows that are over; returns their number.
    Expire: expire(limit: usize) -> usize;

    /// Deletes up to `limit` bodies whose window is over; returns their number.
    DropBodies: drop_bodies(limit: usize) -> usize;

    /// Deletes up to `limit` tombstones whose window is over; returns their number.
    Purge: purge(limit: usize) -> usize;

    /// Deletes the stored body and headers, the data of phases, and the evidence in the history
    /// (its hashes stay). Returns whether the record is completed; nothing else is erased.
    Erase: erase(id: OperationId, by: Actor) -> bool;

    /// Writes to the history that a person is about to see the stored response. Returns whether
    /// the record is completed; nothing else has a response. The response must not be shown if
    /// this fails.
    AuditReveal: audit_reveal(id: OperationId, by: Actor) -> bool;

    // Inspection: reads.

    /// The record with that id.
    Find: find(id: OperationId) -> Option<Record>;

    /// The record of that identity.
    FindIdentity: find_identity(identity: &Identity as Identity) -> Option<Record>;

    /// The newest record that created the resource with that id, or was about to.
    FindResource: find_resource(resource_id: &str as Box<str>) -> Option<Record>;

    /// The history of a record, oldest entry first: all that happened to it besides an ordinary
    /// execution.
    History: history(id: OperationId) -> Vec<Entry>;

    /// The number of running and unresolved records, by operation. Its cost grows with these, not
    /// with the number of stored records.
    CountUnfinished: count_unfinished() -> Vec<UnfinishedCounts>;

    /// Records that match the query, newest first. The store reads at most [`Query::walk`]
    /// records, so a page may be short or empty and still have a next one.
    List: list(query: Query) -> Page;

    // Contracts: what decides whether two requests are the same. See
    // [`contract`](crate::contract). Never on the request path.

    /// What processes have published.
    Contracts: contracts() -> Published;

    /// Replaces what is published, if its revision is still `revision`; returns whether it was.
    PublishContracts: publish_contracts(revision: u64, contracts: Contracts) -> bool;

    /// Counts the records that a retry can still meet. It may read all records.
    CountRecords: count_records(filter: RecordFilter) -> RecordsInUse;

    // Inbox: messages from elsewhere. See [`inbox`](crate::inbox).

    /// Stores a message unless one of that source and id is stored already. A new message is
    /// durable and parked by the time this returns.
    ReceiveMessage: receive_message(message: Message, handling: Handling) -> Receipt;

    /// Marks a message as processed: only its id is kept.
    SettleMessage: settle_message(source: &str as Box<str>, id: &str as Box<str>) -> ();

    /// Gives up to `limit` due parked messages to this caller, longest due first, and schedules
    /// the next look at each.
    ClaimParked: claim_parked(backoff: Backoff, limit: usize) -> Vec<Parked>;

    /// Deletes up to `limit` messages whose retention is over, parked or not; returns their
    /// number.
    ForgetMessages: forget_messages(limit: usize) -> usize;

    // Outbox: events that go out. See [`outbox`](crate::outbox). Every call may be repeated.

    /// Takes or renews the relay lease for `relay` unless another relay holds it, and returns up
    /// to `limit` events, oldest first, without those of aggregates that are held back. Returns
    /// none where another relay holds the lease.
    ClaimEvents: claim_events(relay: Owner, lease: Duration, limit: usize) -> Vec<Waiting>;

    /// Deletes events that the broker has confirmed, and lets their aggregates go on.
    MarkSent: mark_sent(events: Vec<EventId>) -> ();

    /// Holds back the aggregate of an event that the broker refused, for a time that grows with
    /// the tries.
    HoldBack: hold_back(event: EventId, reason: &str as Box<str>, backoff: Backoff) -> ();

    /// Moves an event that no broker will take to the dead letters; later events of its aggregate
    /// go on.
    DeadLetterEvent: dead_letter_event(event: EventId, reason: &str as Box<str>) -> ();

    /// The dead-lettered events, oldest first.
    DeadEvents: dead_events(limit: usize) -> Vec<DeadEvent>;

    /// Queues a dead-lettered event again; returns whether it was one. Later events of its
    /// aggregate may be published already.
    ReviveEvent: revive_event(event: EventId) -> bool;

    /// The number of waiting and dead-lettered events.
    OutboxBacklog: outbox_backlog() -> Backlog;

    /// Gives up the relay lease of `relay`, so that another takes over at once.
    ReleaseRelay: release_relay(relay: Owner) -> ();

    // Statistics: counts for people, never on the request path. See
    // [`statistics`](crate::statistics). Nothing is decided by them, so what an ambiguous call
    // added may be lost or counted twice.

    /// Adds the counts of one process to the totals.
    AddCounts: add_counts(activity: Vec<Activity>, misuses: Vec<Misuse>) -> ();

    /// Decisions by interval and operation, for intervals that begin at `since` or later, oldest
    /// first.
    Activity: activity(since: Timestamp) -> Vec<Activity>;

    /// Misuses of keys, latest first.
    Misuses: misuses(limit: usize) -> Vec<Misuse>;

    /// Counts up to `limit` records with ids after `after`, in the order of their ids.
    ScanRecords: scan_records(after: Option<OperationId>, limit: usize) -> RecordScan;

    /// Stores callers that are new, up to [`MAX_CALLERS`](crate::statistics::MAX_CALLERS); returns
    /// whether there is room for more.
    RecordCallers: record_callers(callers: Vec<Caller>) -> bool;

    /// Takes or renews the lease of the one process that scans records; returns whether `owner`
    /// holds it.
    AcquireScanLease: acquire_scan_lease(owner: Owner, lease: Duration) -> bool;

    /// Replaces the published counts, unless those ended later.
    PublishRecordCounts: publish_record_counts(counts: RecordCounts) -> ();

    /// The latest published counts.
    RecordCounts: record_counts() -> Option<RecordCounts>;

    /// The newest records under a key, for the [callers](Store::record_callers) that are known: at
    /// most [`MAX_BATCH`](super::MAX_BATCH), newest first. Misses callers that came after the
    /// latest scan.
    FindKey: find_key(key: &Key as Key) -> Vec<Summary>;

    /// Deletes up to `limit` lines of activity from before `before`; returns their number.
    ForgetActivity: forget_activity(before: Timestamp, limit: usize) -> usize;

    /// Deletes up to `limit` misuses whose last occurrence was before `before`; returns their
    /// number.
    ForgetMisuses: forget_misuses(before: Timestamp, limit: usize) -> usize;
}

impl<B: Backend> Store for B {}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
