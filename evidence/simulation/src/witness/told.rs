//! What is told of a record that nobody is given: each only where it is so, by what was heard.

use semel_core::{Decision, Fence, OnExpired, OperationId, Policy, Timestamp, Windows};

use super::{Asked, Broken, Life, Slot, Standing, Witness, slot_of};
use crate::world::number;

/// The promise that a decision is about the record as it is.
const AGAINST: &str = "decided_against_the_record";

impl Witness {
    /// Whoever asks for the same is never told of misuse, and whoever asks for something else is
    /// told of nothing but that.
    pub(super) fn misused(&self, asked: &Asked, decision: &Decision) -> Broken {
        let (id, told) = match decision {
            Decision::Execute(grant) | Decision::Resume(grant) => (grant.fence.id, false),
            Decision::Replay(replay) => (replay.id, false),
            Decision::InProgress(running) => (running.fence.id, false),
            Decision::Unknown(unknown) => (unknown.id, false),
            Decision::Expired(expired) => (expired.id, false),
            Decision::KeyMisuse { id } => (*id, true),
        };
        // A record that is not known yet begins with this.
        let Some(life) = self.life(id) else {
            return Broken::new();
        };
        let what = format!(
            "op{} was asked for by {}",
            number(id),
            slot_of(&asked.identity)
        );
        match (told, life.fingerprint == asked.fingerprint) {
            (false, true) | (true, false) => Broken::new(),
            (false, false) => vec![("misuse_accepted", format!("{what}, which is another"))],
            (true, true) => vec![(AGAINST, format!("{what}: misuse, of the same"))],
        }
    }

    /// What is told of a record that nobody is given: each only where it is so.
    pub(super) fn told(&mut self, policy: &Policy, decision: &Decision, now: Timestamp) -> Broken {
        let (id, right) = match decision {
            Decision::Replay(replay) => {
                let done = |life: &Life| match life.standing {
                    Standing::Done(at) => now < window_over(policy.windows, at),
                    Standing::Held | Standing::Freed(_) | Standing::Unknown | Standing::Gone => {
                        false
                    }
                };
                let id = replay.id;
                if replay.response.body.is_none() && !self.too_large.contains(&id) {
                    let how = format!("op{} is replayed without its body", number(id));
                    return vec![("bodies_lost", how)];
                }
                (id, self.life(id).is_some_and(done))
            }
            Decision::InProgress(running) => {
                let fence = running.fence;
                let held = |life: &Life| {
                    let held = life.standing == Standing::Held && now < life.locked_until;
                    held && life.attempt == fence.attempt
                };
                (fence.id, self.life(fence.id).is_some_and(held))
            }
            // Asking may have been what made it unknown.
            Decision::Unknown(unknown) => (unknown.id, self.lose(unknown.id, now)),
            Decision::Expired(expired) => {
                let over = |life: &Life| life.is_over(policy.windows, now);
                let rejects = policy.on_expired == OnExpired::Reject;
                (
                    expired.id,
                    rejects && self.life(expired.id).is_some_and(over),
                )
            }
            Decision::Execute(_) | Decision::Resume(_) | Decision::KeyMisuse { .. } => {
                return Broken::new();
            }
        };
        if right {
            return Broken::new();
        }
        let life = self.life(id).map(|life| (life.standing, life.locked_until));
        vec![(AGAINST, format!("{decision:?} at {now:?}: it is {life:?}"))]
    }

    /// A silent owner's record is unknown; whether it may be.
    fn lose(&mut self, id: OperationId, now: Timestamp) -> bool {
        let Some(life) = self.life_mut(id) else {
            return false;
        };
        let may = match life.standing {
            Standing::Held => life.locked_until <= now,
            Standing::Unknown => true,
            Standing::Freed(_) | Standing::Done(_) | Standing::Gone => false,
        };
        life.standing = Standing::Unknown;
        may
    }

    /// The sweeper takes only what has a silent owner.
    pub(crate) fn swept(&mut self, fences: &[Fence], now: Timestamp) -> Broken {
        let mut broken = Broken::new();
        for fence in fences {
            let held = |life: &Life| life.standing == Standing::Held;
            let was_held = self.life(fence.id).is_some_and(held);
            if !self.lose(fence.id, now) || !was_held {
                broken.push((AGAINST, format!("op{} is swept", number(fence.id))));
            }
        }
        broken
    }

    /// An execution answers with more than is stored.
    pub(crate) fn answers_too_much(&mut self, id: OperationId) {
        self.too_large.insert(id);
    }

    /// Whether a client may be told that the answer under a key was not stored.
    pub(crate) fn may_lack_body(&self, slot: &Slot) -> bool {
        let mut lives = self.slots.get(slot).into_iter().flatten();
        lives.any(|life| self.too_large.contains(&life.id))
    }

    /// Whether a client may be told that the time of a key is over.
    pub(crate) fn may_be_over(&self, slot: &Slot, windows: Windows, now: Timestamp) -> bool {
        let mut lives = self.slots.get(slot).into_iter().flatten();
        lives.any(|life| life.is_over(windows, now))
    }
}

impl Life {
    /// Whether it ended, and its window with it.
    fn is_over(&self, windows: Windows, now: Timestamp) -> bool {
        match self.standing {
            Standing::Done(at) | Standing::Freed(at) => window_over(windows, at) <= now,
            Standing::Held | Standing::Unknown | Standing::Gone => false,
        }
    }
}

/// When the replay window is over of what ended then.
fn window_over(windows: Windows, ended: Timestamp) -> Timestamp {
    ended.saturating_add(windows.replay)
}
