//! Retention: expiry, tombstones, purge and erasure.

use std::time::Duration;

use semel_core::store::MAX_BATCH;
use semel_core::{Decision, OnExpired, Policy, State, Status, Windows};

use super::fixture::{
    LEASE, TICK, WINDOWS, again, completion, kept_for, misused, point, policy, request, together,
    with_policy,
};
use super::{Fixture, Subject};

const DELETE: Windows = Windows {
    tombstone: None,
    ..WINDOWS
};

/// A tombstone keeps the fingerprint and the resource, and no response.
pub async fn expire_leaves_a_tombstone<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    f.advance(grant.fence, point("charged", b"card")).await;
    f.complete(grant.fence, completion("paid")).await;
    f.clock.advance(WINDOWS.replay);
    assert_eq!(f.expire(10).await, 1);
    assert_eq!(f.expire(10).await, 0);
    let record = f.record(first.id).await;
    let purge_at = f
        .now()
        .saturating_add(WINDOWS.tombstone.expect("a tombstone"));
    assert_eq!(record.state, State::Expired { purge_at });
    assert_eq!((record.recovery, record.updated_at), (None, f.now()));
    match f.reserve(again(&first)).await {
        Decision::Expired(expired) => {
            assert_eq!(expired.id, first.id);
            assert_eq!(expired.resource, completion("").resource);
        }
        other => panic!("must be expired, but: {other:?}"),
    }
}

/// Without a tombstone window the record is deleted, and the key is new.
pub async fn expire_without_a_tombstone_deletes_the_record<S: Subject>(f: Fixture<S>) {
    for name in ["completed", "released"] {
        let first = with_policy(&request(name), kept_for(DELETE));
        if name == "completed" {
            f.completed(first.clone(), "paid").await;
        } else {
            f.released(first.clone()).await;
        }
        f.clock.advance(WINDOWS.replay);
        assert_eq!(f.expire(10).await, 1, "{name}");
        assert_eq!(f.find(first.id).await, None, "{name}");
        assert_eq!(f.find_identity(&first.identity).await, None, "{name}");
        let anew = f.execute(misused(&first)).await;
        assert_eq!(anew.fence.attempt, 1, "{name}");
    }
}

/// Without tombstones a mistake is final: `expire` keeps a record with an open window, and one that
/// was retryable, ended, and executes again.
pub async fn expire_keeps_records_that_are_open_or_executing_again<S: Subject>(f: Fixture<S>) {
    let policy = kept_for(DELETE);
    let retried = with_policy(&request("retried"), policy.clone());
    f.released(retried.clone()).await;
    f.clock.advance(WINDOWS.replay);
    let again = f.execute(again(&retried)).await;
    let open = with_policy(&request("open"), policy);
    f.completed(open.clone(), "paid").await;
    let before = [f.record(retried.id).await, f.record(open.id).await];
    assert_eq!(f.expire(10).await, 0);
    assert_eq!(
        [f.record(retried.id).await, f.record(open.id).await],
        before
    );
    assert_eq!(again.fence.attempt, 2);
}

/// An ended window applies before `expire` runs: the policy rejects or executes anew.
pub async fn an_ended_window_applies_before_expire_runs<S: Subject>(f: Fixture<S>) {
    begins_anew(&f, false).await;
}

/// The policy decides whether a tombstone is refused or executes anew.
pub async fn a_tombstone_is_refused_or_executes_anew<S: Subject>(f: Fixture<S>) {
    begins_anew(&f, true).await;
}

async fn begins_anew<S: Subject>(f: &Fixture<S>, swept: bool) {
    let first = request("k");
    let old = f.completed(first.clone(), "old").await;
    f.clock.advance(WINDOWS.replay);
    if swept {
        assert_eq!(f.expire(10).await, 1);
    }
    let rejected = f.reserve(again(&first)).await;
    assert!(matches!(rejected, Decision::Expired(_)), "{rejected:?}");
    let eager = Policy {
        on_expired: OnExpired::Execute,
        ..policy()
    };
    let anew = with_policy(&first, eager);
    let new = f.execute(anew.clone()).await;
    assert_ne!(new.fence.id, old.fence.id);
    assert_eq!((new.fence.id, new.fence.attempt), (anew.id, 1));
    assert_eq!(new.recovery, None);
    assert_eq!(f.find(old.fence.id).await, None);
    let record = f.record(anew.id).await;
    assert_eq!((record.created_at, record.resource), (f.now(), None));
    f.complete(new.fence, completion("new")).await;
    assert_eq!(
        f.replay(again(&first)).await.response,
        completion("new").response
    );
}

