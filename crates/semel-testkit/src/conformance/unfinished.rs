//! Counts of unfinished records by operation.

use semel_core::store::{CountWithOldest, UnfinishedCounts};
use semel_core::{KeyScope, Timestamp};

use super::fixture::{LEASE, TICK, WINDOWS, completion, identity, not_executed, request_for};
use super::{Fixture, Subject};

fn tally(count: u64, oldest: Timestamp) -> CountWithOldest {
    CountWithOldest {
        count,
        oldest: (count > 0).then_some(oldest),
    }
}

/// All there is, in the order of the commands.
async fn unfinished_counts<S: Subject>(f: &Fixture<S>) -> Vec<UnfinishedCounts> {
    let mut all = f.store.count_unfinished().await.expect("count_unfinished");
    all.sort_by(|a, b| a.operation.cmp(&b.operation));
    all
}

/// Without unfinished records, there are no counts.
pub async fn finished_records_are_not_counted<S: Subject>(f: Fixture<S>) {
    assert_eq!(unfinished_counts(&f).await, []);
    let expired = f
        .completed(request_for(identity("t", "pay", "old")), "old")
        .await;
    f.clock.advance(WINDOWS.replay);
    assert_eq!(f.expire(10).await, 1);
    f.completed(request_for(identity("t", "pay", "done")), "paid")
        .await;
    f.released(request_for(identity("t", "pay", "released")))
        .await;
    assert_eq!(unfinished_counts(&f).await, []);
    assert!(f.find(expired.fence.id).await.is_some());
}

/// Executions, unknown records and dead letters are counted by operation over all tenants, with the
/// oldest of each; a dead letter also counts as unknown.
pub async fn unfinished_records_are_counted_by_operation<S: Subject>(f: Fixture<S>) {
    let start = f.now();
    // Distinguished by their start times, one tick apart.
    let at = |ticks: u32| start.saturating_add(TICK * ticks);
    let ask =
        |tenant: &str, operation: &str, key: &str| request_for(identity(tenant, operation, key));
    f.execute(ask("a", "pay", "running-1")).await;
    f.clock.advance(TICK);
    f.lost(ask("a", "pay", "lost-1")).await;
    f.clock.advance(TICK);
    let dead = f.lost(ask("b", "pay", "dead-1")).await;
    f.dead_letter(dead.fence, "person".into()).await;
    f.clock.advance(TICK);
    f.execute(ask("b", "pay", "running-2")).await;
    f.lost(ask("b", "pay", "lost-2")).await;
    f.clock.advance(TICK);
    f.lost(ask("a", "refund", "lost-3")).await;
    let tenant_wide = ask("a", "Pay", "running-3");
    let identity = tenant_wide.identity.clone().scoped(KeyScope::Tenant);
    f.execute(request_for(identity)).await;
    let expected = [
        UnfinishedCounts {
            operation: "Pay".into(),
            in_progress: tally(1, at(4)),
            unknown: CountWithOldest::default(),
            dead_lettered: CountWithOldest::default(),
        },
        UnfinishedCounts {
            operation: "pay".into(),
            in_progress: tally(2, at(0)),
            unknown: tally(3, at(1)),
            dead_lettered: tally(1, at(2)),
        },
        UnfinishedCounts {
            operation: "refund".into(),
            in_progress: CountWithOldest::default(),
            unknown: tally(1, at(4)),
            dead_lettered: CountWithOldest::default(),
        },
    ];
    assert_eq!(unfinished_counts(&f).await, expected);
}

/// A record that ends is no longer counted, and the next oldest takes its place.
pub async fn a_record_that_ends_is_no_longer_counted<S: Subject>(f: Fixture<S>) {
    let ask = |key: &str| request_for(identity("t", "pay", key));
    let running = f.execute(ask("running")).await;
    let lost = f.lost(ask("lost")).await;
    let dead = f.lost(ask("dead")).await;
    f.dead_letter(dead.fence, "person".into()).await;
    f.clock.advance(TICK);
    let later = f.now();
    f.execute(ask("later")).await;
    f.clock.advance(LEASE - TICK);
    assert_eq!(f.sweep(10).await, [running.fence]);
    let one = |f: Vec<UnfinishedCounts>| {
        assert_eq!(f.len(), 1, "{f:?}");
        let [pay] = f.try_into().expect("one");
        let UnfinishedCounts {
            in_progress,
            unknown,
            dead_lettered,
            ..
        }: UnfinishedCounts = pay;
        (in_progress, unknown.count, dead_lettered.count)
    };
    assert_eq!(one(unfinished_counts(&f).await), (tally(1, later), 3, 1));
    f.complete(running.fence, completion("late")).await;
    assert_eq!(one(unfinished_counts(&f).await), (tally(1, later), 2, 1));
    f.resolve(not_executed(dead.fence)).await;
    assert_eq!(one(unfinished_counts(&f).await), (tally(1, later), 1, 0));
    f.resolve(not_executed(lost.fence)).await;
    assert_eq!(one(unfinished_counts(&f).await), (tally(1, later), 0, 0));
    f.clock.advance(TICK);
    f.sweep(10).await;
    assert_eq!(
        one(unfinished_counts(&f).await),
        (CountWithOldest::default(), 1, 0)
    );
}
