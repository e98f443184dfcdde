//! Statistics: correct, bounded sums. No decision depends on them.

use semel_core::identity::MAX_OPERATION_BYTES;
use semel_core::statistics::{
    ACTIVITY_INTERVAL, Activity, DecisionCounts, MAX_MISUSES, Misuse, interval_start,
};
use semel_core::store::MAX_BATCH;
use semel_core::{OperationId, Timestamp};

use super::fixture::together;
use super::{Fixture, Subject};

/// Different in every part, so that two columns that were swapped show.
fn decision_counts(factor: u64) -> DecisionCounts {
    DecisionCounts {
        created: factor,
        replayed: 2 * factor,
        in_progress: 3 * factor,
        misuse: 4 * factor,
        retried: 5 * factor,
        unknown: 6 * factor,
        expired: 7 * factor,
        failed: 8 * factor,
    }
}

fn activity(at: Timestamp, operation: &str, factor: u64) -> Activity {
    Activity {
        at,
        operation: operation.into(),
        decisions: decision_counts(factor),
    }
}

fn misuse(tenant: &str, operation: &str, count: u64, at: Timestamp) -> Misuse {
    Misuse {
        tenant: tenant.into(),
        operation: operation.into(),
        count,
        first_at: at,
        last_at: at,
        last_id: OperationId::generate(),
    }
}

impl<S: Subject> Fixture<S> {
    async fn count(&self, activity: Vec<Activity>, misuses: Vec<Misuse>) {
        let counted = self.store.add_counts(activity, misuses).await;
        counted.expect("count");
    }

    async fn activity(&self, since: Timestamp) -> Vec<Activity> {
        self.store.activity(since).await.expect("activity")
    }

    async fn misuses(&self, limit: usize) -> Vec<Misuse> {
        self.store.misuses(limit).await.expect("misuses")
    }
}

/// A store that counted nothing has no statistics.
pub async fn an_unused_store_has_no_statistics<S: Subject>(f: Fixture<S>) {
    assert_eq!(f.activity(Timestamp::from_micros(0)).await, []);
    assert_eq!(f.misuses(10).await, []);
    f.count(vec![], vec![]).await;
    assert_eq!(f.activity(Timestamp::from_micros(0)).await, []);
}

/// Counts of several processes for one interval and operation are one sum; other intervals and
/// operations are separate.
pub async fn activity_is_summed_by_interval_and_operation<S: Subject>(f: Fixture<S>) {
    let now = interval_start(f.now());
    let next = now.saturating_add(ACTIVITY_INTERVAL);
    f.count(
        vec![activity(now, "pay", 1), activity(next, "pay", 10)],
        vec![],
    )
    .await;
    f.count(
        vec![
            activity(now, "refund", 100),
            activity(now, "pay", 3),
            activity(now, "Pay", 7),
        ],
        vec![],
    )
    .await;
    let all = [
        activity(now, "Pay", 7),
        activity(now, "pay", 4),
        activity(now, "refund", 100),
        activity(next, "pay", 10),
    ];
    assert_eq!(f.activity(now).await, all);
    assert_eq!(f.activity(next).await, all[3..]);
    let later = next.saturating_add(ACTIVITY_INTERVAL);
    assert_eq!(f.activity(later).await, []);
}

/// As a path with ids in it, which no index and no compression makes short: two that begin alike.
pub(super) fn long_names() -> (String, String) {
    let mut long: String = (0..).map(|n: u32| format!("{n:x}/")).take(4000).collect();
    long.truncate(MAX_OPERATION_BYTES - 1);
    (format!("{long}1"), format!("{long}2"))
}

/// Names of any length are counted, and names with a common prefix are separate.
pub async fn names_of_any_length_are_counted<S: Subject>(f: Fixture<S>) {
    let now = interval_start(f.now());
    let (one, two) = long_names();
    f.count(
        vec![activity(now, &one, 1), activity(now, &two, 2)],
        vec![misuse("t", &one, 1, f.now()), misuse("t", &two, 2, f.now())],
    )
    .await;
    f.count(vec![activity(now, &one, 1)], vec![]).await;
    assert_eq!(
        f.activity(now).await,
        [activity(now, &one, 2), activity(now, &two, 2)]
    );
    assert_eq!(f.misuses(10).await.len(), 2);
}

