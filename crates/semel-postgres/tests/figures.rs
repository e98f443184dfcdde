//! Figures, lists and reveals: PostgreSQL says what the reference says.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code says what is wrong by panicking"
)]

mod support;

use std::sync::Arc;

use futures_util::future::join_all;
use semel_core::figures::{
    Activity, Caller, Census, Count, MAX_CALLERS, MAX_MISUSES, Misuse, Survey, Told, stretch,
};
use semel_core::identity::MAX_OPERATION_BYTES;
use semel_core::memory::Memory;
use semel_core::store::{MAX_BATCH, Query};
use semel_core::{
    Figures, Identity, Inspect, Key, KeyScope, OperationId, Reserve, Status, Store, Timestamp,
};
use semel_postgres::{Options, Postgres};
use semel_testkit::ManualClock;
use semel_testkit::database::Database;
use support::{completion, granted, request};

/// The same calls on both.
struct Both {
    memory: Memory,
    postgres: Postgres,
    _database: Database,
}

impl Both {
    async fn new() -> Option<Self> {
        let database = Database::new().await?;
        let clock = ManualClock::default();
        let options = Options::new(&database.url).clock(Arc::new(clock.clone()));
        Some(Self {
            memory: Memory::new(Arc::new(clock)),
            postgres: options.open().await.unwrap(),
            _database: database,
        })
    }

    async fn count(&self, activity: Vec<Activity>, misuses: Vec<Misuse>) {
        let counted = self.memory.count(activity.clone(), misuses.clone());
        counted.await.unwrap();
        self.postgres.count(activity, misuses).await.unwrap();
    }

    async fn agree_on_counts(&self) {
        for since in [i64::MIN, 0, 10_000_000, 10_000_001, i64::MAX].map(Timestamp::from_micros) {
            let expected = self.memory.activity(since).await.unwrap();
            assert_eq!(self.postgres.activity(since).await.unwrap(), expected);
        }
        for limit in [0, 1, 2, MAX_BATCH + 1] {
            let expected = self.memory.misuses(limit).await.unwrap();
            assert_eq!(self.postgres.misuses(limit).await.unwrap(), expected);
        }
    }
}

/// Names that a database sorts by its language, and that no index can hold.
fn names() -> Vec<String> {
    let long = |end: &str| "\u{10d}\u{e1}p".repeat(1600) + end;
    let mut names = vec![
        "pay".into(),
        "Pay".into(),
        "\u{e9}t\u{e9}".into(),
        "pay ".into(),
    ];
    names.extend(["a", "b"].map(long));
    names.push("o".repeat(MAX_OPERATION_BYTES));
    names
}

fn told(count: u64) -> Told {
    Told {
        created: count,
        replayed: count * 2,
        in_progress: count * 3,
        misuse: count * 4,
        retried: count * 5,
        unknown: count * 6,
        expired: count * 7,
        failed: count * 8,
    }
}

fn at(seconds: i64) -> Timestamp {
    stretch(Timestamp::from_micros(seconds * 1_000_000))
}

fn misuse(tenant: &str, operation: &str, first: i64, last: i64) -> Misuse {
    Misuse {
        tenant: tenant.into(),
        operation: operation.into(),
        count: 3,
        first_at: Timestamp::from_micros(first),
        last_at: Timestamp::from_micros(last),
        last_id: OperationId::generate(),
    }
}

