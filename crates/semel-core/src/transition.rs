//! The state machine: what each event makes of a record.
//!
//! Every function here takes the record as it is (or its absence), the event, and the
//! present instant, and gives back the record as it will be together with the answer. None
//! reads a clock, waits, or fails. A store performs the same change as a guarded write.
//!
//! The verbs of the request path are in [`reserve`](fn@reserve) and the functions of the
//! holder ([`complete`], [`release`], [`evict`], [`mark_unknown`], [`heartbeat`],
//! [`advance`]); the rest happens out of band. [`apply`] is the same as one function over
//! one [`Event`], for replaying and exploring histories.

mod holder;
mod maintenance;
mod reserve;

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

pub use holder::{advance, complete, evict, heartbeat, mark_unknown, release};
pub use maintenance::{
    claim_abandoned, claim_due, dead_letter, drop_body, erase, expire, purge, resolve, reveal,
    sweep,
};
pub use reserve::reserve;

use crate::fingerprint::RulesId;
use crate::{
    Actor, Backoff, Code, Fence, Fingerprints, Identity, OperationId, Owner, Policy, Record,
    RecoveryPoint, Resource, Response, Status, Timestamp,
};

/// What an event leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition<A> {
    /// The record from now on; `None` where there is none.
    pub record: Option<Record>,
    /// The answer to the caller.
    pub answer: A,
}

/// Everything that can happen to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client asks to execute.
    Reserve(Reserve),
    /// The holder says how it ended.
    Complete(Fence, Completion),
    /// The holder has proof that nothing happened, in time or late.
    Release(Fence, Code),
    /// As `Release`, and nothing is to be remembered.
    Evict(Fence, Code),
    /// The holder cannot say whether it happened.
    MarkUnknown(Fence, Code, Option<Resource>),
    /// The holder is alive, for this much longer.
    Heartbeat(Fence, Duration),
    /// The holder committed a phase.
    Advance(Fence, RecoveryPoint),
    /// A lease may have run out.
    Sweep,
    /// A completer wants to go on where a silent owner stopped.
    ClaimAbandoned(Owner, Duration),
    /// A reconciler wants to look, and will look again after the backoff.
    ClaimDue(Backoff),
    /// A reconciler or a person found the outcome.
    Resolve(Resolve),
    /// The outcome needs a person.
    DeadLetter(Fence, Code),
    /// The replay window may be over.
    Expire,
    /// The body's time may be over.
    DropBody,
    /// The tombstone's time may be over.
    Purge,
    /// A person's data is to be removed.
    Erase(Actor),
    /// A person asks to see the stored response.
    Reveal(Actor),
}

/// What an [`Event`] is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Event::Reserve`].
    Decision(Decision),
    /// To what a holder said.
    Held(Held),
    /// To [`Event::Resolve`] and [`Event::DeadLetter`].
    Resolution(Resolution),
    /// To what happens out of band: whether it applied.
    Applied(bool),
}

/// A client asks to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The name of the record, should there be a new one. Made for this one call: a name
    /// that was used before would bring back its fence.
    pub id: OperationId,
    /// Tenant, command and key.
    pub identity: Identity,
    /// What is asked for, under each version and each set of rules that the caller knows of.
    pub fingerprints: Fingerprints,
    /// Who will execute. A name that no other call has finds the grant again where its answer is
    /// lost, at any attempt: see [`Record::owner`].
    pub owner: Owner,
    /// How the operation is guarded.
    pub policy: Policy,
}

/// What a client's request may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Execute. The only answer, with `Resume`, that lets anything happen.
    Execute(Grant),
    /// Execute from the recovery point on.
    Resume(Grant),
    /// Give the client the stored response.
    Replay(Replay),
    /// Another attempt is executing.
    InProgress(InProgress),
    /// It may have happened; come back later.
    Unknown(Unknown),
    /// The key was used for something else. Says nothing about that.
    KeyMisuse {
        /// The operation that the key belongs to.
        id: OperationId,
    },
    /// The record was fingerprinted under rules that the request brought no fingerprint for. The
    /// caller computes one under these rules and asks again; nothing is said to the client before.
    OtherRules {
        /// The record.
        id: OperationId,
        /// Its rules.
        rules: RulesId,
    },
    /// It happened too long ago to say how it ended.
    Expired(Expired),
}

/// The right to execute once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What every write must name.
    pub fence: Fence,
    /// Until when, unless a heartbeat comes.
    pub locked_until: Timestamp,
    /// What an earlier attempt committed, if anything.
    pub recovery: Option<RecoveryPoint>,
}

/// A stored response, and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The operation.
    pub id: OperationId,
    /// What the first caller was sent.
    pub response: Response,
    /// What was created, for when the body is no longer stored.
    pub resource: Option<Resource>,
    /// When replaying stops.
    pub expires_at: Timestamp,
    /// When the body goes, where it goes before the rest: a cache drops it then.
    pub body_expires_at: Option<Timestamp>,
}

/// An execution that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InProgress {
    /// The operation and its running attempt.
    pub fence: Fence,
    /// Until when its owner is believed to be alive.
    pub locked_until: Timestamp,
}

