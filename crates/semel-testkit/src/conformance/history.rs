//! The history of a record: every exceptional event, and nothing else.

use bytes::Bytes;
use semel_core::history::{self, Entry, EntryKind, Note};
use semel_core::transition::Fenced;
use semel_core::{
    Actor, Code, Fence, Held, OperationId, Policy, Resolution, Resolve, Stale, Timestamp, Verdict,
    Windows,
};

use super::abandoned::resumable;
use super::fixture::{
    LEASE, TICK, WINDOWS, again, completion, fenced_by, kept_for, not_executed, point, policy,
    refused_by, request, together, verdict, with_policy,
};
use super::{Fixture, Subject};

/// The history of a record, which must be a valid chain that ends in its current state.
pub(super) async fn entries<S: Subject>(f: &Fixture<S>, id: OperationId) -> Vec<Entry> {
    let record = f.record(id).await;
    let entries = f.store.history(id).await.expect("history");
    assert_eq!(
        history::verify(&record, &entries),
        Ok(()),
        "{record:#?}\n{entries:#?}"
    );
    entries
}

/// The notes of a record's history.
pub(super) async fn notes<S: Subject>(f: &Fixture<S>, id: OperationId) -> Vec<Note> {
    let entries = entries(f, id).await;
    entries.into_iter().map(|entry| entry.note).collect()
}

/// The kinds of an operation's entries.
pub(super) async fn kinds<S: Subject>(f: &Fixture<S>, id: OperationId) -> Vec<EntryKind> {
    let notes = notes(f, id).await;
    notes.into_iter().map(|note| note.what).collect()
}

/// A note without reason and evidence.
pub(super) fn line(
    at: Timestamp,
    attempt: u32,
    what: EntryKind,
    actor: &str,
    code: Option<&'static str>,
) -> Note {
    Note {
        at,
        attempt,
        what,
        actor: actor.into(),
        code: code.map(Into::into),
        reason: None,
        evidence: None,
    }
}

/// A verdict that decides nothing, with this evidence.
pub(super) fn asked<S: Subject>(f: &Fixture<S>, fence: Fence, evidence: Option<Bytes>) -> Resolve {
    let still = Verdict::StillUnknown("not_found".into(), f.now());
    Resolve {
        evidence,
        ..verdict(fence, still)
    }
}

/// Reserve, heartbeat, complete and replay add no entries.
pub async fn an_ordinary_execution_leaves_no_history<S: Subject>(f: Fixture<S>) {
    let short = Windows {
        body: LEASE,
        ..WINDOWS
    };
    let first = with_policy(&request("k"), kept_for(short));
    let grant = f.execute(first.clone()).await;
    f.in_progress(again(&first)).await;
    assert_eq!(f.heartbeat(grant.fence, LEASE).await, Held::Applied);
    let phase = f.advance(grant.fence, point("charged", b"ch_1")).await;
    assert_eq!(phase, Held::Applied);
    assert_eq!(entries(&f, first.id).await, []);
    f.complete(grant.fence, completion("paid")).await;
    let repeated = f.complete(grant.fence, completion("paid")).await;
    assert_eq!(repeated, Held::Repeated);
    f.replay(again(&first)).await;
    assert_eq!(entries(&f, first.id).await, []);
    f.clock.advance(LEASE);
    assert_eq!(f.drop_bodies(10).await, 1);
    f.clock.advance(WINDOWS.replay);
    assert_eq!(f.expire(10).await, 1);
    assert_eq!(entries(&f, first.id).await, []);
}

/// The history of an unused id is empty, not an error.
pub async fn an_unused_id_has_no_history<S: Subject>(f: Fixture<S>) {
    let none = f.store.history(OperationId::generate()).await;
    assert_eq!(none.expect("history"), []);
}

