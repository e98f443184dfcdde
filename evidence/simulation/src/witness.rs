//! Somebody who stands beside the store, hears every call and its answer, and holds them against
//! the promises. It knows no transition function: what it believes of a record it has from what
//! the store itself said.

mod told;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use semel_core::transition::{Grant, Verdict};
use semel_core::{
    Decision, Fence, Fingerprint, Held, Identity, KeyScope, OnExpired, OperationId, Policy,
    Resolution, Resolve, Timestamp,
};

use crate::world::number;

/// What a key belongs to: tenant, command and key, or tenant and key.
pub(crate) type Slot = String;

/// A promise that was broken, and how.
pub(crate) type Broken = Vec<(&'static str, String)>;

/// All that was heard.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    /// The lives of each slot's records, in order.
    pub(crate) slots: BTreeMap<Slot, Vec<Life>>,
    places: HashMap<OperationId, (Slot, usize)>,
    /// Grants that reached whoever asked, and how long that took.
    delivered: HashMap<Fence, Duration>,
    /// Attempts whose execution began.
    started: HashSet<Fence>,
    /// Operations of which an execution answered more than is stored.
    too_large: HashSet<OperationId>,
}

/// What was asked of the store.
pub(crate) struct Asked {
    pub(crate) identity: Identity,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) policy: Policy,
}

/// One record.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) id: OperationId,
    /// What was asked for first.
    fingerprint: Fingerprint,
    /// Whether the one before had its time, so that this is another operation under the old key.
    pub(crate) after_its_time: bool,
    attempt: u32,
    standing: Standing,
    locked_until: Timestamp,
    /// Whether a phase is written down.
    advanced: bool,
    pub(crate) completed: bool,
}

/// Where a record stands, by what was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Held,
    Freed(Timestamp),
    Unknown,
    Done(Timestamp),
    Gone,
}

