//! The table "Out of band" of the state machine, a case for each of its rows: what the verb
//! does to a record in its state, and that it leaves every other record unchanged.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::history::EntryKind;
use semel_core::store::MAX_BATCH;
use semel_core::{
    Code, Held, OperationId, Policy, Record, Resolution, Resolve, State, Status, Verdict, Windows,
};

use super::abandoned::resumable;
use super::fixture::{
    BACKOFF, LEASE, TICK, WINDOWS, again, completion, kept_for, not_executed, point, refused_by,
    request, together, unresolved, verdict, with_policy,
};
use super::{Fixture, Subject};

/// Every record there is, by its key, with its history.
type Snapshot = BTreeMap<&'static str, (Record, usize)>;

/// One record in each state that a verb of the table may find, each with its times over.
async fn every_state<S: Subject>(f: &Fixture<S>) -> BTreeMap<&'static str, OperationId> {
    let short = |name: &str| {
        let windows = Windows {
            body: LEASE,
            ..WINDOWS
        };
        with_policy(&request(name), kept_for(windows))
    };
    let mut ids = BTreeMap::new();
    let tombstone = f.completed(request("tombstone"), "old").await;
    f.clock.advance(WINDOWS.replay);
    assert_eq!(f.expire(10).await, 1);
    ids.insert("tombstone", tombstone.fence.id);
    ids.insert("over", f.completed(request("over"), "old").await.fence.id);
    ids.insert("released", f.released(request("released")).await.fence.id);
    f.clock.advance(WINDOWS.tombstone.expect("a tombstone"));
    ids.insert(
        "body over",
        f.completed(short("body over"), "b").await.fence.id,
    );
    ids.insert("lapsed", f.execute(request("lapsed")).await.fence.id);
    for (name, resume_within) in [("abandoned", LEASE), ("given up", Duration::ZERO)] {
        let policy = Policy {
            resume_within,
            ..resumable()
        };
        let grant = f.execute(with_policy(&request(name), policy)).await;
        f.advance(grant.fence, point("charged", b"ch_1")).await;
        ids.insert(name, grant.fence.id);
    }
    f.clock.advance(LEASE);
    let dead = f.lost(request("dead")).await;
    f.dead_letter(dead.fence, "person".into()).await;
    ids.insert("dead", dead.fence.id);
    let waiting = f.lost(request("waiting")).await;
    let later = f.now().saturating_add(LEASE);
    let still = Verdict::StillUnknown("not_found".into(), later);
    f.resolve(verdict(waiting.fence, still)).await;
    ids.insert("waiting", waiting.fence.id);
    ids.insert("due", f.lost(request("due")).await.fence.id);
    let resumed_later = with_policy(&request("resumable"), resumable());
    ids.insert("resumable", f.execute(resumed_later).await.fence.id);
    ids.insert("running", f.execute(request("running")).await.fence.id);
    ids.insert("open", f.completed(short("open"), "paid").await.fence.id);
    ids
}

async fn snapshot<S: Subject>(
    f: &Fixture<S>,
    ids: &BTreeMap<&'static str, OperationId>,
) -> Snapshot {
    let mut snapshot = Snapshot::new();
    for (name, id) in ids {
        if let Some(record) = f.find(*id).await {
            let history = f.store.history(*id).await.expect("history");
            snapshot.insert(name, (record, history.len()));
        }
    }
    snapshot
}

/// The names of the fields that differ.
fn changed(before: &Snapshot, after: &Snapshot) -> Vec<&'static str> {
    let differs = |name: &&&'static str| before.get(**name) != after.get(**name);
    before.keys().filter(differs).copied().collect()
}

/// `sweep`: `in_progress`, lease expired, not resumable or past its resume deadline → `unknown`.
pub async fn sweep_marks_only_expired_leases<S: Subject>(f: Fixture<S>) {
    let ids = every_state(&f).await;
    let before = snapshot(&f, &ids).await;
    assert_eq!(f.sweep(MAX_BATCH).await.len(), 2);
    let after = snapshot(&f, &ids).await;
    assert_eq!(changed(&before, &after), ["given up", "lapsed"]);
    for name in ["given up", "lapsed"] {
        let (record, _) = &after[name];
        assert_eq!(unresolved(record).reconcile_after, f.now(), "{name}");
        assert_eq!(record.last_error, Some(Code::LEASE_EXPIRED), "{name}");
    }
}

