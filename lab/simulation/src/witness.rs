//! Observes every store call and its answer, and checks the invariants. It does not use the
//! transition function: it derives the state of a record from the store's answers.

mod decisions;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use semel_core::transition::{Grant, Verdict};
use semel_core::{
    Decision, Fence, Fingerprint, Held, Identity, KeyScope, OnExpired, OperationId, Policy,
    Resolution, Resolve, Timestamp,
};

use crate::scenario::number;

/// The scope of a key as text: tenant, operation and key, or tenant and key.
pub(crate) type Slot = String;

/// Broken invariants, each with an explanation.
pub(crate) type Broken = Vec<(&'static str, String)>;

/// The observed calls.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    /// The records of each slot, in the order in which they were created.
    pub(crate) slots: BTreeMap<Slot, Vec<ObservedRecord>>,
    positions: HashMap<OperationId, (Slot, usize)>,
    /// Grants that reached their caller, and how long that took.
    delivered: HashMap<Fence, Duration>,
    /// Attempts whose execution began.
    started: HashSet<Fence>,
    /// Operations with an answer that is too large to be stored.
    too_large: HashSet<OperationId>,
}

/// A reservation.
pub(crate) struct Reservation {
    pub(crate) identity: Identity,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) policy: Policy,
}

/// One record.
#[derive(Clone, Debug)]
pub(crate) struct ObservedRecord {
    pub(crate) id: OperationId,
    /// The fingerprint of the first request.
    fingerprint: Fingerprint,
    /// Whether the record before it had expired, so that this is a new operation under an old key.
    pub(crate) after_expiry: bool,
    attempt: u32,
    state: ObservedState,
    locked_until: Timestamp,
    /// Whether a phase was recorded.
    advanced: bool,
    pub(crate) completed: bool,
}

/// The state of a record, derived from the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObservedState {
    Held,
    Released(Timestamp),
    Unknown,
    Completed(Timestamp),
    Evicted,
}

/// A holder's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolderWrite {
    Complete,
    Release,
    Evict,
    MarkUnknown,
    Heartbeat(Duration),
    Advance,
}

pub(crate) fn slot_of(identity: &Identity) -> Slot {
    let command = match identity.scope() {
        KeyScope::Operation => identity.operation(),
        KeyScope::Tenant => "*",
    };
    format!(
        "{}/{command}/{}",
        identity.tenant(),
        identity.key().as_str()
    )
}

impl Witness {
    pub(crate) fn reserved(
        &mut self,
        reservation: &Reservation,
        decision: &Decision,
        now: Timestamp,
    ) -> Broken {
        let mut broken = self.misused(reservation, decision);
        broken.extend(match decision {
            Decision::Execute(grant) => self.granted(reservation, grant, now),
            Decision::Resume(grant) => self.resumed(&reservation.policy, grant, now),
            Decision::Replay(_)
            | Decision::InProgress(_)
            | Decision::Unknown(_)
            | Decision::KeyMisuse { .. }
            | Decision::OtherRules { .. }
            | Decision::Expired(_) => self.check_decision(&reservation.policy, decision, now),
        });
        broken
    }

