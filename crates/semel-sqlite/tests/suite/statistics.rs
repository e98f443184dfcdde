//! Statistics and lists: each call returns the same result as the in-memory store.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{completion, request};
use semel_core::history::EntryKind;
use semel_core::statistics::{
    Activity, Caller, DecisionCounts, MAX_CALLERS, MAX_MISUSES, Misuse, RecordCount, RecordCounts,
};
use semel_core::store::{MAX_BATCH, Query};
use semel_core::transition::Decision;
use semel_core::{
    Actor, Fence, Identity, Key, KeyScope, Memory, OperationId, Reserve, Status, Store, Timestamp,
};
use semel_sqlite::{Options, Sqlite};
use semel_testkit::ManualClock;
use tempfile::TempDir;

/// A SQLite store and an in-memory store with one clock.
struct Pair {
    sqlite: Sqlite,
    memory: Memory,
    clock: ManualClock,
    _directory: TempDir,
}

/// Calls both stores and asserts equal results. The arguments are evaluated once per store.
macro_rules! both {
    ($pair:ident.$call:ident($($argument:expr),*)) => {{
        let actual = $pair.sqlite.$call($($argument),*).await.unwrap();
        let expected = $pair.memory.$call($($argument),*).await.unwrap();
        assert_eq!(actual, expected, "{}", stringify!($call($($argument),*)));
        actual
    }};
}

impl Pair {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = ManualClock::default();
        let options = Options::new(directory.path().join("semel.db"));
        let sqlite = options.clock(Arc::new(clock.clone())).open().await.unwrap();
        Self {
            sqlite,
            memory: Memory::new(Arc::new(clock.clone())),
            clock,
            _directory: directory,
        }
    }

    /// Reserves a new key.
    async fn begin(&self, asked: &Reserve) -> Fence {
        match both!(self.reserve(asked.clone())) {
            Decision::Execute(grant) => grant.fence,
            other => panic!("not granted: {other:?}"),
        }
    }

    async fn complete(&self, fence: Fence) {
        both!(self.complete(fence, completion("paid", 20_000)));
    }

    /// Records of every status, of two tenants and two operations, in the order of their ids.
    async fn some_of_everything(&self) -> Vec<OperationId> {
        let mut ids = Vec::new();
        for place in 0..40 {
            let tenant = ["tenant-a", "tenant-b"][place / 2 % 2];
            let operation = ["pay", "refund"][place / 4 % 2];
            let asked = asked(tenant, operation, &format!("key-{}", place / 8));
            let asked = match place % 2 {
                0 => asked,
                _ => Reserve {
                    identity: asked.identity.scoped(KeyScope::Tenant),
                    ..asked
                },
            };
            let Decision::Execute(grant) = both!(self.reserve(asked.clone())) else {
                continue;
            };
            ids.push(grant.fence.id);
            match place % 5 {
                0 => {}
                1 => self.complete(grant.fence).await,
                2 => drop(both!(self.release(grant.fence, "refused".into()))),
                3 => drop(both!(self.mark_unknown(
                    grant.fence,
                    "timeout".into(),
                    None
                ))),
                _ => {
                    both!(self.mark_unknown(grant.fence, "timeout".into(), None));
                    both!(self.dead_letter(grant.fence, "person".into()));
                }
            }
        }
        // A released key that executes again is still one record.
        ids.sort();
        ids.dedup();
        ids
    }
}

fn asked(tenant: &str, operation: &str, key: &str) -> Reserve {
    Reserve {
        identity: Identity::new(tenant, operation, Key::new(key).unwrap()).unwrap(),
        ..request(key)
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn decisions(count: u64) -> DecisionCounts {
    DecisionCounts {
        created: count,
        replayed: count + 1,
        in_progress: count + 2,
        misuse: count + 3,
        retried: count + 4,
        unknown: count + 5,
        expired: count + 6,
        failed: count + 7,
    }
}

fn activity(seconds: i64, operation: &str, count: u64) -> Activity {
    Activity {
        at: at(seconds),
        operation: operation.into(),
        decisions: decisions(count),
    }
}

/// An id that differs for different times.
fn id(first: i64, last: i64) -> OperationId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_be_bytes());
    bytes[8..].copy_from_slice(&last.to_be_bytes());
    OperationId::from_bytes(bytes)
}

