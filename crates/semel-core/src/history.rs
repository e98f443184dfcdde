//! The history of a record: all that happened to it besides an ordinary execution.
//!
//! An execution that begins, ends and is replayed shows in the record's own columns, and its
//! history is empty. Anything else is an [`Entry`] of its own, written in the transaction that made
//! the change. Entries are chained: each holds a hash over itself and the
//! one before, so an entry that was altered, removed from the middle or put in shows.
//!
//! [`note`] decides which events get an entry. As with the [`transition`](crate::transition)
//! functions, stores repeat it and the conformance suite compares.

mod chain;
mod kind;

use std::fmt;

use bytes::Bytes;

pub use chain::{Broken, append, verify};
pub use kind::EntryKind;

use crate::transition::{Answer, Decision, Held, Resolution, Transition, Verdict};
use crate::{Code, Event, Record, State, Timestamp};

/// The most bytes of evidence that one entry keeps. An answer of a provider is longer only where
/// it is no answer to the question.
pub const MAX_EVIDENCE: usize = 4096;

/// The most bytes of a reason.
pub const MAX_REASON: usize = 1024;

/// The most entries of one operation that change nothing ([`EntryKind::Asked`], [`EntryKind::Fenced`]).
/// Entries about changes are not limited.
pub const MAX_REMARKS: u32 = 200;

/// The hash before the first.
pub const GENESIS: [u8; 32] = [0; 32];

/// One line of a history.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its position, from 1.
    pub seq: u32,
    /// Its content.
    pub note: Note,
    /// The hash of the evidence; it stays where the evidence was erased.
    pub evidence_hash: Option<[u8; 32]>,
    /// Over this entry and the one before.
    pub hash: [u8; 32],
}

/// The content of one entry.
#[derive(Clone, PartialEq, Eq)]
pub struct Note {
    /// When.
    pub at: Timestamp,
    /// The attempt that it is about.
    pub attempt: u32,
    /// What happened.
    pub what: EntryKind,
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
pub struct Actor {
    /// A role, a webhook's source, a person.
    pub who: Box<str>,
    /// In words, where a person did it.
    pub why: Option<Box<str>>,
}

/// The actor that executes.
pub const EXECUTOR: &str = "executor";
/// The actor that asks to execute.
pub const CLIENT: &str = "client";
/// The actor that looks for expired leases.
pub const SWEEPER: &str = "sweeper";

/// The actor that resumes an attempt whose lease expired, without its client.
pub const COMPLETER: &str = "completer";
/// The actor that dead-letters records whose outcome was not found.
pub const WORKER: &str = "worker";

/// The entry for an event, if it gets one.
pub fn note(
    before: Option<&Record>,
    event: &Event,
    after: &Transition<Answer>,
    now: Timestamp,
) -> Option<Note> {
    let record = after.record.as_ref();
    let entry = |what: EntryKind, actor: &str| Note {
        at: now,
        attempt: record.map_or(0, |record| record.attempt),
        what,
        actor: actor.into(),
        code: record.and_then(|record| record.last_error.clone()),
        reason: None,
        evidence: None,
    };
    let by = |what: EntryKind, by: &Actor| Note {
        reason: by.why.as_deref().map(|why| cut_reason(why).into()),
        ..entry(what, &by.who)
    };
    let was = before.map(|before| &before.state);
    let is = record.map(|record| &record.state);
    let applied = match &after.answer {
        Answer::Decision(decision) => {
            return match (decision, was) {
                (Decision::Resume(_), _) => Some(entry(EntryKind::Resumed, CLIENT)),
                (Decision::Execute(_), Some(State::FailedRetryable { .. })) => {
                    Some(entry(EntryKind::Reattempted, CLIENT))
                }
                (Decision::Unknown(_), Some(State::InProgress(_))) => {
                    Some(entry(EntryKind::Unknown, CLIENT))
                }
                (
                    Decision::Execute(_)
                    | Decision::Replay(_)
                    | Decision::InProgress(_)
                    | Decision::Unknown(_)
                    | Decision::KeyMisuse { .. }
                    | Decision::OtherRules { .. }
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
        Event::Complete(..) => matches!(was, Some(State::Unknown(_)))
            .then(|| entry(EntryKind::CompletedLate, EXECUTOR)),
        // Evicted without a trace, or handed back.
        Event::Release(..) | Event::Evict(..) => {
            record.map(|_| entry(EntryKind::Released, EXECUTOR))
        }
        Event::MarkUnknown(..) => Some(entry(EntryKind::Unknown, EXECUTOR)),
        Event::Sweep => Some(entry(EntryKind::Unknown, SWEEPER)),
        Event::ClaimAbandoned(..) => Some(entry(EntryKind::Resumed, COMPLETER)),
        Event::Resolve(resolve) => Some(Note {
            evidence: resolve
                .evidence
                .as_ref()
                .map(|seen| seen.slice_ref(cut_evidence(seen))),
            ..by(
                match &resolve.verdict {
                    Verdict::Completed(_) => EntryKind::ResolvedCompleted,
                    Verdict::NotExecuted(_) => EntryKind::ResolvedNotExecuted,
                    Verdict::StillUnknown(..) => EntryKind::Asked,
                },
                &resolve.by,
            )
        }),
        // Where it waits already nothing changes.
        Event::DeadLetter(..) => (was != is).then(|| entry(EntryKind::DeadLettered, WORKER)),
        Event::Erase(erasure) => Some(by(EntryKind::Erased, erasure)),
        Event::Reveal(looker) => Some(by(EntryKind::Revealed, looker)),
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
/// course of losing a lease, and add nothing to the entries that are there.
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
        what: EntryKind::Fenced,
        actor: EXECUTOR.into(),
        code: Some(verb.into()),
        reason: None,
        evidence: None,
    })
}

/// What an event makes of a history.
pub fn append_note(
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

/// Evidence may be confidential: `Debug` shows its length only.
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

impl Actor {
    /// A person.
    pub fn person(who: impl Into<Box<str>>, why: impl Into<Box<str>>) -> Self {
        Self {
            who: who.into(),
            why: Some(why.into()),
        }
    }
}

/// A part of the system, which has no reasons of its own.
impl From<&str> for Actor {
    fn from(who: &str) -> Self {
        Self {
            who: who.into(),
            why: None,
        }
    }
}

#[cfg(test)]
mod tests;