    fn granted(&mut self, reservation: &Reservation, grant: &Grant, now: Timestamp) -> Broken {
        let (slot, policy) = (slot_of(&reservation.identity), &reservation.policy);
        let mut broken = Broken::new();
        let Fence { id, attempt } = grant.fence;
        let what = format!("op{} attempt {attempt} of {slot}", number(id));
        let records = self.slots.entry(slot.clone()).or_default();
        match records.last_mut() {
            Some(record) if record.id == id => {
                if attempt != record.attempt + 1 {
                    broken.push((
                        "attempts_not_monotone",
                        format!("{what} after {}", record.attempt),
                    ));
                }
                match record.state {
                    ObservedState::Released(_) => {}
                    ObservedState::Unknown => broken.push(("executed_after_unknown", what)),
                    ObservedState::Held | ObservedState::Completed(_) | ObservedState::Evicted => {
                        broken.push((
                            "granted_without_proof",
                            format!("{what}: {:?}", record.state),
                        ));
                    }
                }
                record.attempt = attempt;
                record.state = ObservedState::Held;
                record.locked_until = grant.locked_until;
            }
            last => {
                if attempt != 1 {
                    broken.push(("attempts_not_monotone", format!("{what} is the first")));
                }
                let mut after_expiry = false;
                match last.map(|record| record.state) {
                    None | Some(ObservedState::Evicted) => {}
                    Some(ObservedState::Completed(at) | ObservedState::Released(at))
                        if is_purged(policy, at, now) =>
                    {
                        after_expiry = true;
                    }
                    Some(ObservedState::Unknown) => broken.push(("executed_after_unknown", what)),
                    Some(state) => {
                        broken.push(("granted_without_proof", format!("{what}: {state:?}")));
                    }
                }
                self.positions.insert(id, (slot, records.len()));
                records.push(ObservedRecord {
                    id,
                    fingerprint: reservation.fingerprint,
                    after_expiry,
                    attempt,
                    state: ObservedState::Held,
                    locked_until: grant.locked_until,
                    advanced: false,
                    completed: false,
                });
            }
        }
        broken
    }

    /// Only an operation with phases may be resumed, and only after its lease.
    fn resumed(&mut self, policy: &Policy, grant: &Grant, now: Timestamp) -> Broken {
        let Fence { id, attempt } = grant.fence;
        let what = format!("op{} attempt {attempt} goes on", number(id));
        let Some(record) = self.record_mut(id) else {
            return vec![("granted_without_proof", what)];
        };
        let mut broken = Broken::new();
        if attempt != record.attempt + 1 {
            broken.push((
                "attempts_not_monotone",
                format!("{what} after {}", record.attempt),
            ));
        }
        let silent = record.state == ObservedState::Held && record.locked_until <= now;
        if !silent || policy.resumes_within().is_none() {
            broken.push((
                "granted_without_proof",
                format!("{what}: {:?}", record.state),
            ));
        }
        record.attempt = attempt;
        record.state = ObservedState::Held;
        record.locked_until = grant.locked_until;
        broken
    }

    pub(crate) fn observe_write(
        &mut self,
        write: HolderWrite,
        fence: Fence,
        held: Held,
        now: Timestamp,
    ) -> Broken {
        match held {
            Held::Applied => {}
            Held::Repeated | Held::Fenced(_) => return Broken::new(),
        }
        let what = format!(
            "{write:?} by op{} attempt {}",
            number(fence.id),
            fence.attempt
        );
        let Some(record) = self.record_mut(fence.id) else {
            return vec![("fence_ignored", format!("{what}: there is no such record"))];
        };
        let ends = match write {
            HolderWrite::Complete | HolderWrite::Release | HolderWrite::Evict => true,
            HolderWrite::MarkUnknown | HolderWrite::Heartbeat(_) | HolderWrite::Advance => false,
        };
        let late = ends && record.state == ObservedState::Unknown;
        let owns = record.attempt == fence.attempt && (record.state == ObservedState::Held || late);
        let broken = if owns {
            Broken::new()
        } else {
            vec![(
                "fence_ignored",
                format!("{what}: it is {:?} at {}", record.state, record.attempt),
            )]
        };
        record.state = match write {
            HolderWrite::Complete => ObservedState::Completed(now),
            HolderWrite::Evict if record.attempt == 1 && !record.advanced && !late => {
                ObservedState::Evicted
            }
            HolderWrite::Release | HolderWrite::Evict => ObservedState::Released(now),
            HolderWrite::MarkUnknown => ObservedState::Unknown,
            HolderWrite::Heartbeat(_) | HolderWrite::Advance => record.state,
        };
        if let HolderWrite::Heartbeat(lease) = write {
            record.locked_until = record.locked_until.max(now.saturating_add(lease));
        }
        record.advanced |= write == HolderWrite::Advance;
        record.completed |= write == HolderWrite::Complete;
        broken
    }

