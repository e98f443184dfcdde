//! An operation's life: what its record says of itself, and what its history tells.

use semel_core::history::{CLIENT, EXECUTOR, Entry, What};
use semel_core::{Inspect, Record, State, Timestamp};

use super::text::{Text, When, meaning};

/// One thing that happened.
pub(super) struct Moment {
    pub(super) class: &'static str,
    pub(super) sign: &'static str,
    pub(super) title: &'static str,
    pub(super) when: When,
    pub(super) attempt: u32,
    pub(super) actor: Text,
    pub(super) code: Option<Text>,
    pub(super) meaning: Option<&'static str>,
    pub(super) reason: Option<Text>,
    pub(super) evidence: Option<Text>,
    /// There was evidence, and it was erased.
    pub(super) erased: bool,
}

/// All of it, oldest first.
pub(super) fn timeline<S: Inspect>(
    store: &S,
    record: &Record,
    entries: &[Entry],
    now: Timestamp,
) -> Vec<Moment> {
    let plain = |class, sign, title, at, attempt, actor| Moment {
        class,
        sign,
        title,
        when: When::new(at, now),
        attempt,
        actor: Text::line(actor),
        code: None,
        meaning: None,
        reason: None,
        evidence: None,
        erased: false,
    };
    let mut moments = vec![plain(
        "running",
        "◐",
        "Created, and executing",
        record.created_at,
        1,
        CLIENT,
    )];
    let mut told: Vec<_> = entries
        .iter()
        .map(|entry| (entry.note.at, moment(store, record, entry, now)))
        .collect();
    if let Some(at) = ended(record, entries) {
        let end = plain("good", "✓", "Completed", at, record.attempt, EXECUTOR);
        // Behind what was told before it, and before what came of it later.
        let place = told.partition_point(|(told_at, _)| *told_at <= at);
        told.insert(place, (at, end));
    }
    moments.extend(told.into_iter().map(|(_, moment)| moment));
    moments
}

/// When the executor said how it ended, where the history has no entry for that.
fn ended(record: &Record, entries: &[Entry]) -> Option<Timestamp> {
    let told = |entry: &Entry| {
        matches!(
            entry.note.what,
            What::CompletedLate | What::ResolvedCompleted
        )
    };
    match &record.state {
        State::Completed(completed) if !entries.iter().any(told) => Some(completed.completed_at),
        State::Completed(_)
        | State::InProgress(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_)
        | State::Expired { .. } => None,
    }
}

fn moment<S: Inspect>(store: &S, record: &Record, entry: &Entry, now: Timestamp) -> Moment {
    let note = &entry.note;
    let (class, sign, title) = words(note.what);
    Moment {
        class,
        sign,
        title,
        when: When::new(note.at, now),
        attempt: note.attempt,
        actor: Text::line(&note.actor),
        meaning: note.code.as_ref().and_then(meaning),
        code: note.code.as_ref().map(|code| Text::line(code.as_str())),
        reason: note.reason.as_deref().map(Text::line),
        evidence: evidence(store, record, entry),
        erased: note.evidence.is_none() && entry.evidence_hash.is_some(),
    }
}

/// What was seen, as text.
pub(super) fn evidence<S: Inspect>(store: &S, record: &Record, entry: &Entry) -> Option<Text> {
    let evidence = entry.note.evidence.clone()?;
    Some(match store.reveal(record.id, evidence) {
        Ok(evidence) => Text::block(&String::from_utf8_lossy(&evidence)),
        Err(error) => Text::line(&format!("(cannot be read: {error})")),
    })
}

fn words(what: What) -> (&'static str, &'static str, &'static str) {
    match what {
        What::Unknown => ("doubt", "?", "The outcome became unknown"),
        What::Released => ("open", "↻", "Handed back: nothing had happened"),
        What::Reattempted => ("running", "◐", "Attempted again"),
        What::Resumed => ("running", "◐", "Resumed from a recovery point"),
        What::CompletedLate => ("good", "✓", "Completed after all, by the first executor"),
        What::Asked => ("remark", "·", "Asked, and not settled"),
        What::ResolvedCompleted => ("good", "✓", "Found out: it had ended"),
        What::ResolvedNotExecuted => ("open", "↻", "Found out: nothing had happened"),
        What::DeadLettered => ("bad", "!", "Set aside for a person"),
        What::Erased => ("gone", "○", "Response erased"),
        What::Revealed => ("remark", "·", "Response shown to a person"),
        What::Fenced => ("bad", "!", "An attempt that had lost its turn was refused"),
    }
}
