//! Statistics.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use super::Records;
use crate::statistics::{
    Activity, Caller, DecisionCounts, MAX_CALLERS, MAX_MISUSES, Misuse, RecordCounts, RecordScan,
};
use crate::store::{MAX_BATCH, MAX_WALK, Result, Summary};
use crate::{Identity, Key, OperationId, Owner, Timestamp};

/// The stored statistics.
#[derive(Debug, Default)]
pub(super) struct Statistics {
    activity: BTreeMap<(Timestamp, Box<str>), DecisionCounts>,
    misuses: BTreeMap<(Box<str>, Box<str>), Misuse>,
    callers: BTreeSet<Caller>,
    record_counts: Option<RecordCounts>,
    /// The process that scans records, and when its lease expires.
    scan_lease: Option<(Owner, Timestamp)>,
}

impl Records {
    pub(super) fn add_counts(&mut self, activity: Vec<Activity>, misuses: Vec<Misuse>) {
        let statistics = &mut self.statistics;
        for Activity {
            at,
            operation,
            decisions,
        } in activity
        {
            let sum = statistics.activity.entry((at, operation)).or_default();
            sum.add(&decisions);
        }
        for misuse in misuses {
            let whose = (misuse.tenant.clone(), misuse.operation.clone());
            statistics
                .misuses
                .entry(whose)
                .and_modify(|sum| sum.add(&misuse))
                .or_insert(misuse);
        }
        while statistics.misuses.len() > MAX_MISUSES {
            let oldest = statistics
                .misuses
                .iter()
                .min_by_key(|(_, kept)| kept.last_at);
            let Some(oldest) = oldest.map(|(whose, _)| whose.clone()) else {
                break;
            };
            statistics.misuses.remove(&oldest);
        }
    }

    pub(super) fn activity(&self, since: Timestamp) -> Vec<Activity> {
        let statistics = &self.statistics;
        let from = (since, Box::from(""));
        let kept = statistics.activity.range(from..);
        let shown = kept.map(|((at, operation), decisions)| Activity {
            at: *at,
            operation: operation.clone(),
            decisions: *decisions,
        });
        shown.collect()
    }

    pub(super) fn misuses(&self, limit: usize) -> Vec<Misuse> {
        let mut misuses: Vec<_> = self.statistics.misuses.values().cloned().collect();
        misuses.sort_by(|a, b| {
            let of = |misuse: &Misuse| (misuse.tenant.clone(), misuse.operation.clone());
            b.last_at.cmp(&a.last_at).then_with(|| of(a).cmp(&of(b)))
        });
        misuses.truncate(limit.min(MAX_BATCH));
        misuses
    }

    pub(super) fn scan_records(&self, after: Option<OperationId>, limit: usize) -> RecordScan {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut beyond = self.by_id.range((from, Bound::Unbounded));
        let mut counts = BTreeMap::<_, u64>::new();
        let mut last = None;
        for (id, record) in beyond.by_ref().take(limit.min(MAX_WALK)) {
            let identity = &record.identity;
            let caller = Caller {
                scope: identity.scope(),
                tenant: identity.tenant().into(),
                operation: identity.operation().into(),
            };
            let status = record.state.status();
            *counts.entry((caller, status)).or_default() += 1;
            last = Some(*id);
        }
        RecordScan {
            counts: counts
                .into_iter()
                .map(|((caller, status), count)| (caller, status, count))
                .collect(),
            next: last.filter(|_| beyond.next().is_some()),
        }
    }

    pub(super) fn record_callers(&mut self, callers: Vec<Caller>) -> bool {
        let known = &mut self.statistics.callers;
        for caller in callers {
            if known.len() < MAX_CALLERS {
                known.insert(caller);
            }
        }
        known.len() < MAX_CALLERS
    }

    pub(super) fn acquire_scan_lease(
        &mut self,
        owner: Owner,
        lease: Duration,
        now: Timestamp,
    ) -> bool {
        let held = &mut self.statistics.scan_lease;
        if let Some((holder, until)) = held
            && *holder != owner
            && *until > now
        {
            return false;
        }
        *held = Some((owner, now.saturating_add(lease)));
        true
    }

    pub(super) fn publish_record_counts(&mut self, counts: RecordCounts) {
        let latest = &mut self.statistics.record_counts;
        if latest
            .as_ref()
            .is_none_or(|latest| latest.ended_at <= counts.ended_at)
        {
            *latest = Some(counts);
        }
    }

    pub(super) fn record_counts(&self) -> Option<RecordCounts> {
        self.statistics.record_counts.clone()
    }

    pub(super) fn find_key(&self, key: &Key) -> Result<Vec<Summary>> {
        let mut found = BTreeMap::new();
        for caller in &self.statistics.callers {
            let identity = Identity::new(&*caller.tenant, &*caller.operation, key.clone());
            // Callers are made of identities, so each makes one.
            let Ok(identity) = identity else { continue };
            if let Some(record) = self.find(&identity.scoped(caller.scope))? {
                found.insert(record.id, Summary::from(record));
            }
        }
        Ok(found.into_values().rev().take(MAX_BATCH).collect())
    }

    pub(super) fn forget_activity(&mut self, before: Timestamp, limit: usize) -> usize {
        let kept = &mut self.statistics.activity;
        let over = kept.keys().filter(|(at, _)| *at < before);
        let over: Vec<_> = over.take(limit.min(MAX_BATCH)).cloned().collect();
        for line in &over {
            kept.remove(line);
        }
        over.len()
    }

    pub(super) fn forget_misuses(&mut self, before: Timestamp, limit: usize) -> usize {
        let kept = &mut self.statistics.misuses;
        let over = kept.iter().filter(|(_, misuse)| misuse.last_at < before);
        let over = over.map(|(whose, _)| whose.clone());
        let over: Vec<_> = over.take(limit.min(MAX_BATCH)).collect();
        for whose in &over {
            kept.remove(whose);
        }
        over.len()
    }
}
