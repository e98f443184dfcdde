//! A store and the pure state machine side by side: every event is applied to both, and the results
//! must agree.

mod aggregates;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use semel_core::history::{self, Entry};
use semel_core::store::{MAX_BATCH, OperationFilter, Result};
use semel_core::transition::{self, Answer, Decision, Transition};
use semel_core::{
    Backoff, Clock, Completed, Event, Identity, OperationId, Owner, Record, State, Timestamp,
    Unresolved,
};

use crate::conformance::{Fixture, Subject, together};

/// A store, and the records that [`transition`] requires it to hold.
pub struct StoreAndModel<S> {
    /// The store.
    pub fixture: Fixture<S>,
    records: BTreeMap<OperationId, Record>,
    histories: BTreeMap<OperationId, Vec<Entry>>,
    /// Every id that ever existed, to check that a deleted record stays deleted.
    seen: BTreeSet<OperationId>,
}

/// A verb that changes many records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Batch {
    /// See [`Store::sweep`](semel_core::Store::sweep).
    Sweep,
    /// See [`Store::claim_abandoned`](semel_core::Store::claim_abandoned).
    ClaimAbandoned(Box<str>, Owner, Duration),
    /// See [`Store::claim_due`](semel_core::Store::claim_due).
    ClaimDue(OperationFilter, Backoff),
    /// See [`Store::expire`](semel_core::Store::expire).
    Expire,
    /// See [`Store::drop_bodies`](semel_core::Store::drop_bodies).
    DropBodies,
    /// See [`Store::purge`](semel_core::Store::purge).
    Purge,
}

impl<S: Subject> StoreAndModel<S> {
    /// Starts with an empty store.
    pub fn new(fixture: Fixture<S>) -> Self {
        Self {
            fixture,
            records: BTreeMap::new(),
            histories: BTreeMap::new(),
            seen: BTreeSet::new(),
        }
    }

    /// The expected record.
    pub fn expected(&self, id: OperationId) -> Option<&Record> {
        self.records.get(&id)
    }

    /// All expected records.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// Applies one event to both. `id` names the record for an event that does not.
    pub async fn step(&mut self, id: OperationId, event: Event) -> Answer {
        self.steps(vec![(id, event)]).await.remove(0)
    }

    /// Applies events to different records concurrently.
    pub async fn steps(&mut self, steps: Vec<(OperationId, Event)>) -> Vec<Answer> {
        let now = self.fixture.clock.now();
        let answers = together(
            &self.fixture.store,
            steps.clone(),
            |store, (id, event)| async move { perform(&*store, id, event).await },
        )
        .await;
        let mut touched = BTreeSet::new();
        for ((id, event), answer) in steps.into_iter().zip(&answers) {
            let event_text = format!("{event:?}");
            let before = self.take(id, &event);
            touched.extend(before.as_ref().map(|record| record.id));
            let after = transition::apply(before.clone(), event.clone(), now);
            self.record_history(before.as_ref(), &event, &after, now);
            touched.extend(after.record.as_ref().map(|record| record.id));
            match answer {
                Ok(answer) => assert_eq!(
                    answer, &after.answer,
                    "the store (left) and the state machine (right) reply differently to {event_text}\nat {now:?} on {before:#?}"
                ),
                Err(error) => panic!("{event_text}: {error}"),
            }
            self.put(after.record);
        }
        self.verify(touched).await;
        answers.into_iter().flatten().collect()
    }

    /// Applies a batch verb to both; returns how many records it changed.
    pub async fn batch(&mut self, batch: &Batch, limit: usize) -> usize {
        let now = self.fixture.clock.now();
        let due: BTreeMap<OperationId, (Timestamp, Option<Record>)> = self
            .records
            .values()
            .filter_map(|record| Some((record.id, batch.outcome(record, now)?)))
            .collect();
        let chosen = self.perform_batch(batch, limit, &due).await;
        assert_eq!(
            chosen.len(),
            due.len().min(limit).min(MAX_BATCH),
            "{batch:?} with limit {limit} at {now:?} touched {chosen:?} of {due:#?}"
        );
        if matches!(
            batch,
            Batch::Sweep | Batch::ClaimAbandoned(..) | Batch::ClaimDue(..)
        ) {
            let last = chosen.iter().map(|id| due[id].0).max();
            let left = due.iter().filter(|(id, _)| !chosen.contains(id));
            for (id, (at, _)) in left {
                assert!(
                    last.is_none_or(|last| last <= *at),
                    "{batch:?} passed over {id}, which was due first"
                );
            }
        }
        for id in &chosen {
            let before = self.records.remove(id);
            let after = transition::apply(before.clone(), batch.event(), now);
            self.record_history(before.as_ref(), &batch.event(), &after, now);
            self.put(after.record);
        }
        self.verify(due.into_keys().collect()).await;
        chosen.len()
    }