/// What a holder said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
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
        asked: &Asked,
        decision: &Decision,
        now: Timestamp,
    ) -> Broken {
        let mut broken = self.misused(asked, decision);
        broken.extend(match decision {
            Decision::Execute(grant) => self.granted(asked, grant, now),
            Decision::Resume(grant) => self.resumed(&asked.policy, grant, now),
            Decision::Replay(_)
            | Decision::InProgress(_)
            | Decision::Unknown(_)
            | Decision::KeyMisuse { .. }
            | Decision::Expired(_) => self.told(&asked.policy, decision, now),
        });
        broken
    }

    fn granted(&mut self, asked: &Asked, grant: &Grant, now: Timestamp) -> Broken {
        let (slot, policy) = (slot_of(&asked.identity), &asked.policy);
        let mut broken = Broken::new();
        let Fence { id, attempt } = grant.fence;
        let what = format!("op{} attempt {attempt} of {slot}", number(id));
        let lives = self.slots.entry(slot.clone()).or_default();
        match lives.last_mut() {
            Some(life) if life.id == id => {
                if attempt != life.attempt + 1 {
                    broken.push((
                        "attempts_not_monotone",
                        format!("{what} after {}", life.attempt),
                    ));
                }
                match life.standing {
                    Standing::Freed(_) => {}
                    Standing::Unknown => broken.push(("executed_after_unknown", what)),
                    Standing::Held | Standing::Done(_) | Standing::Gone => {
                        broken.push((
                            "granted_without_proof",
                            format!("{what}: {:?}", life.standing),
                        ));
                    }
                }
                life.attempt = attempt;
                life.standing = Standing::Held;
                life.locked_until = grant.locked_until;
            }
            last => {
                if attempt != 1 {
                    broken.push(("attempts_not_monotone", format!("{what} is the first")));
                }
                let mut after_its_time = false;
                match last.map(|life| life.standing) {
                    None | Some(Standing::Gone) => {}
                    Some(Standing::Done(at) | Standing::Freed(at)) if is_over(policy, at, now) => {
                        after_its_time = true;
                    }
                    Some(Standing::Unknown) => broken.push(("executed_after_unknown", what)),
                    Some(standing) => {
                        broken.push(("granted_without_proof", format!("{what}: {standing:?}")));
                    }
                }
                self.places.insert(id, (slot, lives.len()));
                lives.push(Life {
                    id,
                    fingerprint: asked.fingerprint,
                    after_its_time,
                    attempt,
                    standing: Standing::Held,
                    locked_until: grant.locked_until,
                    advanced: false,
                    completed: false,
                });
            }
        }
        broken
    }

    /// Only what is made of phases is taken from its owner, and only when the lease is over.
    fn resumed(&mut self, policy: &Policy, grant: &Grant, now: Timestamp) -> Broken {
        let Fence { id, attempt } = grant.fence;
        let what = format!("op{} attempt {attempt} goes on", number(id));
        let Some(life) = self.life_mut(id) else {
            return vec![("granted_without_proof", what)];
        };
        let mut broken = Broken::new();
        if attempt != life.attempt + 1 {
            broken.push((
                "attempts_not_monotone",
                format!("{what} after {}", life.attempt),
            ));
        }
        let silent = life.standing == Standing::Held && life.locked_until <= now;
        if !silent || policy.resumes_within().is_none() {
            broken.push((
                "granted_without_proof",
                format!("{what}: {:?}", life.standing),
            ));
        }
        life.attempt = attempt;
        life.standing = Standing::Held;
        life.locked_until = grant.locked_until;
        broken
    }

    pub(crate) fn said(&mut self, said: Said, fence: Fence, held: Held, now: Timestamp) -> Broken {
        match held {
            Held::Applied => {}
            Held::Repeated | Held::Fenced(_) => return Broken::new(),
        }
        let what = format!(
            "{said:?} by op{} attempt {}",
            number(fence.id),
            fence.attempt
        );
        let Some(life) = self.life_mut(fence.id) else {
            return vec![("fence_ignored", format!("{what}: there is no such record"))];
        };
        let late = said == Said::Complete && life.standing == Standing::Unknown;
        let owns = life.attempt == fence.attempt && (life.standing == Standing::Held || late);
        let broken = if owns {
            Broken::new()
        } else {
            vec![(
                "fence_ignored",
                format!("{what}: it is {:?} at {}", life.standing, life.attempt),
            )]
        };
        life.standing = match said {
            Said::Complete => Standing::Done(now),
            Said::Evict if life.attempt == 1 && !life.advanced => Standing::Gone,
            Said::Release | Said::Evict => Standing::Freed(now),
            Said::MarkUnknown => Standing::Unknown,
            Said::Heartbeat(_) | Said::Advance => life.standing,
        };
        if let Said::Heartbeat(lease) = said {
            life.locked_until = life.locked_until.max(now.saturating_add(lease));
        }
        life.advanced |= said == Said::Advance;
        life.completed |= said == Said::Complete;
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
        let Some(life) = self.life_mut(fence.id) else {
            return vec![("fence_ignored", format!("{what}: there is no such record"))];
        };
        let broken = if life.attempt == fence.attempt && life.standing == Standing::Unknown {
            Broken::new()
        } else {
            vec![(
                "fence_ignored",
                format!("{what}: it is {:?} at {}", life.standing, life.attempt),
            )]
        };
        match verdict.verdict {
            Verdict::Completed(_) => {
                life.standing = Standing::Done(now);
                life.completed = true;
            }
            Verdict::NotExecuted(_) => life.standing = Standing::Freed(now),
            Verdict::StillUnknown(..) => {}
        }
        broken
    }

    /// A grant reached whoever asked for it, so long after it was asked for.
    pub(crate) fn delivered(&mut self, grant: &Grant, took: Duration) {
        self.delivered.insert(grant.fence, took);
    }

    /// An execution begins.
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

    /// Whether the operation's end was written.
    pub(crate) fn is_completed(&self, id: OperationId) -> bool {
        self.life(id).is_some_and(|life| life.completed)
    }

    /// Every record there ever was.
    pub(crate) fn ids(&self) -> Vec<OperationId> {
        self.slots.values().flatten().map(|life| life.id).collect()
    }

    /// Records that share one operation: those that began before the one before had its time.
    pub(crate) fn eras(&self) -> Vec<(Slot, Vec<OperationId>)> {
        let mut eras: Vec<(Slot, Vec<OperationId>)> = Vec::new();
        for (slot, lives) in &self.slots {
            for (at, life) in lives.iter().enumerate() {
                match eras.last_mut() {
                    Some((_, ids)) if at > 0 && !life.after_its_time => ids.push(life.id),
                    Some(_) | None => eras.push((slot.clone(), vec![life.id])),
                }
            }
        }
        eras
    }

    /// Whether the record was forgotten because nothing had happened.
    pub(crate) fn is_gone(&self, id: OperationId) -> bool {
        self.life(id)
            .is_some_and(|life| life.standing == Standing::Gone)
    }

    fn life(&self, id: OperationId) -> Option<&Life> {
        let (slot, at) = self.places.get(&id)?;
        self.slots.get(slot)?.get(*at)
    }

    fn life_mut(&mut self, id: OperationId) -> Option<&mut Life> {
        let (slot, at) = self.places.get(&id)?;
        self.slots.get_mut(slot)?.get_mut(*at)
    }
}

/// Whether nothing need be remembered any more of what ended then.
fn is_over(policy: &Policy, ended: Timestamp, now: Timestamp) -> bool {
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
