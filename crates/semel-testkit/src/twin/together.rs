//! What a store says of its records together: who created what, and how they stand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use semel_core::store::{Standing, Tally};
use semel_core::{OperationId, Record, State, Timestamp};

use super::Twin;
use crate::conformance::Subject;

impl<S: Subject> Twin<S> {
    /// Every resource leads to the newest record that names it.
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

    /// What is unfinished is counted by command.
    pub(super) async fn verify_standing(&self) {
        let mut expected = BTreeMap::<&str, Standing>::new();
        for record in self.records.values() {
            let operation = record.identity.operation();
            let unresolved = match &record.state {
                State::InProgress(_) => None,
                State::Unknown(unresolved) => Some(unresolved),
                State::Completed(_) | State::FailedRetryable { .. } | State::Expired { .. } => {
                    continue;
                }
            };
            let standing = expected.entry(operation).or_insert_with(|| Standing {
                operation: operation.into(),
                in_progress: Tally::default(),
                unknown: Tally::default(),
                dead_lettered: Tally::default(),
            });
            match unresolved {
                None => standing.in_progress.add(record.created_at),
                Some(unresolved) => {
                    standing.unknown.add(record.created_at);
                    if unresolved.dead_lettered_at.is_some() {
                        standing.dead_lettered.add(record.created_at);
                    }
                }
            }
        }
        let mut found = self.fixture.store.standing().await.expect("standing");
        found.sort_by(|a, b| a.operation.cmp(&b.operation));
        assert_eq!(
            found,
            expected.into_values().collect::<Vec<_>>(),
            "the store (left) and the state machine (right) count differently"
        );
    }
}

/// Names a twin's clock without borrowing it.
impl<S> Twin<S> {
    /// The clock of the store under test.
    pub fn clock(&self) -> crate::ManualClock {
        self.fixture.clock.clone()
    }

    /// The store under test.
    pub fn store(&self) -> Arc<S> {
        Arc::clone(&self.fixture.store)
    }
}

/// Which of the `due` were claimed: the longest due first, and each as it now is.
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
