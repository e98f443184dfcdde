//! Verdicts of reconciliation, each about one attempt.

use std::time::Duration;

use semel_core::{Code, Held, Resolution, Resolve, Status, Verdict};

use super::fixture::{
    LEASE, TICK, again, completion, not_executed, refused_by, request, unresolved, verdict,
};
use super::{Fixture, Subject};

/// All verdicts on one attempt.
fn verdicts(fence: semel_core::Fence, f: semel_core::Timestamp) -> [Resolve; 3] {
    [
        verdict(fence, Verdict::Completed(completion("found"))),
        not_executed(fence),
        verdict(fence, Verdict::StillUnknown("not_found".into(), f)),
    ]
}

/// Retries get the response that reconciliation found.
pub async fn a_verdict_of_completed_is_replayed<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    f.clock.advance(TICK);
    let found = verdict(grant.fence, Verdict::Completed(completion("declined")));
    assert_eq!(f.resolve(found).await, Resolution::Applied);
    let replay = f.replay(again(&first)).await;
    assert_eq!(replay.response, completion("declined").response);
    let record = f.record(first.id).await;
    assert_eq!(record.resolved_by.as_deref(), Some("reconciler"));
    assert_eq!(record.updated_at, f.now());
}

/// The next request executes the next attempt.
pub async fn a_verdict_of_not_executed_allows_the_next_attempt<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    assert_eq!(
        f.resolve(not_executed(grant.fence)).await,
        Resolution::Applied
    );
    let record = f.record(first.id).await;
    assert_eq!(record.last_error, Some(Code::from("never_created")));
    assert_eq!(record.state.status(), Status::FailedRetryable);
    assert_eq!(f.execute(again(&first)).await.fence.attempt, 2);
}

/// The next reconcile attempt is moved, and earlier ones stay counted.
pub async fn a_verdict_of_still_unknown_reschedules_and_keeps_count<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    assert_eq!(f.claim_due(10).await.len(), 1);
    let later = f.now().saturating_add(Duration::from_hours(2));
    let still = verdict(
        grant.fence,
        Verdict::StillUnknown("not_found".into(), later),
    );
    assert_eq!(f.resolve(still).await, Resolution::Applied);
    let record = f.record(first.id).await;
    assert_eq!(record.last_error, Some(Code::from("not_found")));
    assert_eq!(unresolved(&record).reconcile_after, later);
    assert_eq!(unresolved(&record).reconcile_attempts, 1);
    f.clock.advance(Duration::from_hours(2) - TICK);
    assert!(f.claim_due(10).await.is_empty());
    f.clock.advance(TICK);
    let claimed = f.claim_due(10).await;
    assert_eq!(unresolved(&claimed[0]).reconcile_attempts, 2);
}

/// An operator can resolve a dead-lettered record.
pub async fn a_dead_lettered_record_can_be_resolved<S: Subject>(f: Fixture<S>) {
    for (place, name) in ["completed", "not executed", "still unknown"]
        .iter()
        .enumerate()
    {
        let first = request(name);
        let grant = f.lost(first.clone()).await;
        f.dead_letter(grant.fence, "person".into()).await;
        let since = unresolved(&f.record(first.id).await).dead_lettered_at;
        f.clock.advance(TICK);
        let given = verdicts(grant.fence, f.now())[place].clone();
        assert_eq!(f.resolve(given).await, Resolution::Applied, "{name}");
        if place == 2 {
            let record = f.record(first.id).await;
            assert_eq!(unresolved(&record).dead_lettered_at, since);
            assert!(
                f.claim_due(10).await.is_empty(),
                "still waits for the person"
            );
        }
    }
}

/// A verdict on attempt 1 does not apply to attempt 2.
pub async fn a_verdict_on_an_older_attempt_is_refused<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let one = f.lost(first.clone()).await;
    f.resolve(not_executed(one.fence)).await;
    let two = f.execute(again(&first)).await;
    f.mark_unknown(two.fence).await;
    let record = f.record(first.id).await;
    f.clock.advance(TICK);
    for given in verdicts(one.fence, f.now()) {
        assert_eq!(f.resolve(given).await, refused_by(&record));
    }
    assert_eq!(
        f.dead_letter(one.fence, "late".into()).await,
        refused_by(&record)
    );
    assert_eq!(f.record(first.id).await, record);
    assert_eq!(
        f.resolve(not_executed(two.fence)).await,
        Resolution::Applied
    );
}

/// Only an unknown record can be resolved or dead-lettered.
pub async fn a_verdict_on_anything_but_unknown_is_refused<S: Subject>(f: Fixture<S>) {
    let expired = f.completed(request("expired"), "old").await;
    f.clock.advance(super::fixture::WINDOWS.replay);
    f.expire(10).await;
    let silent = f.execute(request("silent")).await;
    f.clock.advance(LEASE);
    let running = f.execute(request("running")).await;
    let completed = f.completed(request("completed"), "paid").await;
    let released = f.released(request("released")).await;
    for grant in [expired, silent, running, completed, released] {
        let record = f.record(grant.fence.id).await;
        for given in verdicts(grant.fence, f.now()) {
            assert_eq!(
                f.resolve(given).await,
                refused_by(&record),
                "{:?}",
                record.state
            );
        }
        assert_eq!(
            f.dead_letter(grant.fence, "x".into()).await,
            refused_by(&record)
        );
        assert_eq!(f.record(grant.fence.id).await, record);
    }
}

/// A second verdict is refused, also an equal one.
pub async fn the_first_verdict_stands<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    let found = verdict(grant.fence, Verdict::Completed(completion("found")));
    assert_eq!(f.resolve(found.clone()).await, Resolution::Applied);
    let record = f.record(first.id).await;
    assert_eq!(
        f.resolve(not_executed(grant.fence)).await,
        refused_by(&record)
    );
    assert_eq!(f.resolve(found).await, refused_by(&record));
    assert_eq!(f.record(first.id).await, record);
}

/// A dead letter is not claimed any more, and its time does not change.
pub async fn a_dead_letter_is_not_polled_and_keeps_its_first_time<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    f.clock.advance(TICK);
    let applied = f.dead_letter(grant.fence, "tries_used_up".into()).await;
    assert_eq!(applied, Resolution::Applied);
    let record = f.record(first.id).await;
    assert_eq!(unresolved(&record).dead_lettered_at, Some(f.now()));
    assert_eq!(record.last_error, Some(Code::from("tries_used_up")));
    f.clock.advance(Duration::from_hours(24 * 365));
    assert!(f.claim_due(10).await.is_empty());
    let twice = f.dead_letter(grant.fence, "again".into()).await;
    assert_eq!(twice, Resolution::Applied);
    assert_eq!(f.record(first.id).await, record);
    assert!(f.unknown(again(&first)).await.dead_lettered);
}

/// A new attempt that is lost starts without reconcile attempts and without a dead letter.
pub async fn a_new_attempt_starts_with_no_reconcile_attempts<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let one = f.lost(first.clone()).await;
    f.claim_due(10).await;
    f.dead_letter(one.fence, "person".into()).await;
    f.resolve(not_executed(one.fence)).await;
    let two = f.execute(again(&first)).await;
    assert_eq!(f.mark_unknown(two.fence).await, Held::Applied);
    let state = unresolved(&f.record(first.id).await);
    assert_eq!(
        (state.reconcile_attempts, state.dead_lettered_at),
        (0, None)
    );
    assert_eq!(f.claim_due(10).await.len(), 1);
}
