//! Expiry at the exact time: one microsecond before, at, and after.

use std::time::Duration;

use semel_core::time::FOREVER_MICROS;
use semel_core::{Code, Decision, Policy, Stale, Status, Timestamp, Windows};

use super::fixture::{
    LEASE, TICK, WINDOWS, again, completion, fenced_by, kept_for, policy, request, unresolved,
    with_policy,
};
use super::{Fixture, Subject};

/// An instant as every case has to meet it: is it over one tick before, at, one after?
const MOMENTS: [(i64, bool); 3] = [(-1, false), (0, true), (1, true)];

fn moved(instant: Timestamp, ticks: i64) -> Timestamp {
    Timestamp::from_micros(instant.as_micros() + ticks)
}

/// The lease ends for the next request at `locked_until`.
pub async fn a_lease_expires_exactly_on_time_for_reserve<S: Subject>(f: Fixture<S>) {
    for (ticks, over) in MOMENTS {
        let first = request(&format!("k{ticks}"));
        let grant = f.execute(first.clone()).await;
        f.clock.set(moved(grant.locked_until, ticks));
        let decision = f.reserve(again(&first)).await;
        assert_eq!(matches!(decision, Decision::Unknown(_)), over, "{ticks}");
        assert_eq!(
            matches!(decision, Decision::InProgress(_)),
            !over,
            "{ticks}"
        );
    }
}

/// The lease ends for a request that resumes at `locked_until`.
pub async fn a_lease_expires_exactly_on_time_for_resume<S: Subject>(f: Fixture<S>) {
    let policy = Policy {
        stale: Stale::Resume,
        recovery_points: true,
        ..policy()
    };
    for (ticks, over) in MOMENTS {
        let first = with_policy(&request(&format!("k{ticks}")), policy.clone());
        let grant = f.execute(first.clone()).await;
        f.clock.set(moved(grant.locked_until, ticks));
        let decision = f.reserve(again(&first)).await;
        assert_eq!(matches!(decision, Decision::Resume(_)), over, "{ticks}");
    }
}

/// The lease ends for the sweep at `locked_until`.
pub async fn a_lease_expires_exactly_on_time_for_sweep<S: Subject>(f: Fixture<S>) {
    let grant = f.execute(request("k")).await;
    f.clock.set(moved(grant.locked_until, -1));
    assert_eq!(f.sweep(10).await, []);
    f.clock.set(grant.locked_until);
    assert_eq!(f.sweep(10).await, [grant.fence]);
}

/// A lease of zero length expires at once.
pub async fn a_zero_lease_expires_at_once<S: Subject>(f: Fixture<S>) {
    let mut policy = policy();
    policy.lease = Duration::ZERO;
    let first = with_policy(&request("k"), policy);
    f.execute(first.clone()).await;
    f.unknown(again(&first)).await;
}

/// Replays end at `expires_at`, even before a sweep.
pub async fn the_replay_window_ends_exactly_on_time<S: Subject>(f: Fixture<S>) {
    for (ticks, over) in MOMENTS {
        let first = request(&format!("k{ticks}"));
        f.completed(first.clone(), "paid").await;
        let end = f.now().saturating_add(WINDOWS.replay);
        f.clock.set(moved(end, ticks));
        let before = f.record(first.id).await;
        let decision = f.reserve(again(&first)).await;
        assert_eq!(matches!(decision, Decision::Expired(_)), over, "{ticks}");
        assert_eq!(matches!(decision, Decision::Replay(_)), !over, "{ticks}");
        assert_eq!(
            f.record(first.id).await,
            before,
            "asking changed the record"
        );
    }
}

/// `expire` acts at `expires_at`, not before.
pub async fn expire_acts_exactly_on_time<S: Subject>(f: Fixture<S>) {
    f.completed(request("completed"), "paid").await;
    f.released(request("released")).await;
    let end = f.now().saturating_add(WINDOWS.replay);
    f.clock.set(moved(end, -1));
    assert_eq!(f.expire(10).await, 0);
    f.clock.set(end);
    assert_eq!(f.expire(10).await, 2);
}

/// The body is dropped at `body_expires_at`, not before; replays continue without it.
pub async fn a_body_expires_exactly_on_time<S: Subject>(f: Fixture<S>) {
    let body = Duration::from_hours(1);
    let first = with_policy(&request("k"), kept_for(Windows { body, ..WINDOWS }));
    let grant = f.completed(first.clone(), "paid").await;
    let end = f.now().saturating_add(body);
    f.clock.set(moved(end, -1));
    assert_eq!(f.drop_bodies(10).await, 0);
    f.clock.set(end);
    assert!(f.replay(again(&first)).await.response.body.is_some());
    assert_eq!(f.drop_bodies(10).await, 1);
    assert_eq!(f.drop_bodies(10).await, 0);
    let replay = f.replay(again(&first)).await;
    let whole = completion("paid");
    assert_eq!(replay.response.body, None);
    assert_eq!(replay.response.headers, whole.response.headers);
    assert_eq!(
        (replay.response.status, replay.resource),
        (201, whole.resource)
    );
    let record = f.record(first.id).await;
    assert_eq!(
        f.complete(grant.fence, completion("other")).await,
        fenced_by(&record)
    );
}