/// A record in progress or unknown is never pruned, whatever its age and windows.
pub async fn unfinished_records_are_never_pruned<S: Subject>(f: Fixture<S>) {
    let short = Windows {
        replay: TICK,
        body: Duration::ZERO,
        tombstone: None,
    };
    let mut eager = kept_for(short);
    eager.on_expired = OnExpired::Execute;
    let running = with_policy(&request("running"), eager.clone());
    let lost = with_policy(&request("lost"), eager.clone());
    let dead_lettered = with_policy(&request("set aside"), eager.clone());
    f.execute(running.clone()).await;
    f.lost(lost.clone()).await;
    let grant = f.lost(dead_lettered.clone()).await;
    f.dead_letter(grant.fence, "person".into()).await;
    let mut before = Vec::new();
    for asked in [&running, &lost, &dead_lettered] {
        before.push(f.record(asked.id).await);
    }
    f.clock.advance(Duration::from_hours(24 * 365 * 20));
    assert_eq!(f.expire(MAX_BATCH).await, 0);
    assert_eq!(f.drop_bodies(MAX_BATCH).await, 0);
    assert_eq!(f.purge(MAX_BATCH).await, 0);
    for (asked, before) in [&running, &lost, &dead_lettered].into_iter().zip(before) {
        assert!(!f.erase(asked.id).await);
        assert_eq!(f.record(asked.id).await, before);
        f.unknown(again(asked)).await;
    }
}

/// A record within its window is not pruned with those that ended.
pub async fn records_within_their_window_are_not_pruned<S: Subject>(f: Fixture<S>) {
    let old = request("old");
    f.completed(old.clone(), "old").await;
    f.clock.advance(WINDOWS.replay);
    let open = request("open");
    f.completed(open.clone(), "open").await;
    assert_eq!(f.expire(10).await, 1);
    assert_eq!(f.status(old.id).await, Some(Status::Expired));
    assert_eq!(f.replay(again(&open)).await.id, open.id);
    assert_eq!(f.purge(10).await, 0);
}

/// Each retention call processes at most its limit.
pub async fn retention_respects_its_batch_limits<S: Subject>(f: Fixture<S>) {
    let windows = Windows {
        body: LEASE,
        ..WINDOWS
    };
    let asked = (0..5)
        .map(|place| with_policy(&request(&format!("k{place}")), kept_for(windows)))
        .collect();
    together(&f.store, asked, |store, request| async move {
        let id = request.id;
        store.reserve(request).await.expect("reserve");
        let fence = semel_core::Fence { id, attempt: 1 };
        store
            .complete(fence, completion("paid"))
            .await
            .expect("complete");
    })
    .await;
    f.clock.advance(LEASE);
    assert_eq!(f.drop_bodies(0).await, 0);
    assert_eq!(f.drop_bodies(2).await, 2);
    assert_eq!(f.drop_bodies(MAX_BATCH + 1).await, 3);
    f.clock.advance(WINDOWS.replay);
    assert_eq!(f.expire(0).await, 0);
    assert_eq!(f.expire(2).await, 2);
    assert_eq!(f.expire(usize::MAX).await, 3);
    f.clock.advance(WINDOWS.tombstone.expect("a tombstone"));
    assert_eq!(f.purge(0).await, 0);
    assert_eq!(f.purge(2).await, 2);
    assert_eq!(f.purge(10).await, 3);
}

/// A body with the length of the replay window is never dropped alone.
pub async fn a_body_kept_for_the_whole_window_is_not_dropped<S: Subject>(f: Fixture<S>) {
    for (name, body) in [("equal", WINDOWS.replay), ("longer", WINDOWS.replay * 2)] {
        let first = with_policy(&request(name), kept_for(Windows { body, ..WINDOWS }));
        f.completed(first.clone(), "paid").await;
        f.clock.advance(WINDOWS.replay - TICK);
        assert_eq!(f.drop_bodies(10).await, 0, "{name}");
        assert!(
            f.replay(again(&first)).await.response.body.is_some(),
            "{name}"
        );
        f.clock.advance(WINDOWS.replay * 2);
        assert_eq!(f.drop_bodies(10).await, 0, "{name}");
    }
}

/// Erasing removes what could identify a person; a retry still learns that the request was
/// executed.
pub async fn erase_removes_the_content_and_keeps_the_record<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    f.advance(grant.fence, point("charged", b"card")).await;
    f.complete(grant.fence, completion("paid")).await;
    f.clock.advance(TICK);
    assert!(f.erase(first.id).await);
    let replay = f.replay(again(&first)).await;
    assert_eq!(
        (replay.response.body, replay.response.headers),
        (None, vec![])
    );
    assert_eq!(
        (replay.response.status, replay.resource),
        (201, completion("").resource)
    );
    let record = f.record(first.id).await;
    assert_eq!((record.recovery, record.updated_at), (None, f.now()));
}

/// Only a completed record can be erased: others have no response, and may be needed.
pub async fn erase_changes_only_completed_records<S: Subject>(f: Fixture<S>) {
    let tombstone = f.completed(request("tombstone"), "old").await;
    f.clock.advance(WINDOWS.replay);
    f.expire(10).await;
    let running = f.execute(request("running")).await;
    f.advance(running.fence, point("charged", b"card")).await;
    let released = f.released(request("released")).await;
    let lost = f.lost(request("lost")).await;
    f.clock.advance(TICK);
    for grant in [tombstone, running, released, lost] {
        let before = f.record(grant.fence.id).await;
        assert!(
            !f.erase(grant.fence.id).await,
            "{:?}",
            before.state.status()
        );
        assert_eq!(f.record(grant.fence.id).await, before);
    }
}
