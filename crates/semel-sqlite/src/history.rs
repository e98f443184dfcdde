//! Unusual transitions, recorded in the transaction that makes them.
//!
//! An attempt that starts, completes in time and is replayed records nothing.

use bytes::Bytes;
use rusqlite::{Row, params};
use semel_core::history::{self, Entry, EntryKind, Note};
use semel_core::transition::{Answer, Transition};
use semel_core::{Code, Event, Fence, OperationId, Record, Timestamp};

use crate::error::Failure;
use crate::queries::Statements;
use crate::reader::Lookup;

/// An entry without a reason and without evidence.
pub(crate) fn note(
    fence: Fence,
    what: EntryKind,
    actor: &str,
    code: Option<Code>,
    now: Timestamp,
) -> Note {
    Note {
        at: now,
        attempt: fence.attempt,
        what,
        actor: actor.into(),
        code,
        reason: None,
        evidence: None,
    }
}

/// Appends to a record's history.
pub(crate) fn append(sql: &mut Statements<'_>, id: OperationId, note: Note) -> Result<(), Failure> {
    let last = {
        let mut rows = sql.history_last.query([id.as_bytes()])?;
        rows.next()?.map(entry).transpose()?
    };
    let Some(entry) = history::append(id, last.as_ref(), note) else {
        return Ok(());
    };
    let Entry {
        seq,
        note,
        evidence_hash,
        hash,
    } = entry;
    sql.history_append.execute(params![
        id.as_bytes(),
        seq,
        note.at.as_micros(),
        note.attempt,
        note.what.as_str(),
        note.actor,
        note.code.as_ref().map(Code::as_str),
        note.reason,
        note.evidence.as_deref(),
        evidence_hash,
        hash,
    ])?;
    Ok(())
}

/// Records a refused write, where the record exists.
pub(crate) fn record_refusal(
    sql: &mut Statements<'_>,
    record: Option<&Record>,
    event: &Event,
    now: Timestamp,
) -> Result<(), Failure> {
    let note = record.and_then(|record| Some((record.id, history::fenced(record, event, now)?)));
    match note {
        Some((id, note)) => append(sql, id, note),
        None => Ok(()),
    }
}

/// Records a transition of the state machine, where it is unusual.
pub(crate) fn record_transition(
    sql: &mut Statements<'_>,
    before: Option<&Record>,
    event: &Event,
    after: &Transition<Answer>,
    now: Timestamp,
) -> Result<(), Failure> {
    match (history::note(before, event, after, now), &after.record) {
        (Some(note), Some(record)) => append(sql, record.id, note),
        (Some(_) | None, _) => Ok(()),
    }
}

/// The history of a record.
pub(crate) struct History(pub(crate) OperationId);

impl Lookup for History {
    type Answer = Vec<Entry>;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Vec<Entry>, Failure> {
        let mut rows = sql.history.query([self.0.as_bytes()])?;
        let mut entries = Vec::new();
        while let Some(row) = rows.next()? {
            entries.push(entry(row)?);
        }
        Ok(entries)
    }
}

/// A row whose columns are those of `history.sql`.
fn entry(row: &Row<'_>) -> Result<Entry, Failure> {
    let name: String = row.get(3)?;
    let what = EntryKind::from_word(&name)
        .ok_or_else(|| Failure::Corrupt(format!("unknown history entry {name:?}").into()))?;
    let note = Note {
        at: Timestamp::from_micros(row.get(1)?),
        attempt: row.get(2)?,
        what,
        actor: row.get(4)?,
        code: row.get::<_, Option<String>>(5)?.map(Code::new),
        reason: row.get(6)?,
        evidence: row.get::<_, Option<Vec<u8>>>(7)?.map(Bytes::from),
    };
    Ok(Entry {
        seq: row.get(0)?,
        note,
        evidence_hash: row.get(8)?,
        hash: row.get(9)?,
    })
}