    /// Compares every record that ever existed, and the counts over all of them.
    pub async fn verify_all(&self) {
        self.verify(self.seen.clone()).await;
        self.verify_resources().await;
        self.verify_unfinished_counts().await;
    }

    async fn verify(&self, ids: BTreeSet<OperationId>) {
        let ids: Vec<_> = ids.into_iter().collect();
        let found = together(&self.fixture.store, ids.clone(), |store, id| async move {
            store.find(id).await
        })
        .await;
        for (id, found) in ids.iter().zip(found) {
            let found = found.unwrap_or_else(|error| panic!("find: {error}"));
            assert_eq!(
                found.as_ref(),
                self.records.get(id),
                "the store (left) and the state machine (right) hold different records"
            );
        }
        self.verify_histories(&ids).await;
        let records: Vec<_> = ids.iter().filter_map(|id| self.records.get(id)).collect();
        let identities = records
            .iter()
            .map(|record| record.identity.clone())
            .collect();
        let found = together(
            &self.fixture.store,
            identities,
            |store, identity: Identity| async move { store.find_identity(&identity).await },
        )
        .await;
        for (record, found) in records.into_iter().zip(found) {
            let found = found.unwrap_or_else(|error| panic!("find_identity: {error}"));
            assert_eq!(found.as_ref(), Some(record), "found by its identity");
        }
    }

    async fn verify_histories(&self, ids: &[OperationId]) {
        let found = together(&self.fixture.store, ids.to_vec(), |store, id| async move {
            store.history(id).await
        })
        .await;
        for (id, found) in ids.iter().zip(found) {
            let found = found.unwrap_or_else(|error| panic!("history: {error}"));
            let expected = self.histories.get(id).cloned().unwrap_or_default();
            assert_eq!(
                found, expected,
                "the store (left) and the state machine (right) have different histories of {id}"
            );
            if let Some(record) = self.records.get(id) {
                assert_eq!(
                    history::verify(record, &found),
                    Ok(()),
                    "{record:#?}\n{found:#?}"
                );
            }
        }
    }

    /// Performs a batch on the store; returns which of the `due` records it changed.
    async fn perform_batch(
        &self,
        batch: &Batch,
        limit: usize,
        due: &BTreeMap<OperationId, (Timestamp, Option<Record>)>,
    ) -> BTreeSet<OperationId> {
        let store = &self.fixture.store;
        let count = match batch {
            Batch::Sweep => {
                let swept = store.sweep(limit).await.expect("sweep");
                let count = swept.len();
                let ids: BTreeSet<_> = swept.iter().map(|fence| fence.id).collect();
                assert_eq!(ids.len(), count, "a sweep names a record twice: {swept:?}");
                for fence in swept {
                    let record = due.get(&fence.id).and_then(|(_, after)| after.as_ref());
                    assert_eq!(
                        record.map(Record::fence),
                        Some(fence),
                        "swept, but not due or at another attempt"
                    );
                }
                return ids;
            }
            Batch::ClaimAbandoned(operation, owner, lease) => {
                let claimed = store.claim_abandoned(operation, owner.clone(), *lease, limit);
                return aggregates::claimed_of(&claimed.await.expect("claim_abandoned"), due);
            }
            Batch::ClaimDue(which, backoff) => {
                let claimed = store.claim_due(which.clone(), *backoff, limit).await;
                return aggregates::claimed_of(&claimed.expect("claim_due"), due);
            }
            Batch::Expire => store.expire(limit).await.expect("expire"),
            Batch::DropBodies => store.drop_bodies(limit).await.expect("drop_bodies"),
            Batch::Purge => store.purge(limit).await.expect("purge"),
        };
        let mut changed = BTreeSet::new();
        for id in due.keys() {
            let now = store.find(*id).await.expect("find");
            if now.as_ref() != self.records.get(id) {
                changed.insert(*id);
            }
        }
        assert_eq!(
            changed.len(),
            count,
            "{batch:?} must say how many it touched"
        );
        changed
    }

    fn take(&mut self, id: OperationId, event: &Event) -> Option<Record> {
        let id = match event {
            Event::Reserve(request) => {
                self.records
                    .values()
                    .find(|record| record.identity.names_same_record(&request.identity))?
                    .id
            }
            Event::Complete(fence, _)
            | Event::Release(fence, _)
            | Event::Evict(fence, _)
            | Event::MarkUnknown(fence, ..)
            | Event::Heartbeat(fence, _)
            | Event::Advance(fence, _)
            | Event::DeadLetter(fence, _) => fence.id,
            Event::Resolve(verdict) => verdict.fence.id,
            Event::Sweep
            | Event::ClaimAbandoned(..)
            | Event::ClaimDue(_)
            | Event::Expire
            | Event::DropBody
            | Event::Purge
            | Event::Erase(_)
            | Event::Reveal(_) => id,
        };
        self.records.remove(&id)
    }

