//! Fencing: which writes of a holder apply, and when they are refused.

use std::time::Duration;

use bytes::Bytes;
use semel_core::history::{EXECUTOR, EntryKind};
use semel_core::store::MAX_BATCH;
use semel_core::{
    Code, Completion, Fence, Held, OnExpired, Policy, Record, Reserve, Resolution, State, Status,
    Verdict,
};

use super::fixture::{
    LEASE, TICK, WINDOWS, again, completion, fenced_by, not_executed, policy, request, verdict,
    with_policy,
};
use super::{Fixture, Subject};

fn locked_until(record: &Record) -> semel_core::Timestamp {
    match &record.state {
        State::InProgress(lease) => lease.locked_until,
        other @ (State::Completed(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_)
        | State::Expired { .. }) => panic!("not in progress: {other:?}"),
    }
}

/// A repeated write succeeds and changes nothing: its caller may have lost the first reply.
pub async fn the_same_completion_twice_returns_repeated<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.completed(first.clone(), "paid").await;
    let record = f.record(first.id).await;
    for pause in [Duration::ZERO, LEASE, WINDOWS.replay] {
        f.clock.advance(pause);
        let held = f.complete(grant.fence, completion("paid")).await;
        assert_eq!(held, Held::Repeated);
        assert_eq!(f.record(first.id).await, record);
    }
}

/// A small change of a completion.
type Change = fn(&mut Completion);

/// Any other completion is refused, however little it differs.
pub async fn a_different_completion_is_fenced_and_the_first_stays<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.completed(first.clone(), "paid").await;
    let record = f.record(first.id).await;
    let changes: [(&str, Change); 11] = [
        ("status", |c| c.response.status = 200),
        ("schema version", |c| c.response.schema_version = 4),
        ("body", |c| {
            c.response.body = Some(Bytes::from_static(b"Paid"));
        }),
        ("empty body", |c| c.response.body = Some(Bytes::new())),
        ("no body", |c| c.response.body = None),
        ("no headers", |c| c.response.headers.clear()),
        ("header order", |c| c.response.headers.swap(1, 2)),
        ("header value", |c| {
            c.response.headers[0].1 = Bytes::from_static(b"text/html");
        }),
        ("header name", |c| {
            c.response.headers[0].0 = "Content-Type".into();
        }),
        ("header more", |c| {
            c.response.headers.push(("x".into(), Bytes::new()));
        }),
        ("resource", |c| c.resource = None),
    ];
    f.clock.advance(TICK);
    for (what, change) in changes {
        let mut other = completion("paid");
        change(&mut other);
        let held = f.complete(grant.fence, other).await;
        assert_eq!(held, fenced_by(&record), "another {what}");
        assert_eq!(
            f.record(first.id).await,
            record,
            "another {what} changed the record"
        );
    }
}

/// A completion without a body can be repeated; one with an empty body is different.
pub async fn no_body_and_an_empty_body_are_different_completions<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    let mut none = completion("");
    none.response.body = None;
    none.resource = None;
    assert_eq!(f.complete(grant.fence, none.clone()).await, Held::Applied);
    assert_eq!(f.complete(grant.fence, none.clone()).await, Held::Repeated);
    none.response.body = Some(Bytes::new());
    let record = f.record(first.id).await;
    assert_eq!(f.complete(grant.fence, none).await, fenced_by(&record));
}

/// A late owner may complete its unknown record while no other attempt was granted.
pub async fn a_late_owner_completes_from_unknown<S: Subject>(f: Fixture<S>) {
    let first = request("swept");
    let grant = f.execute(first.clone()).await;
    f.clock.advance(LEASE);
    assert_eq!(f.sweep(10).await, [grant.fence]);
    f.clock.advance(TICK);
    assert_eq!(
        f.complete(grant.fence, completion("late")).await,
        Held::Applied
    );
    let replay = f.replay(again(&first)).await;
    assert_eq!(replay.response, completion("late").response);
    assert_eq!(f.record(first.id).await.last_error, None);
}

