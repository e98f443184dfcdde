//! What happened to an operation besides an ordinary execution.
//!
//! An execution that begins, ends and is replayed is told by the record's own columns, and its
//! history is empty. What is out of the ordinary is an [`Entry`] of its own, written in the
//! transaction that made the change. Entries are chained: each holds a hash over itself and the
//! one before, so an entry that was altered, removed from the middle or put in shows.
//!
//! [`note`] decides what is told; like the [`transition`](crate::transition) functions, stores
//! repeat it and a conformance suite compares.

mod chain;
mod what;

use std::fmt;

use bytes::Bytes;

pub use chain::{Broken, append, verify};
pub use what::What;

use crate::transition::{Answer, Decision, Held, Resolution, Transition, Verdict};
use crate::{Code, Event, Record, State, Timestamp};

/// The most bytes of evidence that one entry keeps. An answer of a provider is longer only where
/// it is no answer to the question.
pub const MAX_EVIDENCE: usize = 4096;

/// The most bytes of a reason.
pub const MAX_REASON: usize = 1024;

/// The most entries of one operation that change nothing ([`What::Asked`], [`What::Fenced`]).
/// Changes are always told.
pub const MAX_REMARKS: u32 = 200;

/// The hash before the first.
pub const GENESIS: [u8; 32] = [0; 32];

/// One line of a history.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its place, from 1.
    pub seq: u32,
    /// What was told.
    pub note: Note,
    /// The hash of the evidence; it stays where the evidence was erased.
    pub evidence_hash: Option<[u8; 32]>,
    /// Over this entry and the one before.
    pub hash: [u8; 32],
}

/// What is told in one line.
#[derive(Clone, PartialEq, Eq)]
pub struct Note {
    /// When.
    pub at: Timestamp,
    /// The attempt that it is about.
    pub attempt: u32,
    /// What happened.
    pub what: What,
    /// Who made it happen: a role, a webhook's source, a person.
    pub actor: Box<str>,
    /// The machine-readable reason.
    pub code: Option<Code>,
    /// A person's reason.
    pub reason: Option<Box<str>>,
    /// What was seen, cut at [`MAX_EVIDENCE`].
    pub evidence: Option<Bytes>,
}

/// Who did something out of band, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    /// A role, a webhook's source, a person.
    pub who: Box<str>,
    /// In words, where a person did it.
    pub why: Option<Box<str>>,
}

/// Who executes, as histories call it.
pub const EXECUTOR: &str = "executor";
/// Who asks to execute, as histories call it.
pub const CLIENT: &str = "client";
/// Who looks for silent owners, as histories call it.
pub const SWEEPER: &str = "sweeper";

/// Who goes on where a silent owner stopped, without its client.
pub const COMPLETER: &str = "completer";
/// Who sets aside what nobody found out, as histories call it.
pub const WORKER: &str = "worker";

/// What is to be told of an event, if anything.
pub fn note(
    before: Option<&Record>,
    event: &Event,
    after: &Transition<Answer>,
    now: Timestamp,
) -> Option<Note> {
    let record = after.record.as_ref();
    let tell = |what: What, actor: &str| Note {
        at: now,
        attempt: record.map_or(0, |record| record.attempt),
        what,
        actor: actor.into(),
        code: record.and_then(|record| record.last_error.clone()),
        reason: None,
        evidence: None,
    };
    let by = |what: What, by: &By| Note {
        reason: by.why.as_deref().map(|why| cut_reason(why).into()),
        ..tell(what, &by.who)
    };
    let was = before.map(|before| &before.state);
    let is = record.map(|record| &record.state);
    let applied = match &after.answer {
        Answer::Decision(decision) => {
            return match (decision, was) {
                (Decision::Resume(_), _) => Some(tell(What::Resumed, CLIENT)),
                (Decision::Execute(_), Some(State::FailedRetryable { .. })) => {
                    Some(tell(What::Reattempted, CLIENT))
                }
                (Decision::Unknown(_), Some(State::InProgress(_))) => {
                    Some(tell(What::Unknown, CLIENT))
                }
                (
                    Decision::Execute(_)
                    | Decision::Replay(_)
                    | Decision::InProgress(_)
                    | Decision::Unknown(_)
                    | Decision::KeyMisuse { .. }
                    | Decision::Expired(_),
                    _,
                ) => None,
            };
        }
        Answer::Held(Held::Fenced(_)) => return fenced(before?, event, now),
        Answer::Held(Held::Repeated) | Answer::Resolution(Resolution::Fenced(_)) => return None,
        Answer::Held(Held::Applied) | Answer::Resolution(Resolution::Applied) => true,
        Answer::Applied(applied) => *applied,
    };
    if !applied {
        return None;
    }
    match event {
        Event::Complete(..) => {
            matches!(was, Some(State::Unknown(_))).then(|| tell(What::CompletedLate, EXECUTOR))
        }
        // Evicted without a trace, or handed back.
        Event::Release(..) | Event::Evict(..) => record.map(|_| tell(What::Released, EXECUTOR)),
        Event::MarkUnknown(..) => Some(tell(What::Unknown, EXECUTOR)),
        Event::Sweep => Some(tell(What::Unknown, SWEEPER)),
        Event::ClaimAbandoned(..) => Some(tell(What::Resumed, COMPLETER)),
        Event::Resolve(resolve) => Some(Note {
            evidence: resolve
                .evidence
                .as_ref()
                .map(|seen| seen.slice_ref(cut_evidence(seen))),
            ..by(
                match &resolve.verdict {
                    Verdict::Completed(_) => What::ResolvedCompleted,
                    Verdict::NotExecuted(_) => What::ResolvedNotExecuted,
                    Verdict::StillUnknown(..) => What::Asked,
                },
                &resolve.by,
            )
        }),
        // Where it waits already nothing changes.
        Event::DeadLetter(..) => (was != is).then(|| tell(What::DeadLettered, WORKER)),
        Event::Erase(erasure) => Some(by(What::Erased, erasure)),
        Event::Reveal(looker) => Some(by(What::Revealed, looker)),
        Event::Reserve(_)
        | Event::Heartbeat(..)
        | Event::Advance(..)
        | Event::ClaimDue(_)
        | Event::Expire
        | Event::DropBody
        | Event::Purge => None,
    }
}

