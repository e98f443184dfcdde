//! Checks decisions that grant nothing against the observed state of the record.

use semel_core::{Decision, Fence, OnExpired, OperationId, Policy, Timestamp, Windows};

use super::{Broken, ObservedRecord, ObservedState, Reservation, Slot, Witness, slot_of};
use crate::scenario::number;

/// The invariant that a decision matches the record.
const CONTRADICTS_RECORD: &str = "decided_against_the_record";

impl Witness {
    /// Checks that a request gets `KeyMisuse` if and only if it differs from the first one.
    pub(super) fn misused(&self, reservation: &Reservation, decision: &Decision) -> Broken {
        let (id, is_misuse) = match decision {
            Decision::Execute(grant) | Decision::Resume(grant) => (grant.fence.id, false),
            Decision::Replay(replay) => (replay.id, false),
            Decision::InProgress(running) => (running.fence.id, false),
            Decision::Unknown(unknown) => (unknown.id, false),
            Decision::Expired(expired) => (expired.id, false),
            Decision::KeyMisuse { id } => (*id, true),
            // Nothing is decided: the request comes again with another fingerprint.
            Decision::OtherRules { .. } => return Broken::new(),
        };
        // A new record starts with this request.
        let Some(record) = self.record(id) else {
            return Broken::new();
        };
        let what = format!(
            "op{} was requested by {}",
            number(id),
            slot_of(&reservation.identity)
        );
        match (is_misuse, record.fingerprint == reservation.fingerprint) {
            (false, true) | (true, false) => Broken::new(),
            (false, false) => vec![("misuse_accepted", format!("{what}, which is another"))],
            (true, true) => vec![(CONTRADICTS_RECORD, format!("{what}: misuse, of the same"))],
        }
    }

    /// Checks a decision that grants nothing.
    pub(super) fn check_decision(
        &mut self,
        policy: &Policy,
        decision: &Decision,
        now: Timestamp,
    ) -> Broken {
        let (id, right) = match decision {
            Decision::Replay(replay) => {
                let done = |record: &ObservedRecord| match record.state {
                    ObservedState::Completed(at) => now < replay_window_end(policy.windows, at),
                    ObservedState::Held
                    | ObservedState::Released(_)
                    | ObservedState::Unknown
                    | ObservedState::Evicted => false,
                };
                let id = replay.id;
                if replay.response.body.is_none() && !self.too_large.contains(&id) {
                    let how = format!("op{} is replayed without its body", number(id));
                    return vec![("bodies_lost", how)];
                }
                (id, self.record(id).is_some_and(done))
            }
            Decision::InProgress(running) => {
                let fence = running.fence;
                let held = |record: &ObservedRecord| {
                    let held = record.state == ObservedState::Held && now < record.locked_until;
                    held && record.attempt == fence.attempt
                };
                (fence.id, self.record(fence.id).is_some_and(held))
            }
            // The reservation itself may have made it unknown.
            Decision::Unknown(unknown) => (unknown.id, self.mark_unknown(unknown.id, now)),
            Decision::Expired(expired) => {
                let over = |record: &ObservedRecord| record.is_expired(policy.windows, now);
                let rejects = policy.on_expired == OnExpired::Reject;
                (
                    expired.id,
                    rejects && self.record(expired.id).is_some_and(over),
                )
            }
            Decision::Execute(_)
            | Decision::Resume(_)
            | Decision::KeyMisuse { .. }
            | Decision::OtherRules { .. } => {
                return Broken::new();
            }
        };
        if right {
            return Broken::new();
        }
        let record = self
            .record(id)
            .map(|record| (record.state, record.locked_until));
        vec![(
            CONTRADICTS_RECORD,
            format!("{decision:?} at {now:?}: it is {record:?}"),
        )]
    }

    /// Marks a record as unknown; returns whether that is allowed.
    fn mark_unknown(&mut self, id: OperationId, now: Timestamp) -> bool {
        let Some(record) = self.record_mut(id) else {
            return false;
        };
        let may = match record.state {
            ObservedState::Held => record.locked_until <= now,
            ObservedState::Unknown => true,
            ObservedState::Released(_) | ObservedState::Completed(_) | ObservedState::Evicted => {
                false
            }
        };
        record.state = ObservedState::Unknown;
        may
    }

    /// Checks that swept records had an expired lease.
    pub(crate) fn swept(&mut self, fences: &[Fence], now: Timestamp) -> Broken {
        let mut broken = Broken::new();
        for fence in fences {
            let held = |record: &ObservedRecord| record.state == ObservedState::Held;
            let was_held = self.record(fence.id).is_some_and(held);
            if !self.mark_unknown(fence.id, now) || !was_held {
                broken.push((
                    CONTRADICTS_RECORD,
                    format!("op{} is swept", number(fence.id)),
                ));
            }
        }
        broken
    }

    /// Records that an execution has a response that is too large to store.
    pub(crate) fn observe_oversized_response(&mut self, id: OperationId) {
        self.too_large.insert(id);
    }

    /// Whether "response not stored" is a correct answer for a key.
    pub(crate) fn may_lack_body(&self, slot: &Slot) -> bool {
        let mut records = self.slots.get(slot).into_iter().flatten();
        records.any(|record| self.too_large.contains(&record.id))
    }

    /// Whether "key expired" is a correct answer for a key.
    pub(crate) fn may_be_expired(&self, slot: &Slot, windows: Windows, now: Timestamp) -> bool {
        let mut records = self.slots.get(slot).into_iter().flatten();
        records.any(|record| record.is_expired(windows, now))
    }
}

impl ObservedRecord {
    /// Whether the record ended and its replay window as well.
    fn is_expired(&self, windows: Windows, now: Timestamp) -> bool {
        match self.state {
            ObservedState::Completed(at) | ObservedState::Released(at) => {
                replay_window_end(windows, at) <= now
            }
            ObservedState::Held | ObservedState::Unknown | ObservedState::Evicted => false,
        }
    }
}

/// The end of the replay window of a record that ended at `ended`.
fn replay_window_end(windows: Windows, ended: Timestamp) -> Timestamp {
    ended.saturating_add(windows.replay)
}
