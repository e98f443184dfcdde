//! Lists: newest first, page by page, filtered.

use semel_core::store::{MAX_BATCH, Query, Summary};
use semel_core::{KeyScope, OperationId, Reserve, Status};

use super::fixture::{WINDOWS, completion, identity, key, request, request_for, together};
use super::{Fixture, Subject};

fn ids(operations: &[Summary]) -> Vec<OperationId> {
    operations
        .iter()
        .map(|operation| operation.fence.id)
        .collect()
}

/// Most pages that any list here has: a cursor that stands still must not hang the case.
const MAX_PAGES: usize = 100;

/// All pages of a list, each checked to be full except the last.
async fn all_pages<S: Subject>(f: &Fixture<S>, query: Query) -> Vec<Summary> {
    let mut all = Vec::new();
    let mut query = query;
    for _ in 0..MAX_PAGES {
        let page = f.list(query.clone()).await;
        let full = page.operations.len() == query.page_size();
        all.extend(page.operations);
        match page.next {
            Some(next) => {
                assert!(full, "a page that is not full has a cursor");
                assert_eq!(Some(next), ids(&all).last().copied(), "the page ends there");
                query.before = Some(next);
            }
            None => return all,
        }
    }
    panic!("the list has no end: {query:?}");
}

/// Records in every state, of several tenants, operations and keys, oldest first.
async fn some_of_everything<S: Subject>(f: &Fixture<S>) -> Vec<Summary> {
    let mut all = Vec::new();
    let names = ["tenant-1", "tenant-2"]
        .into_iter()
        .flat_map(|tenant| ["pay", "refund"].map(|operation| (tenant, operation)));
    for (tenant, operation) in names {
        for state in [
            "running",
            "done",
            "released",
            "lost",
            "set-aside",
            "tombstone",
        ] {
            all.push(request_for(identity(tenant, operation, state)));
        }
    }
    all.push(request_for(
        identity("tenant-1", "pay", "done").scoped(KeyScope::Tenant),
    ));
    for pass in [true, false] {
        for asked in &all {
            let old = asked.identity.key().as_str() == "tombstone";
            if old == pass {
                bring(f, asked.clone()).await;
            }
        }
        if pass {
            f.clock.advance(WINDOWS.replay);
            assert_eq!(f.expire(100).await, 4);
        }
    }
    let mut summaries = Vec::new();
    for asked in all {
        summaries.push(Summary::from(&f.record(asked.id).await));
    }
    summaries
}

async fn bring<S: Subject>(f: &Fixture<S>, asked: Reserve) {
    let state = asked.identity.key().as_str().to_owned();
    let grant = f.execute(asked).await;
    match state.as_str() {
        "done" | "tombstone" => drop(f.complete(grant.fence, completion("paid")).await),
        "released" => drop(f.release(grant.fence).await),
        "lost" => drop(f.mark_unknown(grant.fence).await),
        "set-aside" => {
            f.mark_unknown(grant.fence).await;
            f.dead_letter(grant.fence, "person".into()).await;
        }
        _ => {}
    }
}

/// An empty store has an empty list.
pub async fn an_empty_store_has_an_empty_list<S: Subject>(f: Fixture<S>) {
    assert_eq!(
        f.list(Query::default()).await,
        semel_core::store::Page::default()
    );
}

/// The newest record comes first, with all fields of a summary.
pub async fn the_newest_comes_first<S: Subject>(f: Fixture<S>) {
    let mut expected = some_of_everything(&f).await;
    expected.reverse();
    assert_eq!(f.list(Query::default()).await.operations, expected);
}

/// Every filter, and every pair of filters, returns exactly its records, on pages of any size.
/// Unknown records are listed in either order, others newest first.
pub async fn every_filter_combination_returns_its_records<S: Subject>(f: Fixture<S>) {
    let mut everything = some_of_everything(&f).await;
    everything.reverse();
    let filters = filters();
    for (place, one) in filters.iter().enumerate() {
        for two in &filters[place..] {
            for oldest_first in [false, true] {
                let query = Query {
                    oldest_first,
                    ..both(one, two)
                };
                let expected = everything
                    .iter()
                    .filter(|operation| query.admits(operation));
                let mut expected: Vec<_> = expected.cloned().collect();
                let unknown =
                    query.status == Some(Status::Unknown) || query.dead_lettered == Some(true);
                if oldest_first && unknown {
                    expected.reverse();
                }
                assert_eq!(all_pages(&f, query.clone()).await, expected, "{query:?}");
            }
        }
    }
}

/// A filter with the conditions of two.
fn both(one: &Query, two: &Query) -> Query {
    Query {
        status: one.status.or(two.status),
        tenant: one.tenant.clone().or_else(|| two.tenant.clone()),
        operation: one.operation.clone().or_else(|| two.operation.clone()),
        key: one.key.clone().or_else(|| two.key.clone()),
        dead_lettered: one.dead_lettered.or(two.dead_lettered),
        limit: 3,
        ..Query::default()
    }
}