/// The same after the record was dead-lettered.
pub async fn a_late_owner_completes_a_dead_lettered_record<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    f.dead_letter(grant.fence, "person".into()).await;
    assert_eq!(
        f.complete(grant.fence, completion("late")).await,
        Held::Applied
    );
    f.replay(again(&first)).await;
}

/// An expired lease that was not swept does not prevent the completion.
pub async fn a_late_owner_completes_before_a_sweep<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    f.clock.advance(LEASE * 100);
    assert_eq!(
        f.complete(grant.fence, completion("late")).await,
        Held::Applied
    );
    f.replay(again(&first)).await;
}

/// A late owner that proves that nothing happened frees its unknown record while no other attempt
/// was granted, dead-lettered or not. The record and its history stay, also where it is evicted.
pub async fn a_late_owner_releases_from_unknown<S: Subject>(f: Fixture<S>) {
    for (key, dead_lettered, evicted) in [
        ("swept", false, false),
        ("dead letter", true, false),
        ("evicted", false, true),
    ] {
        let first = request(key);
        let grant = f.execute(first.clone()).await;
        f.clock.advance(LEASE);
        assert_eq!(f.sweep(10).await, [grant.fence]);
        if dead_lettered {
            f.dead_letter(grant.fence, "person".into()).await;
        }
        f.clock.advance(TICK);
        let held = if evicted {
            f.evict(grant.fence).await
        } else {
            f.release(grant.fence).await
        };
        assert_eq!(held, Held::Applied, "{key}");
        let record = f.record(first.id).await;
        assert_eq!(record.state.status(), Status::FailedRetryable, "{key}");
        let history = f.store.history(first.id).await.expect("history");
        assert_eq!(semel_core::history::verify(&record, &history), Ok(()));
        let last = &history.last().expect("an entry").note;
        let by = (last.what, &*last.actor);
        assert_eq!(by, (EntryKind::Released, EXECUTOR), "{key}");
        f.clock.advance(TICK);
        let due = f.claim_due(MAX_BATCH).await;
        assert!(due.iter().all(|other| other.id != first.id), "{key}");
        let next = f.execute(again(&first)).await;
        assert_eq!(next.fence.attempt, 2, "{key}");
        // The write arrives a second time, after the next attempt became unknown.
        f.mark_unknown(next.fence).await;
        let record = f.record(first.id).await;
        assert_eq!(f.release(grant.fence).await, fenced_by(&record), "{key}");
        assert_eq!(f.evict(grant.fence).await, fenced_by(&record), "{key}");
        assert_eq!(f.record(first.id).await, record, "{key}");
    }
}

/// For a holder, only an outcome leads out of unknown.
pub async fn a_late_owner_of_an_unknown_record_may_only_end_it<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    let record = f.record(first.id).await;
    f.clock.advance(TICK);
    let fenced = fenced_by(&record);
    assert_eq!(f.mark_unknown(grant.fence).await, fenced);
    assert_eq!(f.heartbeat(grant.fence, LEASE).await, fenced);
    assert_eq!(f.record(first.id).await, record);
}

/// A verdict of "not executed" ends the attempt, also for its owner.
pub async fn a_late_owner_after_not_executed_is_fenced<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    f.resolve(not_executed(grant.fence)).await;
    let record = f.record(first.id).await;
    assert_eq!(
        f.complete(grant.fence, completion("late")).await,
        fenced_by(&record)
    );
    assert_eq!(f.release(grant.fence).await, fenced_by(&record));
    assert_eq!(f.record(first.id).await, record);
}

