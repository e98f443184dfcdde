//! Sweeping and claiming: small batches, the oldest first, each to one worker.

use std::collections::BTreeSet;
use std::time::Duration;

use semel_core::store::{MAX_BATCH, OperationFilter};
use semel_core::{Backoff, Code, Held, Status};

use super::fixture::{
    BACKOFF, LEASE, TICK, again, identity, policy, request, request_for, together, unresolved,
    with_policy,
};
use super::{Fixture, Subject};

/// Only expired leases are swept, the oldest first, up to the limit.
pub async fn sweep_takes_the_oldest_expired_leases_first<S: Subject>(f: Fixture<S>) {
    let mut fences = Vec::new();
    // Reserved in one order, lapsing in the other.
    for place in (1..=5).rev() {
        let mut policy = policy();
        policy.lease = LEASE * place;
        let grant = f
            .execute(with_policy(&request(&format!("k{place}")), policy))
            .await;
        fences.insert(0, grant.fence);
    }
    f.completed(request("completed"), "paid").await;
    f.released(request("released")).await;
    f.clock.advance(LEASE * 4);
    assert_eq!(f.sweep(0).await, []);
    assert_eq!(f.sweep(1).await, fences[..1]);
    let two: BTreeSet<_> = f.sweep(2).await.into_iter().map(|fence| fence.id).collect();
    assert_eq!(two, fences[1..3].iter().map(|fence| fence.id).collect());
    assert_eq!(f.sweep(MAX_BATCH + 1).await, fences[3..4]);
    assert_eq!(f.sweep(10).await, []);
    let record = f.record(fences[0].id).await;
    assert_eq!(record.last_error, Some(Code::LEASE_EXPIRED));
    assert_eq!(unresolved(&record).reconcile_after, f.now());
    assert_eq!(f.status(fences[4].id).await, Some(Status::InProgress));
}

/// After one sweep only records with a live lease are in progress.
pub async fn sweep_skips_a_live_lease<S: Subject>(f: Fixture<S>) {
    let alive = f.execute(request("alive")).await;
    let silent = f.execute(request("silent")).await;
    f.clock.advance(LEASE - TICK);
    assert_eq!(f.heartbeat(alive.fence, LEASE).await, Held::Applied);
    f.clock.advance(TICK);
    assert_eq!(f.sweep(10).await, [silent.fence]);
    f.in_progress(again(&request("alive"))).await;
}

/// The longest due record comes first, up to the limit.
pub async fn claim_due_returns_the_longest_due_first<S: Subject>(f: Fixture<S>) {
    let mut grants = Vec::new();
    for place in 0..5 {
        grants.insert(0, f.execute(request(&format!("k{place}"))).await);
    }
    for grant in &grants {
        f.mark_unknown(grant.fence).await;
        f.clock.advance(TICK);
    }
    assert!(f.claim_due(0).await.is_empty());
    let claimed = f.claim_due(3).await;
    let ids: Vec<_> = claimed.iter().map(|record| record.id).collect();
    let expected: Vec<_> = grants.iter().map(|grant| grant.fence.id).collect();
    assert_eq!(ids, expected[..3]);
    for record in claimed {
        assert_eq!(
            f.record(record.id).await,
            record,
            "handed out as it is stored"
        );
    }
    let rest: Vec<_> = f
        .claim_due(MAX_BATCH + 1)
        .await
        .iter()
        .map(|record| record.id)
        .collect();
    assert_eq!(rest, expected[3..]);
    assert!(f.claim_due(10).await.is_empty());
}

/// A reconciler of one operation gets only its records.
pub async fn claim_due_filters_by_operation<S: Subject>(f: Fixture<S>) {
    for operation in ["pay", "refund", "Pay", "pay2"] {
        f.lost(request_for(identity("t", operation, "k"))).await;
    }
    let claimed = f
        .store
        .claim_due(OperationFilter::Only("pay".into()), BACKOFF, 10)
        .await
        .expect("claim_due");
    let operations: Vec<_> = claimed
        .iter()
        .map(|record| record.identity.operation())
        .collect();
    assert_eq!(operations, ["pay"]);
    let none = f
        .store
        .claim_due(OperationFilter::Only("unused".into()), BACKOFF, 10)
        .await
        .expect("claim_due");
    assert!(none.is_empty());
    assert_eq!(f.claim_due(10).await.len(), 3);
}

/// Records of other operations do not use up the limit.
pub async fn claim_due_filters_before_it_limits<S: Subject>(f: Fixture<S>) {
    for place in 0..3 {
        f.lost(request_for(identity("t", "refund", &place.to_string())))
            .await;
    }
    f.clock.advance(TICK);
    f.lost(request_for(identity("t", "pay", "k"))).await;
    let dead = f.lost(request_for(identity("t", "pay", "dead"))).await;
    f.dead_letter(dead.fence, "person".into()).await;
    let claimed = f
        .store
        .claim_due(OperationFilter::Only("pay".into()), BACKOFF, 1)
        .await
        .expect("claim_due");
    assert_eq!(claimed.len(), 1);
}