fn filters() -> Vec<Query> {
    let mut filters = vec![
        Query::default(),
        Query {
            tenant: Some("tenant-1".into()),
            ..Query::default()
        },
        Query {
            tenant: Some("TENANT-1".into()),
            ..Query::default()
        },
        Query {
            operation: Some("refund".into()),
            ..Query::default()
        },
        Query {
            key: Some(key("done")),
            ..Query::default()
        },
    ];
    filters.extend(Status::ALL.map(|status| Query {
        status: Some(status),
        ..Query::default()
    }));
    filters.extend([true, false].map(|dead| Query {
        dead_lettered: Some(dead),
        ..Query::default()
    }));
    filters
}

/// A page scans a bounded number of records and returns a cursor; following the cursors finds every
/// match. A filter with an index of its own is not bounded.
pub async fn a_page_scans_a_bounded_number_and_returns_a_cursor<S: Subject>(f: Fixture<S>) {
    let mut everything = some_of_everything(&f).await;
    everything.reverse();
    let count = everything.len();
    for filter in filters() {
        for walk in [1, 2, 3, count - 1, count, count + 1] {
            let mut query = Query {
                limit: 2,
                walk,
                ..filter.clone()
            };
            let expected = everything
                .iter()
                .filter(|operation| query.admits(operation));
            let expected: Vec<_> = expected.cloned().collect();
            let mut found = Vec::new();
            for _ in 0..MAX_PAGES {
                let page = f.list(query.clone()).await;
                let left: Vec<_> = everything
                    .iter()
                    .filter(|one| query.before.is_none_or(|before| one.fence.id < before))
                    .take(if query.is_narrow() { count } else { walk })
                    .filter(|operation| query.admits(operation))
                    .take(2)
                    .cloned()
                    .collect();
                assert_eq!(page.operations, left, "{query:?}");
                found.extend(page.operations);
                query.before = page.next;
                if page.next.is_none() {
                    break;
                }
            }
            assert_eq!(found, expected, "{query:?}");
        }
    }
}

/// A page that scanned the last record has no cursor.
pub async fn a_scan_to_the_last_record_has_no_cursor<S: Subject>(f: Fixture<S>) {
    for place in 0..4 {
        f.execute(request(&format!("k{place}"))).await;
    }
    for (walk, more) in [(3, true), (4, false), (5, false)] {
        let query = Query {
            tenant: Some("unused".into()),
            walk,
            ..Query::default()
        };
        let page = f.list(query).await;
        assert_eq!(page.operations, []);
        assert_eq!(page.next.is_some(), more, "walk {walk}");
    }
}

/// A last page that is exactly full has no cursor.
pub async fn an_exactly_full_last_page_has_no_cursor<S: Subject>(f: Fixture<S>) {
    for place in 0..4 {
        f.execute(request(&format!("k{place}"))).await;
    }
    for (limit, more) in [(3, true), (4, false), (5, false)] {
        let query = Query {
            limit,
            ..Query::default()
        };
        let page = f.list(query).await;
        assert_eq!(page.operations.len(), limit.min(4));
        assert_eq!(page.next.is_some(), more, "limit {limit}");
    }
}

/// New records do not shift the following pages.
pub async fn pages_are_stable_while_records_are_added<S: Subject>(f: Fixture<S>) {
    let mut expected = Vec::new();
    for place in 0..6 {
        expected.insert(0, f.execute(request(&format!("k{place}"))).await.fence.id);
    }
    let mut query = Query {
        limit: 2,
        ..Query::default()
    };
    let mut seen = Vec::new();
    for _ in 0..MAX_PAGES {
        let page = f.list(query.clone()).await;
        seen.extend(ids(&page.operations));
        f.execute(request(&format!("new-{}", seen.len()))).await;
        match page.next {
            Some(next) => query.before = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, expected);
}

/// A limit of zero, or above the bound, means the bound.
pub async fn a_page_is_bounded<S: Subject>(f: Fixture<S>) {
    let count = MAX_BATCH + 1;
    let asked = (0..count)
        .map(|place| request(&format!("k{place}")))
        .collect();
    together(&f.store, asked, |store, request| async move {
        store.reserve(request).await.expect("reserve");
    })
    .await;
    for limit in [0, MAX_BATCH, MAX_BATCH + 1, usize::MAX] {
        let query = Query {
            limit,
            ..Query::default()
        };
        let page = f.list(query).await;
        assert_eq!(page.operations.len(), MAX_BATCH, "limit {limit}");
        assert!(page.next.is_some(), "limit {limit}");
    }
    assert_eq!(all_pages(&f, Query::default()).await.len(), count);
}