/// A refused write: an effect may have happened twice. Heartbeats are refused in the ordinary
/// course of losing a lease, and tell nothing that is not told already.
pub fn fenced(record: &Record, event: &Event, now: Timestamp) -> Option<Note> {
    let (fence, verb) = match event {
        Event::Complete(fence, _) => (fence, "complete"),
        Event::Release(fence, _) => (fence, "release"),
        Event::Evict(fence, _) => (fence, "evict"),
        Event::MarkUnknown(fence, ..) => (fence, "mark_unknown"),
        Event::Advance(fence, _) => (fence, "advance"),
        Event::Reserve(_)
        | Event::Heartbeat(..)
        | Event::Sweep
        | Event::ClaimAbandoned(..)
        | Event::ClaimDue(_)
        | Event::Resolve(_)
        | Event::DeadLetter(..)
        | Event::Expire
        | Event::DropBody
        | Event::Purge
        | Event::Erase(_)
        | Event::Reveal(_) => return None,
    };
    (fence.id == record.id).then(|| Note {
        at: now,
        attempt: fence.attempt,
        what: What::Fenced,
        actor: EXECUTOR.into(),
        code: Some(verb.into()),
        reason: None,
        evidence: None,
    })
}

/// What an event makes of a history.
pub fn tell(
    entries: &mut Vec<Entry>,
    before: Option<&Record>,
    event: &Event,
    after: &Transition<Answer>,
    now: Timestamp,
) {
    if matches!(
        (event, &after.answer),
        (Event::Erase(_), Answer::Applied(true))
    ) {
        for entry in &mut *entries {
            entry.note.evidence = None;
        }
    }
    let note = note(before, event, after, now);
    if let (Some(note), Some(record)) = (note, &after.record) {
        entries.extend(append(record.id, entries.last(), note));
    }
}

/// A reason, cut at [`MAX_REASON`].
pub fn cut_reason(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(MAX_REASON)]
}

/// Evidence, cut at [`MAX_EVIDENCE`].
pub fn cut_evidence(evidence: &[u8]) -> &[u8] {
    &evidence[..evidence.len().min(MAX_EVIDENCE)]
}

/// Evidence may hold what is nobody else's business: `Debug` shows how much there is.
impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Note")
            .field("at", &self.at)
            .field("attempt", &self.attempt)
            .field("what", &self.what)
            .field("actor", &self.actor)
            .field("code", &self.code)
            .field("reason", &self.reason)
            .field("evidence_bytes", &self.evidence.as_ref().map(Bytes::len))
            .finish()
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.seq, self.note)
    }
}

impl By {
    /// A person.
    pub fn person(who: impl Into<Box<str>>, why: impl Into<Box<str>>) -> Self {
        Self {
            who: who.into(),
            why: Some(why.into()),
        }
    }
}

/// A part of the system, which has no reasons of its own.
impl From<&str> for By {
    fn from(who: &str) -> Self {
        Self {
            who: who.into(),
            why: None,
        }
    }
}

#[cfg(test)]
mod tests;