/// A lost execution is recorded once, with the actor that noticed it.
pub async fn a_loss_is_recorded_once_with_its_actor<S: Subject>(f: Fixture<S>) {
    let reported = f.lost(request("reported")).await;
    let lost_at = f.now();
    let swept = f.execute(request("swept")).await;
    f.clock.advance(LEASE);
    assert_eq!(f.sweep(10).await, [swept.fence]);
    let noticed_request = request("noticed");
    let noticed = f.execute(noticed_request.clone()).await;
    f.clock.advance(LEASE);
    f.unknown(again(&noticed_request)).await;
    let noticed_at = f.now();
    f.clock.advance(TICK);
    // Asking again changes nothing.
    f.unknown(again(&noticed_request)).await;
    let lapsed = Code::LEASE_EXPIRED;
    for (grant, at, actor, code) in [
        (&reported, lost_at, "executor", Code::from("timeout")),
        (
            &swept,
            lost_at.saturating_add(LEASE),
            "sweeper",
            lapsed.clone(),
        ),
        (&noticed, noticed_at, "client", lapsed),
    ] {
        let expected = Note {
            code: Some(code),
            ..line(at, 1, EntryKind::Unknown, actor, None)
        };
        assert_eq!(notes(&f, grant.fence.id).await, [expected]);
    }
}

/// A release, and each attempt after it, is recorded.
pub async fn a_release_and_the_next_attempt_are_recorded<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    f.released(first.clone()).await;
    let one = f.now();
    f.clock.advance(TICK);
    let second = f.execute(again(&first)).await;
    let two = f.now();
    f.clock.advance(TICK);
    // A later attempt cannot make itself forgotten, and hands back.
    assert_eq!(f.evict(second.fence).await, Held::Applied);
    let expected = [
        line(one, 1, EntryKind::Released, "executor", Some("not_sent")),
        line(two, 2, EntryKind::Reattempted, "client", None),
        line(f.now(), 2, EntryKind::Released, "executor", Some("refused")),
    ];
    assert_eq!(notes(&f, first.id).await, expected);
}

/// An attempt that resumes at a recovery point is recorded, and not as a loss.
pub async fn a_resumed_attempt_is_recorded<S: Subject>(f: Fixture<S>) {
    let resumable = Policy {
        stale: Stale::Resume,
        recovery_points: true,
        ..policy()
    };
    let first = with_policy(&request("k"), resumable);
    let grant = f.execute(first.clone()).await;
    f.advance(grant.fence, point("charged", b"ch_1")).await;
    f.clock.advance(LEASE);
    let second = f.resume(again(&first)).await;
    let expected = [line(f.now(), 2, EntryKind::Resumed, "client", None)];
    assert_eq!(notes(&f, first.id).await, expected);
    f.clock.advance(TICK);
    f.complete(second.fence, completion("paid")).await;
    assert_eq!(notes(&f, first.id).await, expected, "it ended in time");
}

/// An attempt of a completer is recorded with its name, and not as a loss.
pub async fn a_claim_by_a_completer_is_recorded<S: Subject>(f: Fixture<S>) {
    let first = with_policy(&request("k"), resumable());
    let grant = f.execute(first.clone()).await;
    f.advance(grant.fence, point("charged", b"ch_1")).await;
    f.clock.advance(LEASE);
    let claimed = f.claim_abandoned(10).await;
    let expected = [line(f.now(), 2, EntryKind::Resumed, "completer", None)];
    assert_eq!(notes(&f, first.id).await, expected);
    f.clock.advance(TICK);
    f.complete(claimed[0].fence(), completion("paid")).await;
    assert_eq!(notes(&f, first.id).await, expected, "it ended in time");
}