/// An outcome that is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The operation.
    pub id: OperationId,
    /// When reconciliation next looks.
    pub reconcile_after: Timestamp,
    /// Whether it waits for a person.
    pub dead_lettered: bool,
    /// Whether it became unknown by this call, which found its lease expired. Exactly one call does.
    pub lease_expired: bool,
}

/// An operation whose replay window is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The operation.
    pub id: OperationId,
    /// What it created.
    pub resource: Option<Resource>,
}

/// How an execution ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What every retry will be given.
    pub response: Response,
    /// What was created.
    pub resource: Option<Resource>,
}

impl Completion {
    /// A completion with this response, and without a resource.
    pub fn new(status: u16, headers: Vec<(Box<str>, Bytes)>, body: impl Into<Bytes>) -> Self {
        Self {
            response: Response {
                status,
                headers,
                body: Some(body.into()),
                schema_version: 0,
            },
            resource: None,
        }
    }

    /// A completion with a JSON body, as a reconciler builds it from what the provider returned.
    ///
    /// ```
    /// use semel_core::Completion;
    ///
    /// let body = std::collections::BTreeMap::from([("id", "pay_789")]);
    /// let completion = Completion::json(201, &body)?;
    /// assert_eq!(completion.response.body.unwrap(), r#"{"id":"pay_789"}"#);
    /// # Ok::<_, serde_json::Error>(())
    /// ```
    ///
    /// # Errors
    /// The body cannot be written as JSON.
    pub fn json(status: u16, body: &impl Serialize) -> serde_json::Result<Self> {
        let headers = vec![("content-type".into(), "application/json".into())];
        Ok(Self::new(status, headers, serde_json::to_vec(body)?))
    }
}

/// The result of a write by the holder of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It is written.
    Applied,
    /// It was written before, by the same attempt with the same content.
    Repeated,
    /// Nothing is written: the attempt no longer owns the record.
    Fenced(Fenced),
}

/// What stands in the way of a fenced write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// The record's status and attempt; `None` where there is no such record.
    pub found: Option<(Status, u32)>,
}

/// A verdict on an unknown operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// The attempt that the verdict is about. A verdict on attempt n says nothing about
    /// attempt n + 1, however alike their states look.
    pub fence: Fence,
    /// What was found.
    pub verdict: Verdict,
    /// Who found it: a reconciler, a webhook's source, a person.
    pub by: Actor,
    /// What was seen; kept in the history, cut at
    /// [`MAX_EVIDENCE`](crate::history::MAX_EVIDENCE).
    pub evidence: Option<Bytes>,
}

/// What reconciliation found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It happened, with success or with a final failure.
    Completed(Completion),
    /// It is proven that it did not happen. Absence downstream alone is no proof.
    NotExecuted(Code),
    /// It is still unknown; why, and when to look again.
    StillUnknown(Code, Timestamp),
}

/// The result of applying a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The verdict stands.
    Applied,
    /// Nothing is written: the record is not unknown, or not at that attempt.
    Fenced(Fenced),
}

/// Applies one event. See the functions of this module for each.
pub fn apply(record: Option<Record>, event: Event, now: Timestamp) -> Transition<Answer> {
    match event {
        Event::Reserve(request) => reserve(record, request, now).map(Answer::Decision),
        Event::Complete(fence, end) => complete(record, fence, end, now).map(Answer::Held),
        Event::Release(fence, code) => release(record, fence, code, now).map(Answer::Held),
        Event::Evict(fence, code) => evict(record, fence, code, now).map(Answer::Held),
        Event::MarkUnknown(fence, code, resource) => {
            mark_unknown(record, fence, code, resource, now).map(Answer::Held)
        }
        Event::Heartbeat(fence, lease) => heartbeat(record, fence, lease, now).map(Answer::Held),
        Event::Advance(fence, point) => advance(record, fence, point, now).map(Answer::Held),
        Event::Sweep => sweep(record, now).map(Answer::Applied),
        Event::ClaimAbandoned(owner, lease) => {
            claim_abandoned(record, owner, lease, now).map(Answer::Applied)
        }
        Event::ClaimDue(backoff) => claim_due(record, backoff, now).map(Answer::Applied),
        Event::Resolve(verdict) => resolve(record, verdict, now).map(Answer::Resolution),
        Event::DeadLetter(fence, code) => {
            dead_letter(record, fence, code, now).map(Answer::Resolution)
        }
        Event::Expire => expire(record, now).map(Answer::Applied),
        Event::DropBody => drop_body(record, now).map(Answer::Applied),
        Event::Purge => purge(record, now).map(Answer::Applied),
        Event::Erase(_) => erase(record, now).map(Answer::Applied),
        Event::Reveal(_) => reveal(record).map(Answer::Applied),
    }
}

impl<A> Transition<A> {
    fn new(record: Option<Record>, answer: A) -> Self {
        Self { record, answer }
    }

    fn map<B>(self, answer: impl FnOnce(A) -> B) -> Transition<B> {
        Transition {
            record: self.record,
            answer: answer(self.answer),
        }
    }
}

impl Fenced {
    /// The refusal of a write by `record`.
    pub fn by(record: Option<&Record>) -> Self {
        Self {
            found: record.map(|record| (record.state.status(), record.attempt)),
        }
    }
}
