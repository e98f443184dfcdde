//! Reads.

use std::collections::BTreeMap;

use super::Records;
use crate::contract::{RecordFilter, RecordsInUse};
use crate::store::{CountWithOldest, Page, Query, Summary, UnfinishedCounts};
use crate::{OperationId, Record, State, Timestamp};

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

    pub(super) fn count_records(&self, filter: &RecordFilter, now: Timestamp) -> RecordsInUse {
        let mut in_use = RecordsInUse::default();
        let admitted = self.by_id.values().filter(|record| {
            let rules = record.fingerprint.rules();
            filter.operations.admits(record.identity.operation())
                && filter.rules.is_none_or(|wanted| wanted == rules)
        });
        for record in admitted {
            in_use.all += 1;
            match &record.state {
                State::InProgress(_) | State::Unknown(_) => in_use.unfinished += 1,
                State::Completed(completed) if now < completed.expires_at => {
                    in_use.replayable += 1;
                    in_use.last_window_ends =
                        in_use.last_window_ends.max(Some(completed.expires_at));
                }
                State::Completed(_) | State::FailedRetryable { .. } | State::Expired { .. } => {}
            }
        }
        in_use
    }

    pub(super) fn list(&self, query: &Query) -> Page {
        let size = query.page_size();
        if query.is_ascending() {
            let records = self.by_id.values().map(Summary::from);
            let fitting = records.filter(|operation| query.admits(operation));
            return Page::of(fitting.take(size + 1).collect(), size, None);
        }
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
