//! What a transition writes.

use semel_core::history::{self, Entry, Note};
use semel_core::transition::{Answer, Transition};
use semel_core::{Code, Timestamp};

use crate::item::{self, Head, Row, Version};
use crate::parts::Parts;

/// What a change writes.
pub(crate) enum Step {
    Nothing,
    Begin(Row),
    Replace(Row, Option<Entry>),
    Remove,
}

/// What a transition has to write.
pub(crate) fn step(before: Option<&Row>, after: &Transition<Answer>, note: Option<Note>) -> Step {
    let Some(before) = before else {
        return after.record.clone().map_or(Step::Nothing, |record| {
            Step::Begin(Row {
                record,
                parts: None,
                head: None,
                version: Version::generate(),
            })
        });
    };
    let Some(record) = after.record.clone() else {
        return Step::Remove;
    };
    let is_same = record.id == before.record.id;
    let entry = note.and_then(|note| history::append(record.id, last(before.head).as_ref(), note));
    if record == before.record && entry.is_none() {
        return Step::Nothing;
    }
    let head = match &entry {
        Some(entry) => Some(Head {
            seq: entry.seq,
            hash: entry.hash,
        }),
        None => before.head.filter(|_| is_same),
    };
    // A response never changes, so one that is still there is where it was.
    let keeps_body = is_same && item::body(&record).is_some();
    let parts: Option<Parts> = before.parts.clone().filter(|_| keeps_body);
    let row = Row {
        record,
        parts,
        head,
        version: Version::generate(),
    };
    Step::Replace(row, entry)
}

/// As much of the last entry as the next one is chained to.
fn last(head: Option<Head>) -> Option<Entry> {
    head.map(|Head { seq, hash }| Entry {
        seq,
        hash,
        evidence_hash: None,
        note: Note {
            at: Timestamp::from_micros(0),
            attempt: 0,
            what: history::EntryKind::Unknown,
            actor: "".into(),
            code: None::<Code>,
            reason: None,
            evidence: None,
        },
    })
}