/// The tombstone is purged at `purge_at`, not before.
pub async fn a_tombstone_is_purged_exactly_on_time<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    f.completed(first.clone(), "paid").await;
    // The sweeper is late: the tombstone's time begins when there is a tombstone.
    f.clock.advance(WINDOWS.replay * 2);
    assert_eq!(f.expire(10).await, 1);
    let end = f
        .now()
        .saturating_add(WINDOWS.tombstone.expect("a tombstone"));
    f.clock.set(moved(end, -1));
    assert_eq!(f.purge(10).await, 0);
    assert_eq!(f.status(first.id).await, Some(Status::Expired));
    f.clock.set(end);
    assert_eq!(f.purge(10).await, 1);
    assert_eq!(f.find(first.id).await, None);
    assert_eq!(f.find_identity(&first.identity).await, None);
}

/// An unknown record is due at `reconcile_after`, not before.
pub async fn an_unknown_record_is_due_exactly_on_time<S: Subject>(f: Fixture<S>) {
    f.lost(request("k")).await;
    let next = unresolved(&f.claim_due(10).await[0]).reconcile_after;
    f.clock.set(moved(next, -1));
    assert!(f.claim_due(10).await.is_empty());
    f.clock.set(next);
    assert_eq!(f.claim_due(10).await.len(), 1);
}

/// The longest windows and leases below "forever" are stored exactly.
pub async fn huge_windows_are_kept_exactly<S: Subject>(f: Fixture<S>) {
    let huge = Duration::from_micros(FOREVER_MICROS.unsigned_abs());
    let policy = Policy {
        lease: huge,
        ..kept_for(Windows {
            replay: huge,
            body: huge - TICK,
            tombstone: Some(LEASE),
        })
    };
    let first = with_policy(&request("k"), policy);
    let grant = f.execute(first.clone()).await;
    assert_eq!(grant.locked_until, f.now().saturating_add(huge));
    f.clock.advance(LEASE * 1_000_000);
    let running = f.in_progress(again(&first)).await;
    assert_eq!(running.locked_until, grant.locked_until);
    f.complete(grant.fence, completion("paid")).await;
    let end = f.now().saturating_add(huge);
    assert_eq!(f.replay(again(&first)).await.expires_at, end);
    assert_eq!(f.record(first.id).await.windows, first.policy.windows);
    f.clock.set(moved(end, -1));
    assert_eq!((f.drop_bodies(10).await, f.expire(10).await), (1, 0));
    f.clock.set(end);
    assert_eq!(f.expire(10).await, 1);
}

/// The longest durations of Rust saturate at the longest that a store can keep.
pub async fn the_longest_durations_do_not_overflow<S: Subject>(f: Fixture<S>) {
    let policy = Policy {
        lease: Duration::MAX,
        ..kept_for(Windows {
            replay: Duration::MAX,
            body: Duration::MAX,
            tombstone: Some(Duration::MAX),
        })
    };
    let first = with_policy(&request("k"), policy);
    let grant = f.execute(first.clone()).await;
    assert_eq!(grant.locked_until, f.now().saturating_add(Duration::MAX));
    assert_eq!(f.sweep(10).await, []);
    f.heartbeat(grant.fence, Duration::MAX).await;
    f.complete(grant.fence, completion("paid")).await;
    let end = f.now().saturating_add(Duration::MAX);
    assert_eq!(f.replay(again(&first)).await.expires_at, end);
    assert_eq!((f.expire(10).await, f.drop_bodies(10).await), (0, 0));
    f.clock.advance(Duration::from_hours(24 * 365 * 100));
    f.replay(again(&first)).await;
}

/// Times before the epoch are valid.
pub async fn times_before_1970_are_accepted<S: Subject>(f: Fixture<S>) {
    f.clock.set(Timestamp::from_micros(-1_000_000_000));
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    f.clock.set(moved(grant.locked_until, -1));
    f.in_progress(again(&first)).await;
    f.clock.set(grant.locked_until);
    f.unknown(again(&first)).await;
    let record = f.record(first.id).await;
    assert_eq!(record.created_at, Timestamp::from_micros(-1_000_000_000));
    assert_eq!(record.last_error, Some(Code::LEASE_EXPIRED));
}
