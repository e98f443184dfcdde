//! The store that all processes share: the reference store, with a witness beside it, and with one
//! guard removed where somebody wants to see that missed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::store::{Result, Which};
use semel_core::{
    Backoff, By, Code, Completion, Decision, Fence, Held, Identity, Inbox, Inspect, Key, Maintain,
    Memory, OperationId, Record, RecoveryPoint, Reserve, Resolution, Resolve, Resource, Response,
    State, Store, Verdict,
};

use crate::Sabotage;
use crate::witness::{Asked, Said, slot_of};
use crate::world::{World, lock, number};

/// The store. What is done here is done at once; see [`Wire`](crate::wire::Wire) for the way to it.
pub(crate) struct Shared {
    world: Arc<World>,
    memory: Memory,
    broken: Mutex<Damage>,
}

/// What a broken store remembers wrongly.
#[derive(Default)]
struct Damage {
    /// How often a key was forgotten that should not have been.
    forgotten: HashMap<String, u32>,
    /// Ends that replaced others.
    replaced: HashMap<OperationId, Response>,
    replays: u32,
}

impl Shared {
    pub(crate) fn new(world: Arc<World>) -> Self {
        Self {
            memory: Memory::new(world.clock.clone()),
            world,
            broken: Mutex::default(),
        }
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.world.sabotage == sabotage
    }

    /// The identity under which a broken store looks.
    fn looked_up(&self, identity: Identity) -> Identity {
        let tenant = if self.is(Sabotage::IgnoresTenants) {
            "anybody"
        } else {
            identity.tenant()
        };
        let forgotten = lock(&self.broken)
            .forgotten
            .get(&slot_of(&identity))
            .copied();
        let key = match forgotten {
            Some(times) => Key::new(format!("{}~{times}", identity.key().as_str())).ok(),
            None => None,
        };
        let key = key.unwrap_or_else(|| identity.key().clone());
        let scope = identity.scope();
        match Identity::new(tenant, identity.operation(), key) {
            Ok(other) => other.scoped(scope),
            Err(_) => identity,
        }
    }

    fn forget(&self, slot: String) {
        *lock(&self.broken).forgotten.entry(slot).or_default() += 1;
    }

    /// What a broken store does to a request before it looks at it.
    async fn weaken(&self, request: &mut Reserve) -> Result<()> {
        let found = self.memory.find_identity(&request.identity).await?;
        let Some(record) = found else { return Ok(()) };
        if self.is(Sabotage::IgnoresFingerprints) {
            request.fingerprints = record.fingerprint.into();
        }
        if let State::InProgress(lease) = &record.state
            && self.is(Sabotage::ReexecutesExpiredLeases)
            && lease.locked_until <= self.memory.clock().now()
        {
            self.memory.release(record.fence(), "silent".into()).await?;
        }
        Ok(())
    }

    fn distort(&self, decision: Decision) -> Decision {
        match decision {
            Decision::Replay(mut replay) => {
                let mut broken = lock(&self.broken);
                if let Some(response) = broken.replaced.get(&replay.id) {
                    replay.response = response.clone();
                }
                if self.is(Sabotage::AltersReplays) {
                    broken.replays += 1;
                    let etag = format!("\"{}\"", broken.replays);
                    replay
                        .response
                        .headers
                        .retain(|(name, _)| &**name != "etag");
                    replay.response.headers.push(("etag".into(), etag.into()));
                }
                Decision::Replay(replay)
            }
            Decision::Execute(mut grant) => {
                if self.is(Sabotage::RepeatsAttempts) && grant.fence.attempt > 1 {
                    grant.fence.attempt -= 1;
                }
                Decision::Execute(grant)
            }
            other @ (Decision::Resume(_)
            | Decision::InProgress(_)
            | Decision::Unknown(_)
            | Decision::KeyMisuse { .. }
            | Decision::Expired(_)) => other,
        }
    }

