use super::*;
use crate::OperationId;

fn note(what: EntryKind) -> Note {
    Note {
        at: Timestamp::from_micros(1),
        attempt: 1,
        what,
        actor: "operator-1".into(),
        code: Some("code".into()),
        reason: None,
        evidence: Some(Bytes::from_static(b"404 not found")),
    }
}

fn histories(id: OperationId) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for what in EntryKind::ALL {
        entries.extend(append(id, entries.last(), note(what)));
    }
    entries
}

fn check(id: OperationId, entries: &[Entry]) -> Result<(), Broken> {
    verify(&record(id), entries)
}

/// An expired record: every history is valid for it.
fn record(id: OperationId) -> Record {
    use crate::{Fingerprint, Identity, Key, Policy, Reserve, transition};
    let request = Reserve {
        id,
        identity: Identity::new("tenant", "operation", Key::new("key").unwrap()).unwrap(),
        fingerprints: Fingerprint::of(&1).unwrap().into(),
        owner: "owner".into(),
        policy: Policy::default(),
    };
    let reserved = transition::reserve(None, request, Timestamp::from_micros(0));
    Record {
        state: State::Expired {
            purge_at: Timestamp::from_micros(0),
        },
        ..reserved.record.unwrap()
    }
}

#[test]
fn entry_kind_is_parsed_from_its_word() {
    for what in EntryKind::ALL {
        assert_eq!(EntryKind::from_word(what.as_str()), Some(what));
    }
}

#[test]
fn changing_any_part_of_a_history_is_detected() {
    let id = OperationId::generate();
    let complete = histories(id);
    assert_eq!(check(id, &complete), Ok(()));
    assert_eq!(
        check(OperationId::generate(), &complete),
        Err(Broken::Altered(1)),
        "history of another operation"
    );
    for at in 0..complete.len() - 1 {
        let mut shortened = complete.clone();
        shortened.remove(at);
        assert!(check(id, &shortened).is_err(), "without entry {at}");
    }
    let edits: [fn(&mut Entry); 8] = [
        |entry| entry.note.at = Timestamp::from_micros(2),
        |entry| entry.note.attempt = 2,
        |entry| {
            let unknown = entry.note.what == EntryKind::Unknown;
            entry.note.what = if unknown {
                EntryKind::Released
            } else {
                EntryKind::Unknown
            };
        },
        |entry| entry.note.actor = "operator-2".into(),
        |entry| entry.note.code = None,
        |entry| entry.note.reason = Some("because".into()),
        |entry| entry.note.evidence = Some(Bytes::from_static(b"200 paid")),
        |entry| entry.evidence_hash = None,
    ];
    for (nth, edit) in edits.iter().enumerate() {
        for at in 0..complete.len() {
            let mut edited = complete.clone();
            edit(&mut edited[at]);
            assert!(check(id, &edited).is_err(), "edit {nth} of entry {at}");
        }
    }
}

#[test]
fn history_with_erased_evidence_is_valid() {
    let id = OperationId::generate();
    let mut entries = histories(id);
    for entry in &mut entries {
        entry.note.evidence = None;
    }
    assert_eq!(check(id, &entries), Ok(()));
}

#[test]
fn remarks_are_limited_and_state_changes_are_not() {
    let id = OperationId::generate();
    let mut last = None;
    for _ in 0..MAX_REMARKS {
        last = append(id, last.as_ref(), note(EntryKind::Asked));
    }
    assert_eq!(last.as_ref().map(|last| last.seq), Some(MAX_REMARKS));
    assert_eq!(append(id, last.as_ref(), note(EntryKind::Fenced)), None);
    let change = append(id, last.as_ref(), note(EntryKind::DeadLettered));
    assert_eq!(change.map(|entry| entry.seq), Some(MAX_REMARKS + 1));
}

#[test]
fn missing_last_entry_is_detected_by_the_record_status() {
    let id = OperationId::generate();
    let entries: Vec<_> = append(id, None, note(EntryKind::Unknown))
        .into_iter()
        .collect();
    let unknown = Record {
        state: State::Unknown(crate::Unresolved {
            reconcile_after: Timestamp::from_micros(0),
            reconcile_attempts: 0,
            dead_lettered_at: None,
        }),
        ..record(id)
    };
    assert_eq!(verify(&unknown, &entries), Ok(()));
    assert_eq!(verify(&unknown, &[]), Err(Broken::Incomplete));
}
