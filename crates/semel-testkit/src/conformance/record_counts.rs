//! The record count scan and its callers: every record is counted once, by one process, and found by
//! its key.

use std::collections::BTreeMap;

use semel_core::statistics::{Caller, MAX_CALLERS, RecordCount, RecordCounts, interval_start};
use semel_core::store::{MAX_BATCH, Summary};
use semel_core::{Identity, KeyScope, Status, Timestamp};

use super::fixture::{LEASE, TICK, WINDOWS, identity, key, request_for, together};
use super::statistics::long_names;
use super::{Fixture, Subject};

fn caller(scope: KeyScope, tenant: &str, operation: &str) -> Caller {
    Caller {
        scope,
        tenant: tenant.into(),
        operation: operation.into(),
    }
}

fn count(operation: &str, status: Status, count: u64) -> RecordCount {
    RecordCount {
        operation: operation.into(),
        status,
        count,
    }
}

impl<S: Subject> Fixture<S> {
    async fn record_callers(&self, callers: Vec<Caller>) -> bool {
        self.store.record_callers(callers).await.expect("meet")
    }

    async fn acquire_scan_lease(&self, owner: &str) -> bool {
        let counting = self.store.acquire_scan_lease(owner.into(), LEASE).await;
        counting.expect("count_alone")
    }

    async fn publish_record_counts(&self, counts: &RecordCounts) {
        let published = self.store.publish_record_counts(counts.clone()).await;
        published.expect("publish_record_counts");
    }

    async fn record_counts(&self) -> Option<RecordCounts> {
        self.store.record_counts().await.expect("record_counts")
    }

    async fn find_key(&self, wanted: &str) -> Vec<Summary> {
        let found = self.store.find_key(&key(wanted)).await;
        found.expect("find_key")
    }
}

/// Before the first scan there are no counts, and no key is found.
pub async fn before_the_first_scan_there_are_no_counts<S: Subject>(f: Fixture<S>) {
    assert_eq!(f.record_counts().await, None);
    f.record_callers(vec![]).await;
    f.execute(request_for(identity("t", "pay", "k"))).await;
    assert_eq!(f.find_key("k").await, []);
}

/// Names of any length are stored, and names with a common prefix are separate.
pub async fn names_of_any_length_are_kept<S: Subject>(f: Fixture<S>) {
    let now = interval_start(f.now());
    let (one, two) = long_names();
    let asked = request_for(identity("t", &two, "k"));
    f.execute(asked.clone()).await;
    f.record_callers(vec![
        caller(KeyScope::Operation, "t", &one),
        caller(KeyScope::Operation, "t", &two),
    ])
    .await;
    let found = f.find_key("k").await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].fence.id, asked.id);
    let published = RecordCounts {
        began_at: now,
        ended_at: f.now(),
        counts: vec![
            count(&one, Status::Completed, 1),
            count(&two, Status::Completed, 2),
        ],
        all_callers: true,
    };
    f.publish_record_counts(&published).await;
    assert_eq!(f.record_counts().await, Some(published));
}