/// Concurrent counts are all added.
pub async fn concurrent_counts_are_all_kept<S: Subject>(f: Fixture<S>) {
    let now = interval_start(f.now());
    let tasks = f.scale.tasks;
    together(
        &f.store,
        (0..tasks).collect(),
        move |store, place| async move {
            // Not in one order: two that wait for each other must not wait for ever.
            let mut names = ["pay", "refund", "void"];
            names.rotate_left(place % 3);
            let activities = names.iter().map(|name| activity(now, name, 1)).collect();
            let misuses = names.iter().map(|name| misuse("t", name, 1, now)).collect();
            store.add_counts(activities, misuses).await.expect("count");
        },
    )
    .await;
    let all = f.activity(now).await;
    assert_eq!(all.len(), 3);
    for counted in all {
        assert_eq!(
            counted.decisions,
            decision_counts(tasks as u64),
            "{}",
            counted.operation
        );
    }
    for counted in f.misuses(10).await {
        assert_eq!(counted.count, tasks as u64, "{}", counted.operation);
    }
}

/// Misuse of one tenant and operation is one row: the sum, the first and last time, and the key of
/// the last one, in whatever order processes report.
pub async fn misuse_is_summed_by_tenant_and_operation<S: Subject>(f: Fixture<S>) {
    let at = |second: i64| Timestamp::from_micros(second * 1_000_000);
    let early = misuse("a", "pay", 1, at(100));
    let late = misuse("a", "pay", 2, at(300));
    let between = misuse("a", "pay", 4, at(200));
    f.count(vec![], vec![late.clone(), misuse("b", "pay", 8, at(250))])
        .await;
    f.count(vec![], vec![early.clone()]).await;
    f.count(vec![], vec![between, misuse("a", "refund", 16, at(400))])
        .await;
    let shown = f.misuses(10).await;
    let lines: Vec<_> = shown
        .iter()
        .map(|line| (&*line.tenant, &*line.operation, line.count))
        .collect();
    assert_eq!(
        lines,
        [("a", "refund", 16), ("a", "pay", 7), ("b", "pay", 8)],
        "the latest first"
    );
    let pay = &shown[1];
    assert_eq!((pay.first_at, pay.last_at), (at(100), at(300)));
    assert_eq!(pay.last_id, late.last_id);
    assert_eq!(f.misuses(1).await, shown[..1]);
}

/// A client that invents tenants cannot fill the store: the oldest rows are removed.
pub async fn misuse_is_bounded<S: Subject>(f: Fixture<S>) {
    let at =
        |place: usize| Timestamp::from_micros(i64::try_from(place).expect("small") * 1_000_000);
    let all: Vec<_> = (0..MAX_MISUSES + 5)
        .map(|place| misuse(&format!("t{place:06}"), "pay", 1, at(place)))
        .collect();
    for some in all.chunks(MAX_BATCH) {
        f.count(vec![], some.to_vec()).await;
    }
    let latest = f.misuses(usize::MAX).await;
    assert_eq!(latest.len(), MAX_BATCH);
    assert_eq!(Some(&latest[0]), all.last());
    let mut left = 0;
    loop {
        let gone = f.store.forget_misuses(at(MAX_MISUSES + 5), MAX_BATCH).await;
        let gone = gone.expect("forget_misuses");
        if gone == 0 {
            break;
        }
        left += gone;
    }
    assert_eq!(left, MAX_MISUSES);
}

/// Activity and misuse from before a time are removed in batches, and nothing else.
pub async fn old_statistics_are_pruned<S: Subject>(f: Fixture<S>) {
    let now = interval_start(f.now());
    let next = now.saturating_add(ACTIVITY_INTERVAL);
    f.count(
        vec![
            activity(now, "pay", 1),
            activity(now, "refund", 1),
            activity(next, "pay", 1),
        ],
        vec![
            misuse("a", "pay", 1, now),
            misuse("b", "pay", 1, now),
            misuse("c", "pay", 1, next),
        ],
    )
    .await;
    for (before, limit, gone) in [(now, 10, 0), (next, 1, 1), (next, 1, 1), (next, 1, 0)] {
        let activity = f.store.forget_activity(before, limit).await;
        assert_eq!(activity.expect("forget_activity"), gone);
        let misuses = f.store.forget_misuses(before, limit).await;
        assert_eq!(misuses.expect("forget_misuses"), gone);
    }
    assert_eq!(f.activity(now).await.len(), 1);
    assert_eq!(f.activity(now).await[0].at, next);
    let kept = f.misuses(10).await;
    assert_eq!(kept.len(), 1);
    assert_eq!(&*kept[0].tenant, "c");
}