/// A completion of an unknown record is recorded as late, also after a dead letter.
pub async fn a_late_completion_is_recorded<S: Subject>(f: Fixture<S>) {
    for dead in [false, true] {
        let first = request(&format!("dead-{dead}"));
        let grant = f.lost(first.clone()).await;
        let mut expected = vec![line(
            f.now(),
            1,
            EntryKind::Unknown,
            "executor",
            Some("timeout"),
        )];
        f.clock.advance(TICK);
        if dead {
            f.dead_letter(grant.fence, "tries_used_up".into()).await;
            let code = Some("tries_used_up");
            expected.push(line(f.now(), 1, EntryKind::DeadLettered, "worker", code));
        }
        f.clock.advance(TICK);
        f.complete(grant.fence, completion("late")).await;
        expected.push(line(f.now(), 1, EntryKind::CompletedLate, "executor", None));
        assert_eq!(notes(&f, first.id).await, expected);
        f.clock.advance(TICK);
        let repeated = f.complete(grant.fence, completion("late")).await;
        assert_eq!(repeated, Held::Repeated);
        assert_eq!(notes(&f, first.id).await, expected, "the same write again");
    }
}

/// An attempt that completes in time is not late because an earlier one was lost.
pub async fn an_attempt_in_time_after_a_loss_is_not_late<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let one = f.lost(first.clone()).await;
    f.claim_due(10).await;
    f.resolve(not_executed(one.fence)).await;
    let two = f.execute(again(&first)).await;
    f.complete(two.fence, completion("paid")).await;
    let expected = [
        EntryKind::Unknown,
        EntryKind::ResolvedNotExecuted,
        EntryKind::Reattempted,
    ];
    assert_eq!(kinds(&f, first.id).await, expected);
}

/// A reconcile attempt is recorded with its evidence, and a verdict with its reason.
pub async fn verdicts_are_recorded_with_reason_and_evidence<S: Subject>(f: Fixture<S>) {
    let person = Actor::person("op@example.com", "the provider says so: ch_1 ✓");
    for completed in [true, false] {
        let first = request(&format!("completed-{completed}"));
        let grant = f.lost(first.clone()).await;
        let mut expected = vec![line(
            f.now(),
            1,
            EntryKind::Unknown,
            "executor",
            Some("timeout"),
        )];
        f.clock.advance(TICK);
        let seen = Bytes::from_static(b"404\0\xff");
        f.resolve(asked(&f, grant.fence, Some(seen.clone()))).await;
        expected.push(Note {
            evidence: Some(seen.clone()),
            ..line(
                f.now(),
                1,
                EntryKind::Asked,
                "reconciler",
                Some("not_found"),
            )
        });
        f.clock.advance(TICK);
        let (reported, what, code) = if completed {
            let found = Verdict::Completed(completion("found"));
            (found, EntryKind::ResolvedCompleted, None)
        } else {
            let never = Verdict::NotExecuted("never_created".into());
            (never, EntryKind::ResolvedNotExecuted, Some("never_created"))
        };
        let decided = Resolve {
            by: person.clone(),
            ..verdict(grant.fence, reported)
        };
        assert_eq!(f.resolve(decided).await, Resolution::Applied);
        expected.push(Note {
            reason: person.why.clone(),
            evidence: Some(seen),
            ..line(f.now(), 1, what, "op@example.com", code)
        });
        assert_eq!(notes(&f, first.id).await, expected);
    }
}

/// A refused verdict changes nothing and adds no entry.
pub async fn a_refused_verdict_is_not_recorded<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.completed(first.clone(), "paid").await;
    let record = f.record(first.id).await;
    assert_eq!(
        f.resolve(not_executed(grant.fence)).await,
        refused_by(&record)
    );
    let dead_lettered = f.dead_letter(grant.fence, "person".into()).await;
    assert_eq!(dead_lettered, refused_by(&record));
    assert_eq!(notes(&f, first.id).await, []);
}

/// A second `dead_letter` of the same record adds no entry.
pub async fn a_dead_letter_is_recorded_once<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    f.clock.advance(TICK);
    f.dead_letter(grant.fence, "tries_used_up".into()).await;
    let dead_lettered = line(
        f.now(),
        1,
        EntryKind::DeadLettered,
        "worker",
        Some("tries_used_up"),
    );
    f.clock.advance(TICK);
    f.dead_letter(grant.fence, "again".into()).await;
    assert_eq!(notes(&f, first.id).await[1..], [dead_lettered]);
}

