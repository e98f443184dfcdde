//! The timeline of a record, from the record and its history.

use semel_core::history::{CLIENT, EXECUTOR, Entry, EntryKind};
use semel_core::{Record, State, Store, Timestamp};

use super::text::{Text, TimeLabel, meaning};

/// One entry of the timeline.
pub(super) struct TimelineEntry {
    pub(super) class: &'static str,
    pub(super) sign: &'static str,
    pub(super) title: &'static str,
    pub(super) at: TimeLabel,
    pub(super) attempt: u32,
    pub(super) actor: Text,
    pub(super) code: Option<Text>,
    pub(super) meaning: Option<&'static str>,
    pub(super) reason: Option<Text>,
    pub(super) evidence: Option<Text>,
    pub(super) evidence_erased: bool,
}

/// The timeline, oldest entry first.
pub(super) fn timeline<S: Store>(
    store: &S,
    record: &Record,
    entries: &[Entry],
    now: Timestamp,
) -> Vec<TimelineEntry> {
    let entry = |class, sign, title, at, attempt, actor| TimelineEntry {
        class,
        sign,
        title,
        at: TimeLabel::new(at, now),
        attempt,
        actor: Text::line(actor),
        code: None,
        meaning: None,
        reason: None,
        evidence: None,
        evidence_erased: false,
    };
    let mut timeline = vec![entry(
        "running",
        "◐",
        "Created; executing",
        record.created_at,
        1,
        CLIENT,
    )];
    let mut history: Vec<_> = entries
        .iter()
        .map(|entry| (entry.note.at, history_entry(store, record, entry, now)))
        .collect();
    if let Some(at) = completed_at(record, entries) {
        let completed = entry("good", "✓", "Completed", at, record.attempt, EXECUTOR);
        let position = history.partition_point(|(entry_at, _)| *entry_at <= at);
        history.insert(position, (at, completed));
    }
    timeline.extend(history.into_iter().map(|(_, entry)| entry));
    timeline
}

/// The time of an ordinary completion, for which the history has no entry.
fn completed_at(record: &Record, entries: &[Entry]) -> Option<Timestamp> {
    let has_entry = |entry: &Entry| {
        matches!(
            entry.note.what,
            EntryKind::CompletedLate | EntryKind::ResolvedCompleted
        )
    };
    match &record.state {
        State::Completed(completed) if !entries.iter().any(has_entry) => {
            Some(completed.completed_at)
        }
        State::Completed(_)
        | State::InProgress(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_)
        | State::Expired { .. } => None,
    }
}

fn history_entry<S: Store>(
    store: &S,
    record: &Record,
    entry: &Entry,
    now: Timestamp,
) -> TimelineEntry {
    let note = &entry.note;
    let (class, sign, title) = label(note.what);
    TimelineEntry {
        class,
        sign,
        title,
        at: TimeLabel::new(note.at, now),
        attempt: note.attempt,
        actor: Text::line(&note.actor),
        meaning: note.code.as_ref().and_then(meaning),
        code: note.code.as_ref().map(|code| Text::line(code.as_str())),
        reason: note.reason.as_deref().map(Text::line),
        evidence: evidence(store, record, entry),
        evidence_erased: note.evidence.is_none() && entry.evidence_hash.is_some(),
    }
}

/// The evidence of an entry as text.
pub(super) fn evidence<S: Store>(store: &S, record: &Record, entry: &Entry) -> Option<Text> {
    let evidence = entry.note.evidence.clone()?;
    Some(match store.decrypt_evidence(record.id, evidence) {
        Ok(evidence) => Text::block(&String::from_utf8_lossy(&evidence)),
        Err(error) => Text::line(&format!("(unreadable: {error})")),
    })
}

fn label(what: EntryKind) -> (&'static str, &'static str, &'static str) {
    match what {
        EntryKind::Unknown => ("doubt", "?", "Outcome unknown"),
        EntryKind::Released => ("open", "↻", "Released: not executed"),
        EntryKind::Reattempted => ("running", "◐", "New attempt"),
        EntryKind::Resumed => ("running", "◐", "Resumed from a recovery point"),
        EntryKind::CompletedLate => ("good", "✓", "Completed late by the original attempt"),
        EntryKind::Asked => ("remark", "·", "Reconciled: still unknown"),
        EntryKind::ResolvedCompleted => ("good", "✓", "Resolved: completed"),
        EntryKind::ResolvedNotExecuted => ("open", "↻", "Resolved: not executed"),
        EntryKind::DeadLettered => ("bad", "!", "Dead-lettered: needs an operator"),
        EntryKind::Erased => ("gone", "○", "Response erased"),
        EntryKind::Revealed => ("remark", "·", "Response revealed"),
        EntryKind::Fenced => ("bad", "!", "Write of a superseded attempt refused (fenced)"),
    }
}
