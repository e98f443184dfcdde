use super::*;
use crate::OperationId;

fn note(what: What) -> Note {
    Note {
        at: Timestamp::from_micros(1),
        attempt: 1,
        what,
        actor: "somebody".into(),
        code: Some("code".into()),
        reason: None,
        evidence: Some(Bytes::from_static(b"404 not found")),
    }
}

fn histories(id: OperationId) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for what in What::ALL {
        entries.extend(append(id, entries.last(), note(what)));
    }
    entries
}

fn check(id: OperationId, entries: &[Entry]) -> Result<(), Broken> {
    verify(&record(id), entries)
}

/// An expired record: any history leads there.
fn record(id: OperationId) -> Record {
    use crate::{Fingerprint, Identity, Key, Policy, Reserve, transition};
    let request = Reserve {
        id,
        identity: Identity::new("tenant", "operation", Key::new("key").unwrap()).unwrap(),
        fingerprints: Fingerprint::of(&1).unwrap().into(),
        owner: "owner".into(),
        policy: Policy::default(),
    };
    let begun = transition::reserve(None, request, Timestamp::from_micros(0));
    Record {
        state: State::Expired {
            purge_at: Timestamp::from_micros(0),
        },
        ..begun.record.unwrap()
    }
}

#[test]
fn words_lead_back() {
    for what in What::ALL {
        assert_eq!(What::from_word(what.as_str()), Some(what));
    }
}

#[test]
fn a_history_holds_until_any_part_of_it_is_touched() {
    let id = OperationId::generate();
    let whole = histories(id);
    assert_eq!(check(id, &whole), Ok(()));
    assert_eq!(
        check(OperationId::generate(), &whole),
        Err(Broken::Altered(1)),
        "another operation's"
    );
    for at in 0..whole.len() - 1 {
        let mut without = whole.clone();
        without.remove(at);
        assert!(check(id, &without).is_err(), "without entry {at}");
    }
    let edits: [fn(&mut Entry); 8] = [
        |entry| entry.note.at = Timestamp::from_micros(2),
        |entry| entry.note.attempt = 2,
        |entry| {
            let unknown = entry.note.what == What::Unknown;
            entry.note.what = if unknown {
                What::Released
            } else {
                What::Unknown
            };
        },
        |entry| entry.note.actor = "nobody".into(),
        |entry| entry.note.code = None,
        |entry| entry.note.reason = Some("because".into()),
        |entry| entry.note.evidence = Some(Bytes::from_static(b"200 paid")),
        |entry| entry.evidence_hash = None,
    ];
    for (nth, edit) in edits.iter().enumerate() {
        for at in 0..whole.len() {
            let mut edited = whole.clone();
            edit(&mut edited[at]);
            assert!(check(id, &edited).is_err(), "edit {nth} of entry {at}");
        }
    }
}

#[test]
fn erased_evidence_leaves_a_history_whole() {
    let id = OperationId::generate();
    let mut entries = histories(id);
    for entry in &mut entries {
        entry.note.evidence = None;
    }
    assert_eq!(check(id, &entries), Ok(()));
}

#[test]
fn remarks_end_and_changes_do_not() {
    let id = OperationId::generate();
    let mut last = None;
    for _ in 0..MAX_REMARKS {
        last = append(id, last.as_ref(), note(What::Asked));
    }
    assert_eq!(last.as_ref().map(|last| last.seq), Some(MAX_REMARKS));
    assert_eq!(append(id, last.as_ref(), note(What::Fenced)), None);
    let change = append(id, last.as_ref(), note(What::DeadLettered));
    assert_eq!(change.map(|entry| entry.seq), Some(MAX_REMARKS + 1));
}

#[test]
fn a_missing_end_shows_in_where_the_record_stands() {
    let id = OperationId::generate();
    let entries: Vec<_> = append(id, None, note(What::Unknown)).into_iter().collect();
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