    /// The fence that a broken store believes it was told.
    async fn believed(&self, fence: Fence) -> Result<Fence> {
        let ignores = self.is(Sabotage::IgnoresFences) || self.is(Sabotage::RepeatsAttempts);
        if !ignores {
            return Ok(fence);
        }
        let found = self.memory.find(fence.id).await?;
        Ok(found.map_or(fence, |record| record.fence()))
    }

    fn said(&self, said: Said, fence: Fence, held: Result<Held>) -> Result<Held> {
        if let Ok(held) = &held {
            let now = self.memory.clock().now();
            self.world.tell(format_args!(
                "store: {said:?} by op{} attempt {}: {held:?}",
                number(fence.id),
                fence.attempt
            ));
            let broken = lock(&self.world.witness).said(said, fence, *held, now);
            self.world.violate_all(broken);
        }
        held
    }
}

impl Store for Shared {
    semel_core::forward!([memory] clock epoch watch prepare prepare_point);

    async fn reserve(&self, mut request: Reserve) -> Result<Decision> {
        let asked = Asked {
            identity: request.identity.clone(),
            fingerprint: request.fingerprints.newest(),
            policy: request.policy.clone(),
        };
        request.identity = self.looked_up(request.identity);
        self.weaken(&mut request).await?;
        let decision = self.distort(self.memory.reserve(request).await?);
        let now = self.memory.clock().now();
        self.world.tell(format_args!(
            "store: Reserve of {}: {}",
            slot_of(&asked.identity),
            word(&decision)
        ));
        let broken = lock(&self.world.witness).reserved(&asked, &decision, now);
        self.world.violate_all(broken);
        Ok(decision)
    }

    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Held> {
        let believed = self.believed(fence).await?;
        let response = completion.response.clone();
        if self.is(Sabotage::AcknowledgesBeforeWriting)
            && self.world.draw(|rng| rng.in_thousand(100))
        {
            return Ok(Held::Applied);
        }
        let mut held = self.memory.complete(believed, completion).await;
        if self.is(Sabotage::OverwritesAnswers)
            && let Ok(Held::Fenced(fenced)) = &held
            && fenced
                .found
                .is_some_and(|(status, _)| status == semel_core::Status::Completed)
        {
            lock(&self.broken).replaced.insert(fence.id, response);
            held = Ok(Held::Repeated);
        }
        self.said(Said::Complete, fence, held)
    }

    async fn release(&self, fence: Fence, code: Code) -> Result<Held> {
        let believed = self.believed(fence).await?;
        let held = self.memory.release(believed, code).await;
        self.said(Said::Release, fence, held)
    }

    async fn evict(&self, fence: Fence, code: Code) -> Result<Held> {
        let believed = self.believed(fence).await?;
        let record = self.memory.find(fence.id).await?;
        let held = self.memory.evict(believed, code).await;
        if self.is(Sabotage::ForgetsLaterAttempts)
            && fence.attempt > 1
            && let (Some(record), Ok(Held::Applied)) = (record, &held)
        {
            let identity = &record.identity;
            // The name of a later life of the key is made of that of the first.
            let key = identity
                .key()
                .as_str()
                .split('~')
                .next()
                .unwrap_or_default();
            if let Ok(key) = Key::new(key)
                && let Ok(first) = Identity::new(identity.tenant(), identity.operation(), key)
            {
                self.forget(slot_of(&first.scoped(identity.scope())));
            }
        }
        self.said(Said::Evict, fence, held)
    }

    async fn mark_unknown(
        &self,
        fence: Fence,
        code: Code,
        resource: Option<Resource>,
    ) -> Result<Held> {
        let believed = self.believed(fence).await?;
        let held = self.memory.mark_unknown(believed, code, resource).await;
        self.said(Said::MarkUnknown, fence, held)
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        let believed = self.believed(fence).await?;
        let held = self.memory.advance(believed, point).await;
        self.said(Said::Advance, fence, held)
    }