#[tokio::test]
async fn counts_are_added_to_what_others_counted_and_forgotten() {
    let Some(both) = Both::new().await else {
        return;
    };
    both.agree_on_counts().await;
    for round in 1..4 {
        let mut activity = Vec::new();
        let mut misuses = Vec::new();
        for (nth, name) in names().iter().enumerate() {
            let nth = i64::try_from(nth).unwrap();
            for seconds in [0, 10, 20 * round] {
                // Twice in one call, too.
                for count in 1..3 {
                    let operation = name.as_str().into();
                    activity.push(Activity {
                        at: at(seconds),
                        operation,
                        told: told(count),
                    });
                }
            }
            // Earlier, later, and at the same time as before.
            for last in [5 * round, 20 - round, 7] {
                misuses.push(misuse(
                    name.get(..1).unwrap_or("t"),
                    name,
                    20 - last,
                    last + nth % 2,
                ));
            }
        }
        both.count(activity, misuses).await;
        both.agree_on_counts().await;
    }
    // What the database cannot hold keeps nothing else from being counted, and no sum overflows.
    let nul = Activity {
        at: at(0),
        operation: "a\0b".into(),
        told: told(1),
    };
    let most = Told {
        created: u64::MAX,
        ..told(0)
    };
    let huge = Activity {
        at: at(0),
        operation: "pay".into(),
        told: most,
    };
    both.postgres
        .count(vec![nul, huge.clone()], vec![])
        .await
        .unwrap();
    both.postgres
        .count(vec![huge], vec![misuse("t\0", "pay", 1, 1)])
        .await
        .unwrap();
    let lines = both.postgres.activity(at(0)).await.unwrap();
    let pay = lines.iter().find(|line| &*line.operation == "pay").unwrap();
    assert_eq!(pay.told.created, i64::MAX.unsigned_abs());

    for before in [0, 1, 10, 30].map(at) {
        let expected = both.memory.forget_activity(before, 4).await.unwrap();
        let gone = both.postgres.forget_activity(before, 4).await.unwrap();
        assert_eq!(gone, expected, "{before:?}");
    }
    for before in [0, 7, 8, 100].map(Timestamp::from_micros) {
        let expected = both.memory.forget_misuses(before, MAX_BATCH).await.unwrap();
        let gone = both
            .postgres
            .forget_misuses(before, MAX_BATCH)
            .await
            .unwrap();
        assert_eq!(gone, expected, "{before:?}");
    }
    assert_eq!(both.postgres.misuses(1).await.unwrap(), []);
}

/// Gateways flush at the same time, the same commands in whatever order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_count_at_once_lose_nothing() {
    let Some(database) = Database::new().await else {
        return;
    };
    let stores = join_all((0..4).map(|_| Postgres::open(&database.url))).await;
    let lines = |nth: usize| {
        let mut activity: Vec<_> = (0..50)
            .map(|of| Activity {
                at: at(0),
                operation: format!("operation-{of}").into(),
                told: told(1),
            })
            .collect();
        let mut misuses: Vec<_> = (0..50)
            .map(|of| misuse(&format!("tenant-{of}"), "pay", 1, 1))
            .collect();
        activity.rotate_left(nth * 13);
        misuses.rotate_left(nth * 13);
        if nth.is_multiple_of(2) {
            activity.reverse();
            misuses.reverse();
        }
        (activity, misuses)
    };
    let counting = stores.iter().enumerate().map(|(nth, store)| async move {
        let store = store.as_ref().unwrap();
        for _ in 0..10 {
            let (activity, misuses) = lines(nth);
            store.count(activity, misuses).await.unwrap();
        }
    });
    join_all(counting).await;
    let store = stores.into_iter().next().unwrap().unwrap();
    let lines = store.activity(at(0)).await.unwrap();
    assert_eq!(lines.len(), 50);
    assert!(lines.iter().all(|line| line.told == told(40)), "{lines:?}");
    let misuses = store.misuses(MAX_BATCH).await.unwrap();
    assert_eq!(misuses.len(), 50);
    assert!(misuses.iter().all(|misuse| misuse.count == 120));
}

#[tokio::test]
async fn who_misused_longest_ago_makes_room() {
    let Some(both) = Both::new().await else {
        return;
    };
    let of = |nth: usize, last: i64| misuse(&format!("tenant-{nth:05}"), "pay", 1, last);
    let all: Vec<_> = (0..MAX_MISUSES).map(|nth| of(nth, 10)).collect();
    both.count(vec![], all).await;
    let more: Vec<_> = (0..7).map(|nth| of(MAX_MISUSES + nth, 11)).collect();
    both.count(vec![], [more, vec![of(3, 12)]].concat()).await;
    // What is left of the old ones are the same on both.
    let mut left = [0, 0];
    for (sum, kept) in left.iter_mut().zip([
        both.memory.misuses(MAX_BATCH).await.unwrap(),
        both.postgres.misuses(MAX_BATCH).await.unwrap(),
    ]) {
        *sum = kept.len();
        assert_eq!(&*kept[0].tenant, "tenant-00003");
    }
    assert_eq!(left, [MAX_BATCH; 2]);
    both.agree_on_counts().await;
    let mut removed = 0;
    for store_removed in 0.. {
        let gone = both
            .postgres
            .forget_misuses(Timestamp::from_micros(i64::MAX), MAX_BATCH);
        let gone = gone.await.unwrap();
        removed += gone;
        if gone == 0 || store_removed > 20 {
            break;
        }
    }
    assert_eq!(removed, MAX_MISUSES);
}

