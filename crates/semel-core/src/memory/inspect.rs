//! Looking without touching.

use std::collections::BTreeMap;

use super::Memory;
use crate::history::Entry;
use crate::store::{Page, Query, Result, Standing, Summary, Tally};
use crate::{Identity, Inspect, OperationId, Record, State};

impl Inspect for Memory {
    async fn find(&self, id: OperationId) -> Result<Option<Record>> {
        Ok(self.lock().by_id.get(&id).cloned())
    }

    async fn find_identity(&self, identity: &Identity) -> Result<Option<Record>> {
        Ok(self.lock().find(identity)?.cloned())
    }

    async fn find_resource(&self, resource_id: &str) -> Result<Option<Record>> {
        let created = |record: &&Record| {
            let resource = record.resource.as_ref();
            resource.is_some_and(|resource| *resource.id == *resource_id)
        };
        Ok(self.lock().by_id.values().rev().find(created).cloned())
    }

    async fn history(&self, id: OperationId) -> Result<Vec<Entry>> {
        Ok(self.lock().histories.get(&id).cloned().unwrap_or_default())
    }

    async fn standing(&self) -> Result<Vec<Standing>> {
        let records = self.lock();
        let mut standings = BTreeMap::<&str, Standing>::new();
        for record in records.by_id.values() {
            let dead_lettered = match &record.state {
                State::InProgress(_) => None,
                State::Unknown(unresolved) => Some(unresolved.dead_lettered_at.is_some()),
                State::Completed(_) | State::FailedRetryable { .. } | State::Expired { .. } => {
                    continue;
                }
            };
            let operation = record.identity.operation();
            let standing = standings.entry(operation).or_insert_with(|| Standing {
                operation: operation.into(),
                in_progress: Tally::default(),
                unknown: Tally::default(),
                dead_lettered: Tally::default(),
            });
            match dead_lettered {
                None => standing.in_progress.add(record.created_at),
                Some(waits) => {
                    standing.unknown.add(record.created_at);
                    if waits {
                        standing.dead_lettered.add(record.created_at);
                    }
                }
            }
        }
        Ok(standings.into_values().collect())
    }

    async fn list(&self, query: Query) -> Result<Page> {
        let size = query.page_size();
        let walk = if query.is_narrow() {
            usize::MAX
        } else {
            query.walk_length()
        };
        let records = self.lock();
        let beyond = |id: &OperationId| query.before.is_none_or(|before| *id < before);
        let mut ids = records.by_id.keys().rev().copied().filter(beyond);
        let floor = walk.checked_sub(1).and_then(|last| ids.nth(last));
        let floor = floor.filter(|_| ids.next().is_some());
        let fitting = records
            .by_id
            .values()
            .rev()
            .map(Summary::from)
            .filter(|operation| floor.is_none_or(|floor| operation.fence.id >= floor))
            .filter(|operation| query.admits(operation))
            .take(size + 1)
            .collect();
        Ok(Page::of(fitting, size, floor))
    }
}