    /// The expected history of the record; empty for a deleted one.
    fn record_history(
        &mut self,
        before: Option<&Record>,
        event: &Event,
        after: &Transition<Answer>,
        now: Timestamp,
    ) {
        let id = after.record.as_ref().map(|record| record.id);
        if let Some(gone) = before
            .map(|before| before.id)
            .filter(|gone| id != Some(*gone))
        {
            self.histories.remove(&gone);
        }
        if let Some(id) = id {
            let entries = self.histories.entry(id).or_default();
            history::append_note(entries, before, event, after, now);
        }
    }

    fn put(&mut self, record: Option<Record>) {
        if let Some(record) = record {
            self.seen.insert(record.id);
            self.records.insert(record.id, record);
        }
    }
}

impl Batch {
    /// The event for each record.
    fn event(&self) -> Event {
        match self {
            Self::Sweep => Event::Sweep,
            Self::ClaimAbandoned(_, owner, lease) => Event::ClaimAbandoned(owner.clone(), *lease),
            Self::ClaimDue(_, backoff) => Event::ClaimDue(*backoff),
            Self::Expire => Event::Expire,
            Self::DropBodies => Event::DropBody,
            Self::Purge => Event::Purge,
        }
    }

    /// Since when the record is due and its expected state afterwards, if it is due.
    fn outcome(&self, record: &Record, now: Timestamp) -> Option<(Timestamp, Option<Record>)> {
        let operation = record.identity.operation();
        let asked_for = match self {
            Self::ClaimDue(which, _) => which.admits(operation),
            Self::ClaimAbandoned(wanted, ..) => **wanted == *operation,
            Self::Sweep | Self::Expire | Self::DropBodies | Self::Purge => true,
        };
        if !asked_for {
            return None;
        }
        let after = transition::apply(Some(record.clone()), self.event(), now);
        let since = match &record.state {
            State::Completed(completed) if *self == Self::DropBodies => completed.body_expires_at?,
            State::InProgress(lease) if *self == Self::Sweep => lease.sweep_at(),
            State::InProgress(lease) => lease.locked_until,
            State::Completed(Completed { expires_at: at, .. })
            | State::FailedRetryable { expires_at: at }
            | State::Unknown(Unresolved {
                reconcile_after: at,
                ..
            })
            | State::Expired { purge_at: at } => *at,
        };
        (after.answer == Answer::Applied(true)).then_some((since, after.record))
    }
}

/// Performs one event on a store.
///
/// # Errors
/// The store's error.
pub async fn perform<S: Subject>(store: &S, id: OperationId, event: Event) -> Result<Answer> {
    Ok(match event {
        Event::Reserve(request) => {
            let glanced = store.try_decide(&request);
            let decision = store.reserve(request).await?;
            // `try_decide` may return `None`. Otherwise it returns the decision of `reserve`, and
            // never a grant: the following `reserve` would return a different one.
            if let Some(glanced) = glanced {
                assert_eq!(
                    glanced, decision,
                    "a glance (left) and reserve (right) differ"
                );
                assert!(
                    !matches!(glanced, Decision::Execute(_) | Decision::Resume(_)),
                    "a glance granted an execution"
                );
            }
            Answer::Decision(decision)
        }
        Event::Complete(fence, end) => Answer::Held(store.complete(fence, end).await?),
        Event::Release(fence, code) => Answer::Held(store.release(fence, code).await?),
        Event::Evict(fence, code) => Answer::Held(store.evict(fence, code).await?),
        Event::MarkUnknown(fence, code, resource) => {
            Answer::Held(store.mark_unknown(fence, code, resource).await?)
        }
        Event::Heartbeat(fence, lease) => Answer::Held(store.heartbeat(fence, lease).await?),
        Event::Advance(fence, point) => Answer::Held(store.advance(fence, point).await?),
        Event::Resolve(verdict) => Answer::Resolution(store.resolve(verdict).await?),
        Event::DeadLetter(fence, code) => Answer::Resolution(store.dead_letter(fence, code).await?),
        Event::Erase(by) => Answer::Applied(store.erase(id, by).await?),
        Event::Reveal(by) => Answer::Applied(store.audit_reveal(id, by).await?),
        Event::Sweep
        | Event::ClaimAbandoned(..)
        | Event::ClaimDue(_)
        | Event::Expire
        | Event::DropBody
        | Event::Purge => {
            panic!("a store does this to many records at once: see StoreAndModel::batch")
        }
    })
}