/// `claim_abandoned`: `in_progress`, lease expired, resumable → the next attempt, of a completer.
pub async fn claim_abandoned_takes_only_resumable_records<S: Subject>(f: Fixture<S>) {
    let ids = every_state(&f).await;
    let before = snapshot(&f, &ids).await;
    assert_eq!(f.claim_abandoned(MAX_BATCH).await.len(), 2);
    let after = snapshot(&f, &ids).await;
    assert_eq!(changed(&before, &after), ["abandoned", "given up"]);
    for name in ["abandoned", "given up"] {
        let (record, entries) = &after[name];
        assert_eq!(record.attempt, 2, "{name}");
        assert_eq!(record.state.status(), Status::InProgress, "{name}");
        assert_eq!(*entries, before[name].1 + 1, "{name}");
    }
}

/// `claim_due`: `unknown`, due, not dead-lettered → the same, with the next try scheduled.
pub async fn claim_due_takes_only_due_records<S: Subject>(f: Fixture<S>) {
    let ids = every_state(&f).await;
    let before = snapshot(&f, &ids).await;
    assert_eq!(f.claim_due(MAX_BATCH).await.len(), 1);
    let after = snapshot(&f, &ids).await;
    assert_eq!(changed(&before, &after), ["due"]);
    let state = unresolved(&after["due"].0);
    assert_eq!(state.reconcile_attempts, 1);
    let next = f.now().saturating_add(BACKOFF.delay(ids["due"], 1));
    assert_eq!(state.reconcile_after, next);
    assert_eq!(
        after["due"].1, before["due"].1,
        "a claim alone is not recorded"
    );
}

/// `resolve`: `unknown`, dead-lettered or not → `completed`, `failed_retryable`, or still
/// `unknown`; anything else refuses it.
pub async fn resolve_changes_only_unknown_records<S: Subject>(f: Fixture<S>) {
    let later = f.now().saturating_add(Duration::from_hours(24 * 365));
    for verdict_given in [
        Verdict::Completed(completion("found")),
        Verdict::NotExecuted("never_created".into()),
        Verdict::StillUnknown("not_found".into(), later),
    ] {
        let ids = every_state(&f).await;
        let before = snapshot(&f, &ids).await;
        for (name, (record, _)) in &before {
            let answer = f
                .resolve(verdict(record.fence(), verdict_given.clone()))
                .await;
            let expected = match &record.state {
                State::Unknown(_) => Resolution::Applied,
                State::InProgress(_)
                | State::Completed(_)
                | State::FailedRetryable { .. }
                | State::Expired { .. } => refused_by(record),
            };
            assert_eq!(answer, expected, "{name}: {verdict_given:?}");
        }
        let after = snapshot(&f, &ids).await;
        assert_eq!(changed(&before, &after), ["dead", "due", "waiting"]);
        for name in ["dead", "due", "waiting"] {
            let (record, entries) = &after[name];
            let expected = match verdict_given {
                Verdict::Completed(_) => Status::Completed,
                Verdict::NotExecuted(_) => Status::FailedRetryable,
                Verdict::StillUnknown(..) => Status::Unknown,
            };
            assert_eq!(record.state.status(), expected, "{name}");
            assert_eq!(*entries, before[name].1 + 1, "{name}");
        }
        forget_all(&f, &ids).await;
    }
}

/// Makes room for the same keys again.
async fn forget_all<S: Subject>(f: &Fixture<S>, ids: &BTreeMap<&'static str, OperationId>) {
    for id in ids.values() {
        if let Some(record) = f.find(*id).await {
            f.complete(record.fence(), completion("over")).await;
        }
    }
    f.clock.advance(WINDOWS.replay);
    f.expire(MAX_BATCH).await;
    f.clock.advance(WINDOWS.tombstone.expect("a tombstone"));
    f.purge(MAX_BATCH).await;
    for id in ids.values() {
        assert_eq!(f.find(*id).await, None);
    }
}

