//! A stored response does not change until it expires.

use semel_core::Held;

use super::fixture::{LEASE, TICK, WINDOWS, again, completion, fenced_by, request, with_policy};
use super::{Fixture, Subject};

/// Every replay within the window is the first response, byte for byte.
pub async fn every_replay_returns_the_same_response<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    f.completed(first.clone(), "paid").await;
    let end = f.now().saturating_add(WINDOWS.replay);
    for pause in [TICK, LEASE, LEASE * 100, WINDOWS.replay / 2] {
        f.clock.advance(pause);
        let replay = f.replay(again(&first)).await;
        assert_eq!(replay.id, first.id);
        assert_eq!(replay.response, completion("paid").response);
        assert_eq!(replay.resource, completion("paid").resource);
        assert_eq!(replay.expires_at, end);
    }
}

/// A replay changes neither the record nor its window.
pub async fn a_replay_does_not_change_the_record<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    f.completed(first.clone(), "paid").await;
    let record = f.record(first.id).await;
    let mut other = first.policy.clone();
    other.windows.replay *= 2;
    other.lease *= 2;
    f.clock.advance(TICK);
    f.replay(with_policy(&first, other)).await;
    assert_eq!(f.record(first.id).await, record);
}

/// No write of the holder changes a completed record.
pub async fn a_completed_record_stays_completed<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.completed(first.clone(), "paid").await;
    let record = f.record(first.id).await;
    f.clock.advance(LEASE * 10);
    let fenced = fenced_by(&record);
    assert_eq!(f.release(grant.fence).await, fenced);
    assert_eq!(f.evict(grant.fence).await, fenced);
    assert_eq!(f.mark_unknown(grant.fence).await, fenced);
    assert_eq!(f.heartbeat(grant.fence, LEASE).await, fenced);
    assert_eq!(f.sweep(10).await, []);
    assert!(f.claim_due(10).await.is_empty());
    assert_eq!(f.record(first.id).await, record);
    assert_eq!(
        f.complete(grant.fence, completion("paid")).await,
        Held::Repeated
    );
}

/// The window starts when the attempt completes, not when it starts.
pub async fn the_replay_window_starts_at_completion<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    f.clock.advance(LEASE / 2);
    f.complete(grant.fence, completion("paid")).await;
    let replay = f.replay(again(&first)).await;
    assert_eq!(replay.expires_at, f.now().saturating_add(WINDOWS.replay));
}