/// A scan in batches of any size counts every record once, by caller and status.
pub async fn a_scan_counts_every_record_once<S: Subject>(f: Fixture<S>) {
    let ask =
        |tenant: &str, operation: &str, key: &str| request_for(identity(tenant, operation, key));
    f.completed(ask("a", "pay", "old"), "old").await;
    f.clock.advance(WINDOWS.replay);
    assert_eq!(f.expire(10).await, 1);
    f.execute(ask("a", "pay", "running")).await;
    f.completed(ask("a", "pay", "done-1"), "paid").await;
    f.completed(ask("a", "pay", "done-2"), "paid").await;
    f.completed(ask("b", "pay", "done"), "paid").await;
    f.released(ask("b", "refund", "released")).await;
    f.lost(ask("b", "refund", "lost")).await;
    let wide = identity("a", "pay", "wide").scoped(KeyScope::Tenant);
    f.completed(request_for(wide), "paid").await;
    let expected = BTreeMap::from([
        ((caller(KeyScope::Operation, "a", "pay"), "expired"), 1),
        ((caller(KeyScope::Operation, "a", "pay"), "in_progress"), 1),
        ((caller(KeyScope::Operation, "a", "pay"), "completed"), 2),
        ((caller(KeyScope::Operation, "b", "pay"), "completed"), 1),
        (
            (
                caller(KeyScope::Operation, "b", "refund"),
                "failed_retryable",
            ),
            1,
        ),
        ((caller(KeyScope::Operation, "b", "refund"), "unknown"), 1),
        ((caller(KeyScope::Tenant, "a", "pay"), "completed"), 1),
    ]);
    for limit in [1, 2, 3, 7, 8, 9, usize::MAX] {
        let (mut all, mut after, mut scans) = (BTreeMap::new(), None, 0);
        loop {
            let scan = f
                .store
                .scan_records(after, limit)
                .await
                .expect("scan_records");
            let counted: u64 = scan.counts.iter().map(|(_, _, count)| count).sum();
            assert!(counted <= limit as u64, "{counted} of {limit}");
            for (caller, status, count) in scan.counts {
                *all.entry((caller, status.as_str())).or_default() += count;
            }
            scans += 1;
            assert!(scans <= 8, "a scan has an end");
            after = scan.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(all, expected, "in batches of {limit}");
        assert_eq!(scans, 8_usize.div_ceil(limit.min(8)), "of {limit}");
    }
}

/// A scan replaces the previous one completely, unless it ended earlier.
pub async fn the_latest_scan_is_returned<S: Subject>(f: Fixture<S>) {
    let at = |second: i64| Timestamp::from_micros(second * 1_000_000);
    let first = RecordCounts {
        began_at: at(1),
        ended_at: at(5),
        counts: vec![
            count("pay", Status::Completed, 10),
            count("pay", Status::Unknown, 3),
            count("refund", Status::Expired, 7),
        ],
        all_callers: false,
    };
    f.publish_record_counts(&first).await;
    assert_eq!(f.record_counts().await, Some(first.clone()));
    let second = RecordCounts {
        began_at: at(3),
        ended_at: at(9),
        counts: vec![count("pay", Status::Completed, 12)],
        all_callers: true,
    };
    f.publish_record_counts(&second).await;
    assert_eq!(f.record_counts().await, Some(second.clone()));
    // This scan started earlier and ended later than another one.
    f.publish_record_counts(&first).await;
    assert_eq!(f.record_counts().await, Some(second));
    let empty = RecordCounts {
        began_at: at(9),
        ended_at: at(9),
        counts: vec![],
        all_callers: true,
    };
    f.publish_record_counts(&empty).await;
    assert_eq!(
        f.record_counts().await,
        Some(empty),
        "the same time again is later"
    );
}

/// Of concurrently published scans, the latest is stored, and nothing of the others.
pub async fn concurrent_scans_do_not_mix<S: Subject>(f: Fixture<S>) {
    let of = |place: u64| RecordCounts {
        began_at: Timestamp::from_micros(1),
        ended_at: Timestamp::from_micros(1 + i64::try_from(place).expect("small")),
        counts: (0..5)
            .map(|row| count(&format!("c{row}"), Status::Completed, place))
            .collect(),
        all_callers: true,
    };
    let last = f.scale.tasks as u64;
    together(
        &f.store,
        (0..=last).collect(),
        move |store, place| async move {
            store
                .publish_record_counts(of(place))
                .await
                .expect("publish");
        },
    )
    .await;
    assert_eq!(f.record_counts().await, Some(of(last)));
}

/// One process holds the scan lease until it expires; the holder renews it.
pub async fn one_process_scans_at_a_time<S: Subject>(f: Fixture<S>) {
    assert!(f.acquire_scan_lease("one").await);
    assert!(!f.acquire_scan_lease("two").await);
    f.clock.advance(LEASE - TICK);
    assert!(!f.acquire_scan_lease("two").await);
    assert!(f.acquire_scan_lease("one").await, "again, and longer");
    f.clock.advance(LEASE - TICK);
    assert!(!f.acquire_scan_lease("two").await);
    f.clock.advance(TICK);
    assert!(f.acquire_scan_lease("two").await);
    assert!(!f.acquire_scan_lease("one").await);
    let owners = (0..f.scale.tasks).map(|place| format!("many-{place}"));
    f.clock.advance(LEASE);
    let won = together(&f.store, owners.collect(), |store, owner| async move {
        let counting = store.acquire_scan_lease(owner.as_str().into(), LEASE).await;
        counting.expect("count_alone")
    })
    .await;
    assert_eq!(won.into_iter().filter(|won| *won).count(), 1);
}

/// A key is found under every known caller, newest first, and each record once.
pub async fn a_key_is_found_under_known_callers<S: Subject>(f: Fixture<S>) {
    let asked = [
        identity("a", "pay", "k"),
        identity("b", "pay", "k"),
        identity("a", "refund", "k"),
        identity("stranger", "pay", "k"),
        identity("a", "pay", "K"),
        identity("a", "pay", "k").scoped(KeyScope::Tenant),
    ];
    let mut all = Vec::new();
    for identity in asked {
        let request = request_for(identity);
        f.execute(request.clone()).await;
        all.push(Summary::from(&f.record(request.id).await));
    }
    assert_eq!(f.find_key("k").await, [], "no caller is known yet");
    f.record_callers(vec![
        caller(KeyScope::Operation, "a", "pay"),
        caller(KeyScope::Operation, "b", "pay"),
        caller(KeyScope::Operation, "unused", "pay"),
    ])
    .await;
    f.record_callers(vec![
        // Again, and two commands of one tenant whose keys are the tenant's.
        caller(KeyScope::Operation, "a", "pay"),
        caller(KeyScope::Operation, "a", "refund"),
        caller(KeyScope::Tenant, "a", "pay"),
        caller(KeyScope::Tenant, "a", "refund"),
    ])
    .await;
    let newest_first = [&all[5], &all[2], &all[1], &all[0]].map(Clone::clone);
    assert_eq!(f.find_key("k").await, newest_first);
    assert_eq!(f.find_key("K").await, [all[4].clone()]);
    assert_eq!(f.find_key("other").await, []);
}

/// No more callers are stored than a key lookup tries.
pub async fn callers_are_bounded<S: Subject>(f: Fixture<S>) {
    let callers: Vec<_> = (0..MAX_CALLERS)
        .map(|place| caller(KeyScope::Operation, &format!("t{place}"), "pay"))
        .collect();
    let mut met = 0;
    for some in callers.chunks(MAX_BATCH) {
        met += some.len();
        assert_eq!(
            f.record_callers(some.to_vec()).await,
            met < MAX_CALLERS,
            "{met}"
        );
    }
    let (last, over): (Identity, _) = (
        identity(&format!("t{}", MAX_CALLERS - 1), "pay", "k"),
        identity("one-too-many", "pay", "k"),
    );
    let over_the_bound = caller(KeyScope::Operation, "one-too-many", "pay");
    assert!(!f.record_callers(vec![over_the_bound]).await);
    let request = request_for(last);
    f.execute(request.clone()).await;
    f.execute(request_for(over)).await;
    let found = f.find_key("k").await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].fence.id, request.id);
}
