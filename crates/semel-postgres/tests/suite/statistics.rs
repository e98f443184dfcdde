//! Statistics and lists: PostgreSQL returns the same results as the in-memory store.

use std::sync::Arc;

use crate::support::{completion, granted, request};
use futures_util::future::join_all;
use semel_core::identity::MAX_OPERATION_BYTES;
use semel_core::memory::Memory;
use semel_core::statistics::{
    Activity, Caller, DecisionCounts, MAX_CALLERS, MAX_MISUSES, Misuse, RecordCount, RecordCounts,
    RecordScan, interval_start,
};
use semel_core::store::{MAX_BATCH, Query};
use semel_core::{Identity, Key, KeyScope, OperationId, Reserve, Status, Store, Timestamp};
use semel_postgres::{Options, Postgres};
use semel_testkit::ManualClock;
use semel_testkit::database::Database;

/// An in-memory store and a PostgreSQL store that get the same calls.
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
        let counted = self.memory.add_counts(activity.clone(), misuses.clone());
        counted.await.unwrap();
        self.postgres.add_counts(activity, misuses).await.unwrap();
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

fn decisions(count: u64) -> DecisionCounts {
    DecisionCounts {
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
    interval_start(Timestamp::from_micros(seconds * 1_000_000))
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
async fn counts_are_summed_and_pruned_as_in_memory() {
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
                        decisions: decisions(count),
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
    // A name that the database cannot store does not stop the other counts, and no sum overflows.
    let nul = Activity {
        at: at(0),
        operation: "a\0b".into(),
        decisions: decisions(1),
    };
    let most = DecisionCounts {
        created: u64::MAX,
        ..decisions(0)
    };
    let huge = Activity {
        at: at(0),
        operation: "pay".into(),
        decisions: most,
    };
    both.postgres
        .add_counts(vec![nul, huge.clone()], vec![])
        .await
        .unwrap();
    both.postgres
        .add_counts(vec![huge], vec![misuse("t\0", "pay", 1, 1)])
        .await
        .unwrap();
    let lines = both.postgres.activity(at(0)).await.unwrap();
    let pay = lines.iter().find(|line| &*line.operation == "pay").unwrap();
    assert_eq!(pay.decisions.created, i64::MAX.unsigned_abs());

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

/// Gateways flush at the same time, the same operations in different orders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_add_counts_lose_nothing() {
    let Some(database) = Database::new().await else {
        return;
    };
    let stores = join_all((0..4).map(|_| Postgres::open(&database.url))).await;
    let lines = |nth: usize| {
        let mut activity: Vec<_> = (0..50)
            .map(|of| Activity {
                at: at(0),
                operation: format!("operation-{of}").into(),
                decisions: decisions(1),
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
            store.add_counts(activity, misuses).await.unwrap();
        }
    });
    join_all(counting).await;
    let store = stores.into_iter().next().unwrap().unwrap();
    let lines = store.activity(at(0)).await.unwrap();
    assert_eq!(lines.len(), 50);
    assert!(
        lines.iter().all(|line| line.decisions == decisions(40)),
        "{lines:?}"
    );
    let misuses = store.misuses(MAX_BATCH).await.unwrap();
    assert_eq!(misuses.len(), 50);
    assert!(misuses.iter().all(|misuse| misuse.count == 120));
}

#[tokio::test]
async fn the_oldest_misuse_is_dropped_at_the_limit() {
    let Some(both) = Both::new().await else {
        return;
    };
    let of = |nth: usize, last: i64| misuse(&format!("tenant-{nth:05}"), "pay", 1, last);
    let all: Vec<_> = (0..MAX_MISUSES).map(|nth| of(nth, 10)).collect();
    both.count(vec![], all).await;
    let more: Vec<_> = (0..7).map(|nth| of(MAX_MISUSES + nth, 11)).collect();
    both.count(vec![], [more, vec![of(3, 12)]].concat()).await;
    // Both stores keep the same old misuses.
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

/// Records of several callers, the same in both stores.
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
async fn a_scan_counts_every_record_once() {
    let Some(both) = Both::new().await else {
        return;
    };
    assert_eq!(
        both.postgres.scan_records(None, 5).await.unwrap(),
        RecordScan::default()
    );
    fill(&both).await;
    for limit in [0, 1, 5, 16, 44, 45, 1000] {
        let mut after = None;
        for _ in 0..100 {
            let expected = both.memory.scan_records(after, limit).await.unwrap();
            let scan = both.postgres.scan_records(after, limit).await.unwrap();
            assert_eq!(scan, expected, "{limit} after {after:?}");
            after = scan.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(after, None);
    }
}

#[tokio::test]
async fn a_key_is_found_under_every_known_caller() {
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
            both.memory.record_callers(some.to_vec()).await.unwrap();
            let twice = [some, some].concat();
            both.postgres.record_callers(twice).await.unwrap();
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
async fn callers_above_the_limit_are_not_recorded() {
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
    first.record_callers(known.clone()).await.unwrap();
    // Known callers do not count again; the first new ones fill the remaining room.
    let met = [
        known[..10].to_vec(),
        vec![caller(MAX_CALLERS)],
        known[10..20].to_vec(),
    ]
    .concat();
    first.record_callers(met).await.unwrap();
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
        store.as_ref().unwrap().record_callers(callers)
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

fn record_counts(ended: i64, count: u64) -> RecordCounts {
    let counts = names().into_iter().flat_map(|name| {
        [Status::Completed, Status::Unknown].map(|status| RecordCount {
            operation: name.as_str().into(),
            status,
            count,
        })
    });
    RecordCounts {
        began_at: Timestamp::from_micros(ended - 5),
        ended_at: Timestamp::from_micros(ended),
        counts: counts.collect(),
        all_callers: count.is_multiple_of(2),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_publishes_keep_the_latest_record_counts_whole() {
    let Some(database) = Database::new().await else {
        return;
    };
    let stores = join_all((0..4).map(|_| Postgres::open(&database.url))).await;
    let store = stores[0].as_ref().unwrap();
    assert_eq!(store.record_counts().await.unwrap(), None);
    for (published, kept) in [(10, 10), (9, 10), (10, 10), (11, 11)] {
        store
            .publish_record_counts(record_counts(published, 1))
            .await
            .unwrap();
        assert_eq!(
            store.record_counts().await.unwrap(),
            Some(record_counts(kept, 1))
        );
    }
    // Counts with the same end time replace the stored ones, also if they are empty.
    let empty = RecordCounts {
        counts: vec![],
        ..record_counts(11, 2)
    };
    store.publish_record_counts(empty.clone()).await.unwrap();
    assert_eq!(store.record_counts().await.unwrap(), Some(empty));
    let publishing = stores.iter().enumerate().map(|(nth, store)| async move {
        let store = store.as_ref().unwrap();
        for round in 0..10_u64 {
            let number = round * 4 + nth as u64;
            let ended = 20 + i64::try_from(number).unwrap();
            store
                .publish_record_counts(record_counts(ended, number))
                .await
                .unwrap();
            let seen = store.record_counts().await.unwrap().unwrap();
            let number = u64::try_from(seen.ended_at.as_micros() - 20).unwrap();
            assert_eq!(seen, record_counts(seen.ended_at.as_micros(), number));
            assert!(seen.ended_at.as_micros() >= ended);
        }
    });
    join_all(publishing).await;
    assert_eq!(
        store.record_counts().await.unwrap(),
        Some(record_counts(59, 39))
    );
}

#[tokio::test]
async fn a_list_scans_at_most_walk_records_per_page() {
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