    async fn heartbeat(&self, fence: Fence, lease: Duration) -> Result<Held> {
        let believed = self.believed(fence).await?;
        let held = self.memory.heartbeat(believed, lease).await;
        self.said(Said::Heartbeat(lease), fence, held)
    }
}

impl Maintain for Shared {
    semel_core::forward!([memory] claim_abandoned drop_bodies purge erase revealed);

    async fn sweep(&self, limit: usize) -> Result<Vec<Fence>> {
        let swept = self.memory.sweep(limit).await?;
        for fence in &swept {
            let id = number(fence.id);
            self.world.tell(format_args!("store: sweeps op{id}"));
            if self.is(Sabotage::FreesWhatItSweeps) {
                let verdict = Resolve {
                    fence: *fence,
                    verdict: Verdict::NotExecuted("silent".into()),
                    by: By::from("sweeper"),
                    evidence: None,
                };
                self.memory.resolve(verdict).await?;
            }
        }
        let now = self.memory.clock().now();
        let broken = lock(&self.world.witness).swept(&swept, now);
        self.world.violate_all(broken);
        Ok(swept)
    }

    async fn claim_due(&self, which: Which, backoff: Backoff, limit: usize) -> Result<Vec<Record>> {
        if self.is(Sabotage::NeverLooksAgain) {
            return Ok(Vec::new());
        }
        self.memory.claim_due(which, backoff, limit).await
    }

    async fn resolve(&self, verdict: Resolve) -> Result<Resolution> {
        let said = verdict.clone();
        let resolution = self.memory.resolve(verdict).await?;
        let now = self.memory.clock().now();
        let Fence { id, attempt } = said.fence;
        let what = match &said.verdict {
            Verdict::Completed(_) => "completed",
            Verdict::NotExecuted(_) => "not executed",
            Verdict::StillUnknown(..) => "still unknown",
        };
        let (id, by) = (number(id), &said.by.who);
        self.world.tell(format_args!(
            "store: {by} says of op{id} attempt {attempt}: {what}: {resolution:?}"
        ));
        let broken = lock(&self.world.witness).resolved(&said, resolution, now);
        self.world.violate_all(broken);
        Ok(resolution)
    }

    async fn dead_letter(&self, fence: Fence, code: Code) -> Result<Resolution> {
        let id = number(fence.id);
        self.world.tell(format_args!("store: dead-letters op{id}"));
        self.memory.dead_letter(fence, code).await
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        if self.is(Sabotage::PrunesUnknowns) {
            let ids = lock(&self.world.witness).ids();
            for id in ids {
                let record = self.memory.find(id).await?;
                if let Some(record) = record
                    && let State::Unknown(_) = record.state
                    && !record.identity.key().as_str().contains('~')
                {
                    self.forget(slot_of(&record.identity));
                }
            }
        }
        self.memory.expire(limit).await
    }
}

impl Inspect for Shared {
    semel_core::forward!([memory] find find_identity find_resource history reveal standing list);
}

impl Inbox for Shared {
    semel_core::forward!([memory] receive settle claim_parked forget);
}

fn word(decision: &Decision) -> String {
    match decision {
        Decision::Execute(grant) => {
            format!(
                "execute op{} attempt {}",
                number(grant.fence.id),
                grant.fence.attempt
            )
        }
        Decision::Resume(grant) => format!("resume op{}", number(grant.fence.id)),
        Decision::Replay(replay) => format!("replay op{}", number(replay.id)),
        Decision::InProgress(running) => format!("op{} is in progress", number(running.fence.id)),
        Decision::Unknown(unknown) => format!("op{} is unknown", number(unknown.id)),
        Decision::KeyMisuse { id } => format!("misuse of op{}", number(*id)),
        Decision::Expired(expired) => format!("op{} is expired", number(expired.id)),
    }
}
