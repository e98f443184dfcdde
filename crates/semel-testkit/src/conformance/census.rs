//! The census, and the callers that it meets: every operation is counted once, by one process, and
//! found by its key.

use std::collections::BTreeMap;

use semel_core::figures::{Caller, Census, Count, MAX_CALLERS, stretch};
use semel_core::store::{MAX_BATCH, Summary};
use semel_core::{Identity, KeyScope, Status, Timestamp};

use super::figures::long_names;
use super::fixture::{LEASE, TICK, WINDOWS, identity, key, request_for, together};
use super::{Fixture, Subject};

fn caller(scope: KeyScope, tenant: &str, operation: &str) -> Caller {
    Caller {
        scope,
        tenant: tenant.into(),
        operation: operation.into(),
    }
}

fn count(operation: &str, status: Status, count: u64) -> Count {
    Count {
        operation: operation.into(),
        status,
        count,
    }
}

impl<S: Subject> Fixture<S> {
    async fn meet(&self, callers: Vec<Caller>) -> bool {
        self.store.meet(callers).await.expect("meet")
    }

    async fn count_alone(&self, owner: &str) -> bool {
        let counting = self.store.count_alone(owner.into(), LEASE).await;
        counting.expect("count_alone")
    }

    async fn publish_census(&self, census: &Census) {
        let published = self.store.publish_census(census.clone()).await;
        published.expect("publish_census");
    }

    async fn census(&self) -> Option<Census> {
        self.store.census().await.expect("census")
    }

    async fn find_key(&self, wanted: &str) -> Vec<Summary> {
        let found = self.store.find_key(&key(wanted)).await;
        found.expect("find_key")
    }
}

/// Before anybody counted there is no census, and no key is found.
pub async fn what_was_never_surveyed_is_empty<S: Subject>(f: Fixture<S>) {
    assert_eq!(f.census().await, None);
    f.meet(vec![]).await;
    f.execute(request_for(identity("t", "pay", "k"))).await;
    assert_eq!(f.find_key("k").await, []);
}

/// Names of any length are kept, and two that begin alike are two.
pub async fn names_of_any_length_are_kept<S: Subject>(f: Fixture<S>) {
    let now = stretch(f.now());
    let (one, two) = long_names();
    let asked = request_for(identity("t", &two, "k"));
    f.execute(asked.clone()).await;
    f.meet(vec![
        caller(KeyScope::Operation, "t", &one),
        caller(KeyScope::Operation, "t", &two),
    ])
    .await;
    let found = f.find_key("k").await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].fence.id, asked.id);
    let census = Census {
        began_at: now,
        ended_at: f.now(),
        counts: vec![
            count(&one, Status::Completed, 1),
            count(&two, Status::Completed, 2),
        ],
        all_callers: true,
    };
    f.publish_census(&census).await;
    assert_eq!(f.census().await, Some(census));
}

/// A survey of all, in stretches of any length, counts every operation once, by caller and status.
pub async fn a_survey_counts_every_operation_once<S: Subject>(f: Fixture<S>) {
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
        let (mut all, mut after, mut surveys) = (BTreeMap::new(), None, 0);
        loop {
            let survey = f.store.survey(after, limit).await.expect("survey");
            let looked_at: u64 = survey.counts.iter().map(|(_, _, count)| count).sum();
            assert!(looked_at <= limit as u64, "{looked_at} of {limit}");
            for (caller, status, count) in survey.counts {
                *all.entry((caller, status.as_str())).or_default() += count;
            }
            surveys += 1;
            assert!(surveys <= 8, "a survey has an end");
            after = survey.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(all, expected, "in stretches of {limit}");
        assert_eq!(surveys, 8_usize.div_ceil(limit.min(8)), "of {limit}");
    }
}