    pub(crate) fn resolved(
        &mut self,
        verdict: &Resolve,
        answer: Resolution,
        now: Timestamp,
    ) -> Broken {
        match answer {
            Resolution::Applied => {}
            Resolution::Fenced(_) => return Broken::new(),
        }
        let fence = verdict.fence;
        let what = format!(
            "a verdict on op{} attempt {}",
            number(fence.id),
            fence.attempt
        );
        let Some(record) = self.record_mut(fence.id) else {
            return vec![("fence_ignored", format!("{what}: there is no such record"))];
        };
        let broken = if record.attempt == fence.attempt && record.state == ObservedState::Unknown {
            Broken::new()
        } else {
            vec![(
                "fence_ignored",
                format!("{what}: it is {:?} at {}", record.state, record.attempt),
            )]
        };
        match verdict.verdict {
            Verdict::Completed(_) => {
                record.state = ObservedState::Completed(now);
                record.completed = true;
            }
            Verdict::NotExecuted(_) => record.state = ObservedState::Released(now),
            Verdict::StillUnknown(..) => {}
        }
        broken
    }

    /// Records that a grant reached its caller after this time.
    pub(crate) fn delivered(&mut self, grant: &Grant, took: Duration) {
        self.delivered.insert(grant.fence, took);
    }

    /// Records that an execution began.
    pub(crate) fn started(&mut self, fence: Fence, patience: Duration) -> Broken {
        let mut broken = Broken::new();
        let what = format!("op{} attempt {}", number(fence.id), fence.attempt);
        match self.delivered.get(&fence) {
            None => broken.push(("executed_after_store_error", what.clone())),
            Some(took) if *took > patience => {
                broken.push((
                    "executed_after_giving_up",
                    format!("{what}, granted after {took:?}"),
                ));
            }
            Some(_) => {}
        }
        if !self.started.insert(fence) {
            broken.push(("attempt_executed_twice", what));
        }
        broken
    }

    /// Whether the record was completed.
    pub(crate) fn is_completed(&self, id: OperationId) -> bool {
        self.record(id).is_some_and(|record| record.completed)
    }

    /// The ids of all records, also of those that are deleted.
    pub(crate) fn ids(&self) -> Vec<OperationId> {
        self.slots
            .values()
            .flatten()
            .map(|record| record.id)
            .collect()
    }

    /// Groups the records of each slot that may have one effect together: a record belongs to the one
    /// before unless that one had expired.
    pub(crate) fn effect_groups(&self) -> Vec<(Slot, Vec<OperationId>)> {
        let mut groups: Vec<(Slot, Vec<OperationId>)> = Vec::new();
        for (slot, records) in &self.slots {
            for (at, record) in records.iter().enumerate() {
                match groups.last_mut() {
                    Some((_, ids)) if at > 0 && !record.after_expiry => ids.push(record.id),
                    Some(_) | None => groups.push((slot.clone(), vec![record.id])),
                }
            }
        }
        groups
    }

    /// Whether the record was evicted because nothing had been executed.
    pub(crate) fn is_evicted(&self, id: OperationId) -> bool {
        self.record(id)
            .is_some_and(|record| record.state == ObservedState::Evicted)
    }

    fn record(&self, id: OperationId) -> Option<&ObservedRecord> {
        let (slot, at) = self.positions.get(&id)?;
        self.slots.get(slot)?.get(*at)
    }

    fn record_mut(&mut self, id: OperationId) -> Option<&mut ObservedRecord> {
        let (slot, at) = self.positions.get(&id)?;
        self.slots.get_mut(slot)?.get_mut(*at)
    }
}

/// Whether all retention of a record that ended at `ended` is over.
fn is_purged(policy: &Policy, ended: Timestamp, now: Timestamp) -> bool {
    let windows = policy.windows;
    let tombstone = match policy.on_expired {
        OnExpired::Reject => windows.tombstone.unwrap_or_default(),
        OnExpired::Execute => Duration::ZERO,
    };
    ended
        .saturating_add(windows.replay)
        .saturating_add(tombstone)
        <= now
}