/// `dead_letter`: `unknown` → the same with `dead_lettered_at`, removed from polling.
pub async fn dead_letter_changes_only_unknown_records<S: Subject>(f: Fixture<S>) {
    let ids = every_state(&f).await;
    let before = snapshot(&f, &ids).await;
    for (name, (record, _)) in &before {
        let answer = f.dead_letter(record.fence(), "tries_used_up".into()).await;
        let expected = match &record.state {
            State::Unknown(_) => Resolution::Applied,
            State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Expired { .. } => refused_by(record),
        };
        assert_eq!(answer, expected, "{name}");
    }
    let after = snapshot(&f, &ids).await;
    assert_eq!(changed(&before, &after), ["due", "waiting"]);
    for name in ["due", "waiting"] {
        let state = unresolved(&after[name].0);
        assert_eq!(state.dead_lettered_at, Some(f.now()), "{name}");
    }
    f.clock.advance(Duration::from_hours(24 * 365));
    assert!(f.claim_due(MAX_BATCH).await.is_empty());
}

/// `expire`: `completed` and `failed_retryable`, window over → a tombstone.
pub async fn expire_changes_only_ended_records<S: Subject>(f: Fixture<S>) {
    let ids = every_state(&f).await;
    let before = snapshot(&f, &ids).await;
    assert_eq!(f.expire(MAX_BATCH).await, 2);
    let after = snapshot(&f, &ids).await;
    assert_eq!(changed(&before, &after), ["over", "released"]);
    let purge_at = f
        .now()
        .saturating_add(WINDOWS.tombstone.expect("a tombstone"));
    for name in ["over", "released"] {
        assert_eq!(after[name].0.state, State::Expired { purge_at }, "{name}");
    }
}

/// `drop_body`: `completed`, body expired → the same without a body; a replay then names the
/// resource.
pub async fn drop_bodies_drops_only_expired_bodies<S: Subject>(f: Fixture<S>) {
    let ids = every_state(&f).await;
    let before = snapshot(&f, &ids).await;
    assert_eq!(f.drop_bodies(MAX_BATCH).await, 1);
    let after = snapshot(&f, &ids).await;
    assert_eq!(changed(&before, &after), ["body over"]);
    let replay = f.replay(again(&request("body over"))).await;
    assert_eq!(replay.response.body, None);
    assert_eq!(replay.response.headers, completion("").response.headers);
    assert_eq!(replay.resource, completion("").resource);
}

/// `purge`: a tombstone past its retention → deleted.
pub async fn purge_removes_only_expired_tombstones<S: Subject>(f: Fixture<S>) {
    let ids = every_state(&f).await;
    let before = snapshot(&f, &ids).await;
    assert_eq!(f.purge(MAX_BATCH).await, 1);
    let after = snapshot(&f, &ids).await;
    assert_eq!(changed(&before, &after), ["tombstone"]);
    assert!(!after.contains_key("tombstone"));
}

/// A late owner completes or releases while a reconciler resolves: exactly one applies, and record
/// and history agree on which.
pub async fn a_late_owner_and_a_reconciler_do_not_both_apply<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.rounds * 4 {
        let first = request(&format!("k{round}"));
        let grant = f.lost(first.clone()).await;
        let completes = round % 4 < 2;
        let verdict_given: Resolve = if round % 2 == 0 {
            verdict(grant.fence, Verdict::Completed(completion("found")))
        } else {
            not_executed(grant.fence)
        };
        let applied = together(&f.store, vec![true, false], move |store, owner| {
            let verdict_given = verdict_given.clone();
            async move {
                if owner {
                    let held = if completes {
                        store.complete(grant.fence, completion("late")).await
                    } else {
                        store.release(grant.fence, "not_sent".into()).await
                    };
                    held.expect("an outcome") == Held::Applied
                } else {
                    let answer = store.resolve(verdict_given).await;
                    answer.expect("resolve") == Resolution::Applied
                }
            }
        })
        .await;
        assert_eq!(applied[0], !applied[1], "owner and reconciler: {applied:?}");
        let record = f.record(first.id).await;
        let by_owner = record.resolved_by.is_none();
        assert_eq!(by_owner, applied[0]);
        let history = f.store.history(first.id).await.expect("history");
        assert_eq!(semel_core::history::verify(&record, &history), Ok(()));
        let by_late_owner = if completes {
            EntryKind::CompletedLate
        } else {
            EntryKind::Released
        };
        let late = history.iter().any(|entry| entry.note.what == by_late_owner);
        assert_eq!(late, by_owner, "{history:?}");
        if let Status::Completed = record.state.status() {
            let body = if by_owner { "late" } else { "found" };
            let replay = f.replay(again(&first)).await;
            assert_eq!(replay.response, completion(body).response);
        }
    }
    f.clock.advance(TICK);
    assert!(f.claim_due(MAX_BATCH).await.is_empty());
}