/// A worker without an operation of its own gets all records except those of the named operations.
pub async fn claim_due_excludes_the_operations_of_other_workers<S: Subject>(f: Fixture<S>) {
    let names = ["pay", "refund", "Pay", "pay2", "a\"b,[]", "čáp"];
    for operation in names {
        f.lost(request_for(identity("t", operation, "k"))).await;
        f.clock.advance(TICK);
    }
    let all_but = async |others: &[&str], limit: usize| {
        let others = others.iter().map(|other| Box::from(*other)).collect();
        let claimed = f
            .store
            .claim_due(OperationFilter::AllBut(others), BACKOFF, limit);
        let claimed = claimed.await.expect("claim_due").into_iter();
        claimed
            .map(|record| record.identity.operation().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(all_but(&names, 10).await.is_empty());
    let others = ["pay", "a\"b,[]", "čáp", "unused"];
    assert_eq!(all_but(&others, 2).await, ["refund", "Pay"]);
    assert_eq!(all_but(&others, 10).await, ["pay2"]);
    assert_eq!(all_but(&[], 10).await, ["pay", "a\"b,[]", "čáp"]);
}

/// Dead letters do not use up the limit.
pub async fn dead_letters_do_not_block_claims<S: Subject>(f: Fixture<S>) {
    for place in 0..3 {
        let grant = f.lost(request(&format!("dead-{place}"))).await;
        f.dead_letter(grant.fence, "person".into()).await;
    }
    f.clock.advance(TICK);
    let live = f.lost(request("live")).await;
    let claimed = f.claim_due(1).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].fence(), live.fence);
}

/// Each claim schedules the next one by the backoff, to the microsecond.
pub async fn claim_due_follows_the_backoff<S: Subject>(f: Fixture<S>) {
    let backoff = Backoff {
        every: Duration::from_secs(7),
        max_every: Duration::from_mins(1),
    };
    let grant = f.lost(request("k")).await;
    for tries in 1..=8 {
        let claimed = f
            .store
            .claim_due(OperationFilter::All, backoff, 10)
            .await
            .expect("claim_due");
        assert_eq!(claimed.len(), 1, "try {tries}");
        let state = unresolved(&claimed[0]);
        assert_eq!(state.reconcile_attempts, tries);
        let next = f.now().saturating_add(backoff.delay(grant.fence.id, tries));
        assert_eq!(state.reconcile_after, next, "try {tries}");
        assert_eq!(claimed[0].updated_at, f.now());
        f.clock.set(next);
    }
}

/// Concurrent workers: each due record goes to exactly one of them.
pub async fn claim_due_gives_each_record_to_one_claimer<S: Subject>(f: Fixture<S>) {
    let asked: Vec<_> = (0..40).map(|place| request(&format!("k{place}"))).collect();
    let all: BTreeSet<_> = asked.iter().map(|request| request.id).collect();
    together(&f.store, asked, |store, request| async move {
        let fence = semel_core::Fence {
            id: request.id,
            attempt: 1,
        };
        store.reserve(request).await.expect("reserve");
        store
            .mark_unknown(fence, "timeout".into(), None)
            .await
            .expect("mark_unknown");
    })
    .await;
    let claimed = together(&f.store, (0..8).collect(), |store, _: u8| async move {
        let mut mine = Vec::new();
        // Bounded, since a store that hands out the same again would never be done.
        for _ in 0..40 {
            let some = store
                .claim_due(OperationFilter::All, BACKOFF, 3)
                .await
                .expect("claim_due");
            mine.extend(some.into_iter().map(|record| record.id));
        }
        mine
    })
    .await;
    let claimed: Vec<_> = claimed.into_iter().flatten().collect();
    assert_eq!(claimed.len(), all.len(), "claimed twice, or not at all");
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>(), all);
}

/// Concurrent sweepers: exactly one of them returns each expired lease.
pub async fn sweep_returns_each_expired_lease_once<S: Subject>(f: Fixture<S>) {
    let asked: Vec<_> = (0..40).map(|place| request(&format!("k{place}"))).collect();
    together(&f.store, asked, |store, request| async move {
        store.reserve(request).await.expect("reserve")
    })
    .await;
    f.clock.advance(LEASE);
    let swept = together(&f.store, (0..8).collect(), |store, _: u8| async move {
        store.sweep(10).await.expect("sweep")
    })
    .await;
    let swept: Vec<_> = swept.into_iter().flatten().map(|fence| fence.id).collect();
    assert_eq!(swept.len(), 40);
    assert_eq!(swept.into_iter().collect::<BTreeSet<_>>().len(), 40);
}