/// Every fenced write except a heartbeat is recorded with its attempt.
pub async fn every_fenced_write_is_recorded<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let old = f.released(first.clone()).await;
    f.execute(again(&first)).await;
    f.clock.advance(TICK);
    let fenced = fenced_by(&f.record(first.id).await);
    let updated_at = f.record(first.id).await.updated_at;
    assert_eq!(f.complete(old.fence, completion("late")).await, fenced);
    assert_eq!(f.release(old.fence).await, fenced);
    assert_eq!(f.evict(old.fence).await, fenced);
    assert_eq!(f.mark_unknown(old.fence).await, fenced);
    assert_eq!(f.heartbeat(old.fence, LEASE).await, fenced);
    assert_eq!(f.advance(old.fence, point("p", b"")).await, fenced);
    let verbs = ["complete", "release", "evict", "mark_unknown", "advance"];
    let expected = verbs.map(|verb| line(f.now(), 1, EntryKind::Fenced, "executor", Some(verb)));
    assert_eq!(notes(&f, first.id).await[2..], expected);
    assert_eq!(f.record(first.id).await.updated_at, updated_at);
}

/// Each fenced write may stand for an effect, so each is an entry.
pub async fn the_same_fenced_write_twice_is_recorded_twice<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.completed(first.clone(), "paid").await;
    for _ in 0..2 {
        f.clock.advance(TICK);
        f.complete(grant.fence, completion("other")).await;
    }
    let notes = notes(&f, first.id).await;
    let at: Vec<_> = notes.iter().map(|note| note.at).collect();
    let whats: Vec<_> = notes.iter().map(|note| note.what).collect();
    assert_eq!(whats, [EntryKind::Fenced; 2]);
    assert_eq!(at[0].saturating_add(TICK), at[1]);
}

/// Without a record there is no history to add to.
pub async fn a_fenced_write_without_a_record_leaves_no_history<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    assert_eq!(f.evict(grant.fence).await, Held::Applied);
    let none = Held::Fenced(Fenced { found: None });
    assert_eq!(f.complete(grant.fence, completion("late")).await, none);
    assert_eq!(f.release(grant.fence).await, none);
    assert_eq!(f.evict(grant.fence).await, none);
    let notes = f.store.history(first.id).await.expect("history");
    assert_eq!(notes, []);
}

/// Concurrent late owners: every fenced write is an entry, and the hash chain is valid.
pub async fn concurrent_fenced_writes_leave_an_unbroken_chain<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.completed(first.clone(), "paid").await;
    let numbers = (0..f.scale.tasks).collect();
    together(&f.store, numbers, move |store, number: usize| async move {
        let reported = completion(&number.to_string());
        store
            .complete(grant.fence, reported)
            .await
            .expect("complete")
    })
    .await;
    let expected = vec![EntryKind::Fenced; f.scale.tasks];
    assert_eq!(kinds(&f, first.id).await, expected);
}

/// The entries of two records do not mix, and each has its own sequence.
pub async fn histories_of_records_are_separate<S: Subject>(f: Fixture<S>) {
    let both = [request("a"), request("b")];
    let mut grants = Vec::new();
    for first in &both {
        grants.push(f.lost(first.clone()).await);
    }
    f.resolve(not_executed(grants[0].fence)).await;
    f.dead_letter(grants[1].fence, "person".into()).await;
    assert_eq!(
        kinds(&f, both[0].id).await,
        [EntryKind::Unknown, EntryKind::ResolvedNotExecuted]
    );
    assert_eq!(
        kinds(&f, both[1].id).await,
        [EntryKind::Unknown, EntryKind::DeadLettered]
    );
}
