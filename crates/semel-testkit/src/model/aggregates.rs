//! Checks over all records: lookup by resource, and counts of unfinished records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use semel_core::store::{CountWithOldest, UnfinishedCounts};
use semel_core::{OperationId, Record, State, Timestamp};

use super::StoreAndModel;
use crate::conformance::Subject;

impl<S: Subject> StoreAndModel<S> {
    /// Lookup by resource finds the newest record that names it.
    pub(super) async fn verify_resources(&self) {
        let mut creators = BTreeMap::new();
        for record in self.records.values() {
            if let Some(resource) = &record.resource {
                // The records come by age, so the newest is what stays.
                creators.insert(resource.id.clone(), record);
            }
        }
        for (resource, creator) in creators {
            let found = self.fixture.store.find_resource(&resource).await;
            assert_eq!(
                found.expect("find_resource").as_ref(),
                Some(creator),
                "the store (left) and the state machine (right) differ on who created {resource}"
            );
        }
    }

    /// Unfinished records are counted by operation.
    pub(super) async fn verify_unfinished_counts(&self) {
        let mut expected = BTreeMap::<&str, UnfinishedCounts>::new();
        for record in self.records.values() {
            let operation = record.identity.operation();
            let unresolved = match &record.state {
                State::InProgress(_) => None,
                State::Unknown(unresolved) => Some(unresolved),
                State::Completed(_) | State::FailedRetryable { .. } | State::Expired { .. } => {
                    continue;
                }
            };
            let counts = expected
                .entry(operation)
                .or_insert_with(|| UnfinishedCounts {
                    operation: operation.into(),
                    in_progress: CountWithOldest::default(),
                    unknown: CountWithOldest::default(),
                    dead_lettered: CountWithOldest::default(),
                });
            match unresolved {
                None => counts.in_progress.add(record.created_at),
                Some(unresolved) => {
                    counts.unknown.add(record.created_at);
                    if unresolved.dead_lettered_at.is_some() {
                        counts.dead_lettered.add(record.created_at);
                    }
                }
            }
        }
        let mut found = self
            .fixture
            .store
            .count_unfinished()
            .await
            .expect("count_unfinished");
        found.sort_by(|a, b| a.operation.cmp(&b.operation));
        assert_eq!(
            found,
            expected.into_values().collect::<Vec<_>>(),
            "the store (left) and the state machine (right) count differently"
        );
    }
}

/// Names a pair's clock without borrowing it.
impl<S> StoreAndModel<S> {
    /// The clock of the store under test.
    pub fn clock(&self) -> crate::ManualClock {
        self.fixture.clock.clone()
    }

    /// The store under test.
    pub fn store(&self) -> Arc<S> {
        Arc::clone(&self.fixture.store)
    }
}

/// Checks claimed records: the longest due first, each with its expected state. Returns their ids.
pub(super) fn claimed_of(
    claimed: &[Record],
    due: &BTreeMap<OperationId, (Timestamp, Option<Record>)>,
) -> BTreeSet<OperationId> {
    let since = |record: &Record| due.get(&record.id).expect("claimed, but not due").0;
    let order: Vec<_> = claimed.iter().map(since).collect();
    assert!(order.is_sorted(), "not longest due first: {order:?}");
    for record in claimed {
        assert_eq!(Some(record), due[&record.id].1.as_ref(), "as claimed");
    }
    let ids: BTreeSet<_> = claimed.iter().map(|record| record.id).collect();
    assert_eq!(ids.len(), claimed.len(), "claimed twice: {claimed:?}");
    ids
}
