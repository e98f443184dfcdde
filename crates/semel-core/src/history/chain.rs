//! Entries hold on to the ones before.

use sha2::{Digest as _, Sha256};

use super::{Entry, EntryKind, GENESIS, MAX_REMARKS, Note};
use crate::{OperationId, Record, State};

/// Where a history does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// An entry is missing before this one.
    #[error("entry {0} does not follow the one before")]
    Gap(u32),
    /// An entry is not what it was when it was written.
    #[error("entry {0} was altered")]
    Altered(u32),
    /// The last entries do not lead to where the record stands.
    #[error("the history does not lead to where the operation stands")]
    Incomplete,
}

/// The next entry of an operation's history; nothing where a remark is one too many.
pub fn append(id: OperationId, last: Option<&Entry>, note: Note) -> Option<Entry> {
    let seq = last.map_or(0, |last| last.seq).saturating_add(1);
    if seq > MAX_REMARKS && note.what.is_remark() {
        return None;
    }
    let evidence_hash = note
        .evidence
        .as_ref()
        .map(|seen| Sha256::digest(seen).into());
    let previous = last.map_or(GENESIS, |last| last.hash);
    Some(Entry {
        seq,
        hash: chain(previous, id, seq, &note, evidence_hash),
        note,
        evidence_hash,
    })
}

/// Checks that a history is whole and leads to where the record stands.
///
/// An attacker who can write to the store can compute all hashes anew. What this finds is an entry
/// that was edited, or taken out, without doing that.
///
/// # Errors
/// [`Broken`] with the first entry that does not hold.
pub fn verify(record: &Record, entries: &[Entry]) -> Result<(), Broken> {
    let mut previous = GENESIS;
    for (expected, entry) in (1..).zip(entries) {
        let Entry {
            seq,
            note,
            evidence_hash,
            hash,
        } = entry;
        if *seq != expected {
            return Err(Broken::Gap(*seq));
        }
        let seen = note
            .evidence
            .as_ref()
            .map(|seen| Sha256::digest(seen).into());
        let kept = seen.is_none() || seen == *evidence_hash;
        if !kept || chain(previous, record.id, *seq, note, *evidence_hash) != *hash {
            return Err(Broken::Altered(*seq));
        }
        previous = *hash;
    }
    let last = entries.iter().rev().map(|entry| entry.note.what);
    let last = last
        .into_iter()
        .find(|what| !what.is_remark() && !matches!(what, EntryKind::Erased | EntryKind::Revealed));
    let leads = match &record.state {
        State::Unknown(unresolved) if unresolved.dead_lettered_at.is_some() => {
            last == Some(EntryKind::DeadLettered)
        }
        State::Unknown(_) => last == Some(EntryKind::Unknown),
        State::FailedRetryable { .. } => {
            matches!(
                last,
                Some(EntryKind::Released | EntryKind::ResolvedNotExecuted)
            )
        }
        State::InProgress(_) if record.attempt > 1 => {
            matches!(last, Some(EntryKind::Reattempted | EntryKind::Resumed))
        }
        State::InProgress(_) => last.is_none(),
        State::Completed(_) => matches!(
            last,
            None | Some(
                EntryKind::Reattempted
                    | EntryKind::Resumed
                    | EntryKind::CompletedLate
                    | EntryKind::ResolvedCompleted
            )
        ),
        State::Expired { .. } => true,
    };
    if leads {
        Ok(())
    } else {
        Err(Broken::Incomplete)
    }
}

/// Framed, so that no two entries have one text.
fn chain(
    previous: [u8; 32],
    id: OperationId,
    seq: u32,
    note: &Note,
    evidence_hash: Option<[u8; 32]>,
) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(previous);
    hash.update(id.as_bytes());
    hash.update(i64::from(seq).to_be_bytes());
    hash.update(note.at.as_micros().to_be_bytes());
    hash.update(i64::from(note.attempt).to_be_bytes());
    let fields = [
        Some(note.what.as_str().as_bytes()),
        Some(note.actor.as_bytes()),
        note.code.as_ref().map(|code| code.as_str().as_bytes()),
        note.reason.as_ref().map(|reason| reason.as_bytes()),
        evidence_hash.as_ref().map(|hash| &hash[..]),
    ];
    for field in fields {
        // No field is nearly that long; -1 is what is absent.
        let length = field.map_or(-1, |field| i32::try_from(field.len()).unwrap_or(i32::MAX));
        hash.update(length.to_be_bytes());
        hash.update(field.unwrap_or_default());
    }
    hash.finalize().into()
}