/// A census takes the place of the one before, whole; one that ended earlier does not.
pub async fn the_latest_census_counts<S: Subject>(f: Fixture<S>) {
    let at = |second: i64| Timestamp::from_micros(second * 1_000_000);
    let first = Census {
        began_at: at(1),
        ended_at: at(5),
        counts: vec![
            count("pay", Status::Completed, 10),
            count("pay", Status::Unknown, 3),
            count("refund", Status::Expired, 7),
        ],
        all_callers: false,
    };
    f.publish_census(&first).await;
    assert_eq!(f.census().await, Some(first.clone()));
    let second = Census {
        began_at: at(3),
        ended_at: at(9),
        counts: vec![count("pay", Status::Completed, 12)],
        all_callers: true,
    };
    f.publish_census(&second).await;
    assert_eq!(f.census().await, Some(second.clone()));
    // Its counting took longer, and it began before: somebody else was faster.
    f.publish_census(&first).await;
    assert_eq!(f.census().await, Some(second));
    let empty = Census {
        began_at: at(9),
        ended_at: at(9),
        counts: vec![],
        all_callers: true,
    };
    f.publish_census(&empty).await;
    assert_eq!(
        f.census().await,
        Some(empty),
        "the same time again is later"
    );
}

/// Of several that are published at once, one is there afterwards, whole: the latest.
pub async fn censuses_at_once_do_not_mix<S: Subject>(f: Fixture<S>) {
    let of = |place: u64| Census {
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
            store.publish_census(of(place)).await.expect("publish");
        },
    )
    .await;
    assert_eq!(f.census().await, Some(of(last)));
}

/// One process has the right to count, until its time is over; whoever has it keeps it by asking.
pub async fn one_process_counts_at_a_time<S: Subject>(f: Fixture<S>) {
    assert!(f.count_alone("one").await);
    assert!(!f.count_alone("two").await);
    f.clock.advance(LEASE - TICK);
    assert!(!f.count_alone("two").await);
    assert!(f.count_alone("one").await, "again, and longer");
    f.clock.advance(LEASE - TICK);
    assert!(!f.count_alone("two").await);
    f.clock.advance(TICK);
    assert!(f.count_alone("two").await);
    assert!(!f.count_alone("one").await);
    let owners = (0..f.scale.tasks).map(|place| format!("many-{place}"));
    f.clock.advance(LEASE);
    let won = together(&f.store, owners.collect(), |store, owner| async move {
        let counting = store.count_alone(owner.as_str().into(), LEASE).await;
        counting.expect("count_alone")
    })
    .await;
    assert_eq!(won.into_iter().filter(|won| *won).count(), 1);
}

/// A key is found under every caller that is known, newest first, and each record once.
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
    assert_eq!(f.find_key("k").await, [], "nobody is known yet");
    f.meet(vec![
        caller(KeyScope::Operation, "a", "pay"),
        caller(KeyScope::Operation, "b", "pay"),
        caller(KeyScope::Operation, "nobody", "pay"),
    ])
    .await;
    f.meet(vec![
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

/// No more callers are kept than a key can be looked for under.
pub async fn callers_are_bounded<S: Subject>(f: Fixture<S>) {
    let callers: Vec<_> = (0..MAX_CALLERS)
        .map(|place| caller(KeyScope::Operation, &format!("t{place}"), "pay"))
        .collect();
    let mut met = 0;
    for some in callers.chunks(MAX_BATCH) {
        met += some.len();
        assert_eq!(f.meet(some.to_vec()).await, met < MAX_CALLERS, "{met}");
    }
    let (last, over): (Identity, _) = (
        identity(&format!("t{}", MAX_CALLERS - 1), "pay", "k"),
        identity("one-too-many", "pay", "k"),
    );
    let over_the_bound = caller(KeyScope::Operation, "one-too-many", "pay");
    assert!(!f.meet(vec![over_the_bound]).await);
    let request = request_for(last);
    f.execute(request.clone()).await;
    f.execute(request_for(over)).await;
    let found = f.find_key("k").await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].fence.id, request.id);
}