fn misuse(tenant: &str, operation: &str, first: i64, last: i64) -> Misuse {
    Misuse {
        tenant: tenant.into(),
        operation: operation.into(),
        count: 3,
        first_at: at(first),
        last_at: at(last),
        last_id: id(first, last),
    }
}

fn caller(scope: KeyScope, tenant: &str, operation: &str) -> Caller {
    Caller {
        scope,
        tenant: tenant.into(),
        operation: operation.into(),
    }
}

#[tokio::test]
async fn activity_is_summed_by_interval_and_operation() {
    let pair = Pair::new().await;
    assert_eq!(both!(pair.activity(at(-1000))), []);
    let lines = vec![
        activity(20, "refund", 1),
        activity(10, "pay", 100),
        activity(20, "pay", 10),
        activity(-10, "pay", 5),
        activity(20, "pay", 1000),
        activity(10, "zurück\0bringen", 1),
    ];
    both!(pair.add_counts(lines.clone(), vec![]));
    both!(pair.add_counts(vec![activity(10, "pay", 7)], vec![]));
    both!(pair.add_counts(vec![], vec![]));
    for since in [-1000, -10, -9, 0, 10, 11, 20, 21] {
        both!(pair.activity(at(since)));
    }
    assert_eq!(both!(pair.activity(at(20))).len(), 2);
    for (before, limit) in [(10, 0), (10, 100), (21, 2), (20, 100), (21, usize::MAX)] {
        both!(pair.forget_activity(at(before), limit));
        both!(pair.activity(at(-1000)));
    }
    assert_eq!(both!(pair.activity(at(-1000))), []);
}

#[tokio::test]
async fn a_sum_saturates_at_i64_max() {
    let pair = Pair::new().await;
    let most = u64::try_from(i64::MAX).unwrap();
    for count in [most - 10, 5, u64::MAX - 10, 1] {
        let line = Activity {
            decisions: DecisionCounts {
                created: count,
                ..DecisionCounts::default()
            },
            ..activity(0, "pay", 0)
        };
        let misuse = Misuse {
            count,
            ..misuse("tenant", "pay", 0, 0)
        };
        pair.sqlite
            .add_counts(vec![line], vec![misuse])
            .await
            .unwrap();
    }
    let kept = pair.sqlite.activity(at(0)).await.unwrap();
    assert_eq!(kept[0].decisions.created, most);
    assert_eq!(pair.sqlite.misuses(1).await.unwrap()[0].count, most);
}

#[tokio::test]
async fn misuse_is_summed_by_tenant_and_operation() {
    let pair = Pair::new().await;
    assert_eq!(both!(pair.misuses(10)), []);
    let misuses = vec![
        misuse("b", "pay", 5, 50),
        misuse("a", "refund", 5, 50),
        misuse("a", "pay", 5, 50),
        misuse("b", "refund", 5, 60),
        // A late report changes the first time, and not the last.
        misuse("b", "pay", 3, 40),
        misuse("a", "pay", 6, 50),
    ];
    both!(pair.add_counts(vec![], misuses.clone()));
    both!(pair.add_counts(
        vec![],
        vec![misuse("c", "pay", -5, -4), misuse("b", "pay", 9, 70)]
    ));
    for limit in [0, 1, 2, 3, 10, usize::MAX] {
        both!(pair.misuses(limit));
    }
    for (before, limit) in [(-4, 10), (50, 0), (50, 10), (51, 10), (70, 10), (71, 10)] {
        both!(pair.forget_misuses(at(before), limit));
        both!(pair.misuses(10));
    }
    assert_eq!(both!(pair.misuses(10)), []);
}