/// A write of attempt n changes nothing once attempt n + 1 exists, in any state of it.
pub async fn a_late_owner_after_a_new_attempt_is_fenced<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let old = f.released(first.clone()).await;
    let new = f.execute(again(&first)).await;
    let assert_fenced = async |when: &str| {
        let record = f.record(first.id).await;
        let fenced = fenced_by(&record);
        assert_eq!(
            f.complete(old.fence, completion("old")).await,
            fenced,
            "{when}"
        );
        assert_eq!(f.release(old.fence).await, fenced, "{when}");
        assert_eq!(f.evict(old.fence).await, fenced, "{when}");
        assert_eq!(f.mark_unknown(old.fence).await, fenced, "{when}");
        assert_eq!(f.heartbeat(old.fence, LEASE * 2).await, fenced, "{when}");
        assert_eq!(f.record(first.id).await, record, "{when}");
    };
    assert_fenced("while the new attempt runs").await;
    f.mark_unknown(new.fence).await;
    assert_fenced("while the new attempt is unknown").await;
    f.complete(new.fence, completion("new")).await;
    assert_fenced("after the new attempt completed").await;
    assert_eq!(
        f.complete(old.fence, completion("new")).await,
        fenced_by(&f.record(first.id).await),
        "the same completion, but not the same attempt"
    );
    assert_eq!(
        f.replay(again(&first)).await.response,
        completion("new").response
    );
}

/// A record that replaces an expired one has a new id, so an old fence never matches again.
pub async fn a_fence_of_a_replaced_record_is_refused<S: Subject>(f: Fixture<S>) {
    let eager = Policy {
        on_expired: OnExpired::Execute,
        ..policy()
    };
    let first = with_policy(&request("k"), eager);
    let old = f.completed(first.clone(), "old").await;
    f.clock.advance(WINDOWS.replay);
    let anew = Reserve {
        fingerprints: first.fingerprints.clone(),
        ..again(&first)
    };
    let new = f.execute(anew.clone()).await;
    assert_eq!(
        new.fence,
        Fence {
            id: anew.id,
            attempt: 1
        }
    );
    assert_eq!(f.find(first.id).await, None);
    let none = Held::Fenced(semel_core::transition::Fenced { found: None });
    for body in ["old", "other"] {
        assert_eq!(f.complete(old.fence, completion(body)).await, none);
    }
    assert_eq!(f.heartbeat(old.fence, LEASE).await, none);
    assert_eq!(f.evict(old.fence).await, none);
    assert_eq!(f.status(anew.id).await, Some(Status::InProgress));
}

/// A verdict and a different completion of the holder do not both apply.
pub async fn complete_after_a_verdict_keeps_the_verdict<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    let found = verdict(grant.fence, Verdict::Completed(completion("found")));
    assert_eq!(f.resolve(found).await, Resolution::Applied);
    let record = f.record(first.id).await;
    assert_eq!(record.resolved_by.as_deref(), Some("reconciler"));
    assert_eq!(
        f.complete(grant.fence, completion("other")).await,
        fenced_by(&record)
    );
    assert_eq!(
        f.complete(grant.fence, completion("found")).await,
        Held::Repeated
    );
    assert_eq!(f.record(first.id).await, record);
}

/// A heartbeat never shortens the lease.
pub async fn a_heartbeat_only_extends_the_lease<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    f.clock.advance(TICK);
    assert_eq!(f.heartbeat(grant.fence, LEASE).await, Held::Applied);
    let until = f.now().saturating_add(LEASE);
    assert_eq!(locked_until(&f.record(first.id).await), until);
    f.clock.advance(TICK);
    assert_eq!(f.heartbeat(grant.fence, TICK).await, Held::Applied);
    let record = f.record(first.id).await;
    assert_eq!(locked_until(&record), until);
    assert_eq!(record.updated_at, f.now());
}

/// An expired lease that was not swept can be renewed: no other attempt was granted.
pub async fn a_heartbeat_before_a_sweep_renews_an_expired_lease<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    f.clock.advance(LEASE * 3);
    assert_eq!(f.heartbeat(grant.fence, LEASE).await, Held::Applied);
    assert_eq!(f.sweep(10).await, []);
    f.in_progress(again(&first)).await;
}

/// The holder's reason is stored, up to its longest length.
pub async fn the_reason_is_kept<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    f.lost(first.clone()).await;
    assert_eq!(
        f.record(first.id).await.last_error,
        Some(Code::from("timeout"))
    );
    let long = "é".repeat(32);
    let second = request("long");
    let grant = f.execute(second.clone()).await;
    let held = f.store.release(grant.fence, Code::new(long.clone())).await;
    assert_eq!(held.expect("release"), Held::Applied);
    assert_eq!(f.record(second.id).await.last_error, Some(Code::new(long)));
}