/// Operations of several callers, the same in both stores.
async fn fill(both: &Both) -> Vec<Caller> {
    let mut callers = Vec::new();
    for scope in [KeyScope::Operation, KeyScope::Tenant] {
        for tenant in ["tenant-1", "tenant-2"] {
            for operation in names() {
                let caller = Caller {
                    scope,
                    tenant: tenant.into(),
                    operation: operation.as_str().into(),
                };
                for key in ["one", "two"] {
                    let identity =
                        Identity::new(tenant, &*caller.operation, Key::new(key).unwrap()).unwrap();
                    let request = Reserve {
                        identity: identity.scoped(scope),
                        ..request(key)
                    };
                    let id = request.id;
                    let granted = both.memory.reserve(request.clone()).await.unwrap();
                    assert_eq!(both.postgres.reserve(request).await.unwrap(), granted);
                    if let (semel_core::Decision::Execute(grant), "one") = (granted, key) {
                        assert_eq!(grant.fence.id, id);
                        for held in [
                            both.memory.complete(grant.fence, completion("a")).await,
                            both.postgres.complete(grant.fence, completion("a")).await,
                        ] {
                            held.unwrap();
                        }
                    }
                }
                callers.push(caller);
            }
        }
    }
    callers
}

#[tokio::test]
async fn a_survey_counts_every_operation_once() {
    let Some(both) = Both::new().await else {
        return;
    };
    assert_eq!(
        both.postgres.survey(None, 5).await.unwrap(),
        Survey::default()
    );
    fill(&both).await;
    for limit in [0, 1, 5, 16, 44, 45, 1000] {
        let mut after = None;
        for _ in 0..100 {
            let expected = both.memory.survey(after, limit).await.unwrap();
            let survey = both.postgres.survey(after, limit).await.unwrap();
            assert_eq!(survey, expected, "{limit} after {after:?}");
            after = survey.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(after, None);
    }
}

#[tokio::test]
async fn a_key_is_found_under_whoever_is_known() {
    let Some(both) = Both::new().await else {
        return;
    };
    let mut callers = fill(&both).await;
    callers.push(Caller {
        scope: KeyScope::Operation,
        tenant: "nobody".into(),
        operation: "nothing".into(),
    });
    let keys = ["one", "two", "three"].map(|key| Key::new(key).unwrap());
    for some in callers.chunks(5) {
        // Again and again changes nothing.
        for _ in 0..2 {
            both.memory.meet(some.to_vec()).await.unwrap();
            let twice = [some, some].concat();
            both.postgres.meet(twice).await.unwrap();
        }
        for key in &keys {
            let expected = both.memory.find_key(key).await.unwrap();
            assert_eq!(both.postgres.find_key(key).await.unwrap(), expected);
        }
    }
    let found = both.postgres.find_key(&keys[0]).await.unwrap();
    assert!(found.len() > 10 && found.is_sorted_by(|a, b| a.fence.id > b.fence.id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_callers_are_known_than_may_be() {
    let Some(database) = Database::new().await else {
        return;
    };
    let stores = join_all((0..3).map(|_| Postgres::open(&database.url))).await;
    let caller = |nth: usize| Caller {
        scope: KeyScope::Operation,
        tenant: "tenant-1".into(),
        operation: format!("operation-{nth}").into(),
    };
    let first = stores[0].as_ref().unwrap();
    let known: Vec<_> = (0..MAX_CALLERS - 3).map(caller).collect();
    first.meet(known.clone()).await.unwrap();
    // Those who are known take no room; of the new ones the first do.
    let met = [
        known[..10].to_vec(),
        vec![caller(MAX_CALLERS)],
        known[10..20].to_vec(),
    ]
    .concat();
    first.meet(met).await.unwrap();
    let client = database.client().await;
    let count = "SELECT count(*) FROM semel.callers";
    assert_eq!(
        client.query_one(count, &[]).await.unwrap().get::<_, i64>(0),
        19_998
    );
    let meeting = stores.iter().enumerate().map(|(nth, store)| {
        let callers = (0..10)
            .map(|of| caller(MAX_CALLERS * 2 + nth * 10 + of))
            .collect();
        store.as_ref().unwrap().meet(callers)
    });
    for met in join_all(meeting).await {
        met.unwrap();
    }
    assert_eq!(
        client.query_one(count, &[]).await.unwrap().get::<_, i64>(0),
        20_000
    );
    granted(first, "k").await;
    assert_eq!(first.find_key(&Key::new("k").unwrap()).await.unwrap(), []);
}

fn census(ended: i64, count: u64) -> Census {
    let counts = names().into_iter().flat_map(|name| {
        [Status::Completed, Status::Unknown].map(|status| Count {
            operation: name.as_str().into(),
            status,
            count,
        })
    });
    Census {
        began_at: Timestamp::from_micros(ended - 5),
        ended_at: Timestamp::from_micros(ended),
        counts: counts.collect(),
        all_callers: count.is_multiple_of(2),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_latest_census_stays_whole() {
    let Some(database) = Database::new().await else {
        return;
    };
    let stores = join_all((0..4).map(|_| Postgres::open(&database.url))).await;
    let store = stores[0].as_ref().unwrap();
    assert_eq!(store.census().await.unwrap(), None);
    for (published, kept) in [(10, 10), (9, 10), (10, 10), (11, 11)] {
        store.publish_census(census(published, 1)).await.unwrap();
        assert_eq!(store.census().await.unwrap(), Some(census(kept, 1)));
    }
    // The same end again is taken, and one without lines.
    let empty = Census {
        counts: vec![],
        ..census(11, 2)
    };
    store.publish_census(empty.clone()).await.unwrap();
    assert_eq!(store.census().await.unwrap(), Some(empty));
    let publishing = stores.iter().enumerate().map(|(nth, store)| async move {
        let store = store.as_ref().unwrap();
        for round in 0..10_u64 {
            let number = round * 4 + nth as u64;
            let ended = 20 + i64::try_from(number).unwrap();
            store.publish_census(census(ended, number)).await.unwrap();
            let seen = store.census().await.unwrap().unwrap();
            let number = u64::try_from(seen.ended_at.as_micros() - 20).unwrap();
            assert_eq!(seen, census(seen.ended_at.as_micros(), number));
            assert!(seen.ended_at.as_micros() >= ended);
        }
    });
    join_all(publishing).await;
    assert_eq!(store.census().await.unwrap(), Some(census(59, 39)));
}

#[tokio::test]
async fn a_list_looks_at_so_many_and_says_how_far_it_came() {
    let Some(both) = Both::new().await else {
        return;
    };
    fill(&both).await;
    let status = |status| Query {
        status: Some(status),
        ..Query::default()
    };
    let of = |tenant: &str, key: &str| Query {
        tenant: Some(tenant.into()),
        key: Some(Key::new(key).unwrap()),
        ..Query::default()
    };
    for filter in [
        Query::default(),
        status(Status::Completed),
        status(Status::InProgress),
        status(Status::Unknown),
        status(Status::Expired),
        of("tenant-1", "one"),
        of("tenant-2", "none"),
        Query {
            status: Some(Status::InProgress),
            operation: Some("pay".into()),
            ..of("tenant-1", "two")
        },
    ] {
        for (limit, walk) in [
            (1, 1),
            (2, 3),
            (3, 10),
            (5, 5),
            (10, 22),
            (7, 44),
            (7, 45),
            (0, 0),
        ] {
            let mut query = Query {
                limit,
                walk,
                ..filter.clone()
            };
            let mut pages = 0;
            loop {
                let expected = both.memory.list(query.clone()).await.unwrap();
                let page = both.postgres.list(query.clone()).await.unwrap();
                assert_eq!(page, expected, "{query:?}");
                pages += 1;
                assert!(pages < 200, "no end: {query:?}");
                let Some(next) = page.next else { break };
                query.before = Some(next);
            }
        }
    }
}