#[tokio::test]
async fn the_oldest_misuse_is_dropped_at_the_limit() {
    let pair = Pair::new().await;
    let all: Vec<_> = (0..MAX_MISUSES + 3)
        .map(|place| {
            // Not in the order of the names; some at the same time.
            let last = (place * 7919 % 5000).try_into().unwrap();
            misuse(&format!("tenant-{place}"), "pay", 0, last)
        })
        .collect();
    both!(pair.add_counts(vec![], all[..MAX_MISUSES].to_vec()));
    both!(pair.add_counts(vec![], vec![all[0].clone()]));
    let forgotten = both!(pair.forget_misuses(at(1), 0));
    assert_eq!(forgotten, 0, "{MAX_MISUSES} fit");
    both!(pair.add_counts(vec![], all[MAX_MISUSES..].to_vec()));
    // Removes the remaining misuses in batches, oldest first.
    let mut left = 0;
    for before in (0..=5000).step_by(100) {
        left += both!(pair.forget_misuses(at(before), MAX_BATCH));
        both!(pair.misuses(MAX_BATCH));
    }
    assert_eq!(left, MAX_MISUSES);
}

#[tokio::test]
async fn a_scan_counts_every_record_once_for_any_limit() {
    let pair = Pair::new().await;
    both!(pair.scan_records(None, 10));
    let ids = pair.some_of_everything().await;
    for limit in [
        1,
        2,
        3,
        7,
        ids.len() - 1,
        ids.len(),
        ids.len() + 1,
        usize::MAX,
    ] {
        let (mut after, mut count) = (None, 0);
        loop {
            let scan = both!(pair.scan_records(after, limit));
            count += scan.counts.iter().map(|(_, _, count)| count).sum::<u64>();
            match scan.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(count, u64::try_from(ids.len()).unwrap(), "limit {limit}");
    }
    both!(pair.scan_records(None, 0));
    both!(pair.scan_records(ids.last().copied(), 5));
}

#[tokio::test]
async fn record_counts_returns_the_latest_scan() {
    let pair = Pair::new().await;
    assert_eq!(both!(pair.record_counts()), None);
    let count = |operation: &str, status, count| RecordCount {
        operation: operation.into(),
        status,
        count,
    };
    let scanned = |began, ended, counts, all_callers| RecordCounts {
        began_at: at(began),
        ended_at: at(ended),
        counts,
        all_callers,
    };
    let everything = Status::ALL.map(|status| count("pay", status, 7));
    let few = vec![count("refund", Status::Unknown, 1)];
    for counts in [
        scanned(0, 10, vec![], false),
        scanned(1, 10, everything.to_vec(), true),
        // Ended before the stored scan.
        scanned(5, 9, few.clone(), false),
        scanned(5, 20, few, false),
        scanned(6, 21, vec![], true),
    ] {
        both!(pair.publish_record_counts(counts.clone()));
        both!(pair.record_counts());
    }
    assert_eq!(
        both!(pair.record_counts()),
        Some(scanned(6, 21, vec![], true))
    );
}

#[tokio::test]
async fn a_key_is_found_under_every_known_caller() {
    let pair = Pair::new().await;
    pair.some_of_everything().await;
    let keys = || (0..6).map(|place| Key::new(format!("key-{place}")).unwrap());
    for key in keys() {
        assert_eq!(both!(pair.find_key(&key)), []);
    }
    let callers = [
        caller(KeyScope::Operation, "tenant-a", "pay"),
        caller(KeyScope::Operation, "tenant-b", "refund"),
        caller(KeyScope::Operation, "tenant-b", "pay"),
        caller(KeyScope::Operation, "tenant-a", "refund"),
        // These two name one record.
        caller(KeyScope::Tenant, "tenant-a", "pay"),
        caller(KeyScope::Tenant, "tenant-a", "refund"),
        caller(KeyScope::Tenant, "tenant-b", "refund"),
        caller(KeyScope::Tenant, "tenant-c", "pay"),
    ];
    let mut most = 0;
    for met in callers {
        both!(pair.record_callers(vec![met.clone(), met.clone()]));
        for key in keys() {
            most = most.max(both!(pair.find_key(&key)).len());
        }
    }
    assert_eq!(most, 6);
}

#[tokio::test]
async fn callers_above_the_limit_are_not_recorded() {
    let pair = Pair::new().await;
    let met = |place: usize| caller(KeyScope::Operation, &format!("tenant-{place}"), "pay");
    let all: Vec<_> = (0..MAX_CALLERS + 2).map(met).collect();
    both!(pair.record_callers(all[..MAX_CALLERS - 1].to_vec()));
    // One more caller fits, and known callers do not count again.
    both!(pair.record_callers(vec![met(0), met(1), met(MAX_CALLERS - 1), met(MAX_CALLERS)]));
    both!(pair.record_callers(vec![met(MAX_CALLERS + 1), met(2)]));
    for (place, known) in [
        (0, true),
        (MAX_CALLERS - 1, true),
        (MAX_CALLERS, false),
        (MAX_CALLERS + 1, false),
    ] {
        let key = format!("key-{place}");
        pair.begin(&asked(&format!("tenant-{place}"), "pay", &key))
            .await;
        let key = Key::new(key).unwrap();
        let found = both!(pair.find_key(&key));
        assert_eq!(found.len(), usize::from(known), "{place}");
    }
}

/// Every filter with every scan limit, page by page.
#[tokio::test]
async fn a_list_scans_at_most_walk_records_per_page() {
    let pair = Pair::new().await;
    let ids = pair.some_of_everything().await;
    let of = |place: usize| Query {
        status: [None; 1]
            .into_iter()
            .chain(Status::ALL.map(Some))
            .nth(place % 6)
            .unwrap(),
        dead_lettered: [None, Some(true), Some(false)][place / 6 % 3],
        tenant: (place / 18 % 2 == 1).then(|| "tenant-a".into()),
        operation: (place / 36 % 2 == 1).then(|| "refund".into()),
        key: (place / 72 % 2 == 1).then(|| Key::new("key-3").unwrap()),
        ..Query::default()
    };
    let (mut short, mut narrow) = (0, 0);
    for place in 0..144 {
        for (limit, walk) in [
            (1, 1),
            (2, 1),
            (2, 2),
            (2, 3),
            (3, 10),
            (5, ids.len()),
            (0, 0),
        ] {
            let mut query = Query {
                limit,
                walk,
                ..of(place)
            };
            loop {
                let page = both!(pair.list(query.clone()));
                let is_short = page.operations.len() < query.page_size() && page.next.is_some();
                assert!(!(is_short && query.is_narrow()), "{query:?}");
                short += usize::from(is_short);
                narrow += usize::from(query.is_narrow());
                match page.next {
                    Some(next) => {
                        assert!(query.before.is_none_or(|before| next < before), "{query:?}");
                        query.before = Some(next);
                    }
                    None => break,
                }
            }
        }
    }
    assert!(short > 100 && narrow > 100, "{short}, {narrow}");
}

#[tokio::test]
async fn a_reveal_adds_a_history_entry_and_changes_nothing_else() {
    let pair = Pair::new().await;
    let ids = pair.some_of_everything().await;
    pair.clock.advance(Duration::from_secs(1));
    let by = || Actor::person("ada", "the customer asks");
    let mut shown = 0;
    for id in ids {
        let before = both!(pair.find(id)).unwrap();
        let is_completed = before.state.status() == Status::Completed;
        for _ in 0..2 {
            assert_eq!(both!(pair.audit_reveal(id, by())), is_completed);
        }
        assert_eq!(both!(pair.find(id)), Some(before.clone()));
        let entries = both!(pair.history(id));
        semel_core::history::verify(&before, &entries).unwrap();
        let revealed = entries
            .iter()
            .filter(|entry| entry.note.what == EntryKind::Revealed);
        assert_eq!(revealed.count(), if is_completed { 2 } else { 0 });
        shown += usize::from(is_completed);
    }
    assert!(shown > 2);
    assert!(!both!(pair.audit_reveal(id(0, 0), by())));
}
