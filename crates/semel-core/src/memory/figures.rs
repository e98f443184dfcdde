//! Figures for people.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use super::Memory;
use crate::figures::{
    Activity, Caller, Census, Figures, MAX_CALLERS, MAX_MISUSES, Misuse, Survey, Told,
};
use crate::store::{MAX_BATCH, MAX_WALK, Result, Summary};
use crate::{Identity, Key, OperationId, Owner, Timestamp};

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Counted {
    activity: BTreeMap<(Timestamp, Box<str>), Told>,
    misuses: BTreeMap<(Box<str>, Box<str>), Misuse>,
    callers: BTreeSet<Caller>,
    census: Option<Census>,
    /// Who counts, and until when nobody else does.
    counting: Option<(Owner, Timestamp)>,
}

impl Figures for Memory {
    async fn count(&self, activity: Vec<Activity>, misuses: Vec<Misuse>) -> Result<()> {
        let figures = &mut self.lock().figures;
        for Activity {
            at,
            operation,
            told,
        } in activity
        {
            let sum = figures.activity.entry((at, operation)).or_default();
            sum.add(&told);
        }
        for misuse in misuses {
            let whose = (misuse.tenant.clone(), misuse.operation.clone());
            figures
                .misuses
                .entry(whose)
                .and_modify(|sum| sum.add(&misuse))
                .or_insert(misuse);
        }
        while figures.misuses.len() > MAX_MISUSES {
            let oldest = figures.misuses.iter().min_by_key(|(_, kept)| kept.last_at);
            let Some(oldest) = oldest.map(|(whose, _)| whose.clone()) else {
                break;
            };
            figures.misuses.remove(&oldest);
        }
        Ok(())
    }

    async fn activity(&self, since: Timestamp) -> Result<Vec<Activity>> {
        let figures = &self.lock().figures;
        let from = (since, Box::from(""));
        let kept = figures.activity.range(from..);
        let shown = kept.map(|((at, operation), told)| Activity {
            at: *at,
            operation: operation.clone(),
            told: *told,
        });
        Ok(shown.collect())
    }

    async fn misuses(&self, limit: usize) -> Result<Vec<Misuse>> {
        let mut misuses: Vec<_> = self.lock().figures.misuses.values().cloned().collect();
        misuses.sort_by(|a, b| {
            let of = |misuse: &Misuse| (misuse.tenant.clone(), misuse.operation.clone());
            b.last_at.cmp(&a.last_at).then_with(|| of(a).cmp(&of(b)))
        });
        misuses.truncate(limit.min(MAX_BATCH));
        Ok(misuses)
    }

    async fn survey(&self, after: Option<OperationId>, limit: usize) -> Result<Survey> {
        let records = self.lock();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut beyond = records.by_id.range((from, Bound::Unbounded));
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
        Ok(Survey {
            counts: counts
                .into_iter()
                .map(|((caller, status), count)| (caller, status, count))
                .collect(),
            next: last.filter(|_| beyond.next().is_some()),
        })
    }

    async fn meet(&self, callers: Vec<Caller>) -> Result<bool> {
        let known = &mut self.lock().figures.callers;
        for caller in callers {
            if known.len() < MAX_CALLERS {
                known.insert(caller);
            }
        }
        Ok(known.len() < MAX_CALLERS)
    }

    async fn count_alone(&self, owner: Owner, lease: Duration) -> Result<bool> {
        let mut records = self.lock();
        let now = self.clock.now();
        let held = &mut records.figures.counting;
        if let Some((holder, until)) = held
            && *holder != owner
            && *until > now
        {
            return Ok(false);
        }
        *held = Some((owner, now.saturating_add(lease)));
        Ok(true)
    }

    async fn publish_census(&self, census: Census) -> Result<()> {
        let latest = &mut self.lock().figures.census;
        if latest
            .as_ref()
            .is_none_or(|latest| latest.ended_at <= census.ended_at)
        {
            *latest = Some(census);
        }
        Ok(())
    }

    async fn census(&self) -> Result<Option<Census>> {
        Ok(self.lock().figures.census.clone())
    }

    async fn find_key(&self, key: &Key) -> Result<Vec<Summary>> {
        let records = self.lock();
        let mut found = BTreeMap::new();
        for caller in &records.figures.callers {
            let identity = Identity::new(&*caller.tenant, &*caller.operation, key.clone());
            // Callers are made of identities, so each makes one.
            let Ok(identity) = identity else { continue };
            if let Some(record) = records.find(&identity.scoped(caller.scope))? {
                found.insert(record.id, Summary::from(record));
            }
        }
        Ok(found.into_values().rev().take(MAX_BATCH).collect())
    }

    async fn forget_activity(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let kept = &mut self.lock().figures.activity;
        let over = kept.keys().filter(|(at, _)| *at < before);
        let over: Vec<_> = over.take(limit.min(MAX_BATCH)).cloned().collect();
        for line in &over {
            kept.remove(line);
        }
        Ok(over.len())
    }

    async fn forget_misuses(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let kept = &mut self.lock().figures.misuses;
        let over = kept.iter().filter(|(_, misuse)| misuse.last_at < before);
        let over = over.map(|(whose, _)| whose.clone());
        let over: Vec<_> = over.take(limit.min(MAX_BATCH)).collect();
        for whose in &over {
            kept.remove(whose);
        }
        Ok(over.len())
    }
}
