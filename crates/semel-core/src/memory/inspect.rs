//! Reads.

use std::collections::BTreeMap;

use super::Records;
use crate::store::{CountWithOldest, Page, Query, Summary, UnfinishedCounts};
use crate::{OperationId, Record, State};

impl Records {
    pub(super) fn find_resource(&self, resource_id: &str) -> Option<Record> {
        let created = |record: &&Record| {
            let resource = record.resource.as_ref();
            resource.is_some_and(|resource| *resource.id == *resource_id)
        };
        self.by_id.values().rev().find(created).cloned()
    }

    pub(super) fn count_unfinished(&self) -> Vec<UnfinishedCounts> {
        let mut counts = BTreeMap::<&str, UnfinishedCounts>::new();
        for record in self.by_id.values() {
            let dead_lettered = match &record.state {
                State::InProgress(_) => None,
                State::Unknown(unresolved) => Some(unresolved.dead_lettered_at.is_some()),
                State::Completed(_) | State::FailedRetryable { .. } | State::Expired { .. } => {
                    continue;
                }
            };
            let operation = record.identity.operation();
            let count = counts.entry(operation).or_insert_with(|| UnfinishedCounts {
                operation: operation.into(),
                in_progress: CountWithOldest::default(),
                unknown: CountWithOldest::default(),
                dead_lettered: CountWithOldest::default(),
            });
            match dead_lettered {
                None => count.in_progress.add(record.created_at),
                Some(waits) => {
                    count.unknown.add(record.created_at);
                    if waits {
                        count.dead_lettered.add(record.created_at);
                    }
                }
            }
        }
        counts.into_values().collect()
    }

    pub(super) fn list(&self, query: &Query) -> Page {
        let size = query.page_size();
        let walk = if query.is_narrow() {
            usize::MAX
        } else {
            query.walk_length()
        };
        let beyond = |id: &OperationId| query.before.is_none_or(|before| *id < before);
        let mut ids = self.by_id.keys().rev().copied().filter(beyond);
        let floor = walk.checked_sub(1).and_then(|last| ids.nth(last));
        let floor = floor.filter(|_| ids.next().is_some());
        let fitting = self
            .by_id
            .values()
            .rev()
            .map(Summary::from)
            .filter(|operation| floor.is_none_or(|floor| operation.fence.id >= floor))
            .filter(|operation| query.admits(operation))
            .take(size + 1)
            .collect();
        Page::of(fitting, size, floor)
    }
}
