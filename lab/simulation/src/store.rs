//! The store that all processes share: the memory store, observed by the witness. A test may remove
//! one of its guards.

mod backend;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::store::{Backend as _, Result};
use semel_core::{
    Actor, Code, Completion, Decision, Fence, Held, Identity, Key, Memory, OperationId,
    RecoveryPoint, Reserve, Resolution, Resolve, Resource, Response, State, Store as _, Verdict,
};

use crate::Sabotage;
use crate::scenario::{Scenario, lock, number};
use crate::witness::{HolderWrite, Reservation, slot_of};

/// The store. Every call takes effect at once; [`StoreConnection`](crate::connection::StoreConnection)
/// delays and loses calls.
pub(crate) struct SharedStore {
    scenario: Arc<Scenario>,
    memory: Memory,
    damage: Mutex<Damage>,
}

/// The wrong state of a store without a guard.
#[derive(Default)]
struct Damage {
    /// How often each slot was wrongly forgotten.
    forgotten: HashMap<String, u32>,
    /// Responses that replaced others.
    replaced: HashMap<OperationId, Response>,
    replays: u32,
}

impl SharedStore {
    pub(crate) fn new(scenario: Arc<Scenario>) -> Self {
        Self {
            memory: Memory::new(scenario.clock.clone()),
            scenario,
            damage: Mutex::default(),
        }
    }

    fn is_sabotaged(&self, sabotage: Sabotage) -> bool {
        self.scenario.sabotage == sabotage
    }

    /// The identity under which a store without a guard looks.
    fn lookup_identity(&self, identity: Identity) -> Identity {
        let tenant = if self.is_sabotaged(Sabotage::IgnoresTenants) {
            "anybody"
        } else {
            identity.tenant()
        };
        let forgotten = lock(&self.damage)
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
        *lock(&self.damage).forgotten.entry(slot).or_default() += 1;
    }

    /// Changes a request as a store without a guard would.
    async fn weaken_request(&self, request: &mut Reserve) -> Result<()> {
        let found = self.memory.find_identity(&request.identity).await?;
        let Some(record) = found else { return Ok(()) };
        if self.is_sabotaged(Sabotage::IgnoresFingerprints) {
            request.fingerprints = record.fingerprint.into();
        }
        if let State::InProgress(lease) = &record.state
            && self.is_sabotaged(Sabotage::ReexecutesExpiredLeases)
            && lease.locked_until <= self.memory.clock().now()
        {
            self.memory.release(record.fence(), "silent".into()).await?;
        }
        Ok(())
    }

    /// Changes a decision as a store without a guard would.
    fn distort_decision(&self, decision: Decision) -> Decision {
        match decision {
            Decision::Replay(mut replay) => {
                let mut damage = lock(&self.damage);
                if let Some(response) = damage.replaced.get(&replay.id) {
                    replay.response = response.clone();
                }
                if self.is_sabotaged(Sabotage::AltersReplays) {
                    damage.replays += 1;
                    let etag = format!("\"{}\"", damage.replays);
                    replay
                        .response
                        .headers
                        .retain(|(name, _)| &**name != "etag");
                    replay.response.headers.push(("etag".into(), etag.into()));
                }
                Decision::Replay(replay)
            }
            Decision::Execute(mut grant) => {
                if self.is_sabotaged(Sabotage::RepeatsAttempts) && grant.fence.attempt > 1 {
                    grant.fence.attempt -= 1;
                }
                Decision::Execute(grant)
            }
            other @ (Decision::Resume(_)
            | Decision::InProgress(_)
            | Decision::Unknown(_)
            | Decision::KeyMisuse { .. }
            | Decision::OtherRules { .. }
            | Decision::Expired(_)) => other,
        }
    }

    /// The fence that the store uses: the current one, where it ignores the caller's.
    async fn accepted_fence(&self, fence: Fence) -> Result<Fence> {
        let ignores = self.is_sabotaged(Sabotage::IgnoresFences)
            || self.is_sabotaged(Sabotage::RepeatsAttempts);
        if !ignores {
            return Ok(fence);
        }
        let found = self.memory.find(fence.id).await?;
        Ok(found.map_or(fence, |record| record.fence()))
    }

    /// Shows a holder's write and its answer to the witness.
    fn observe_write(&self, write: HolderWrite, fence: Fence, held: Result<Held>) -> Result<Held> {
        if let Ok(held) = &held {
            let now = self.memory.clock().now();
            self.scenario.record_event(format_args!(
                "store: {write:?} by op{} attempt {}: {held:?}",
                number(fence.id),
                fence.attempt
            ));
            let broken = lock(&self.scenario.witness).observe_write(write, fence, *held, now);
            self.scenario.violate_all(broken);
        }
        held
    }
}

impl SharedStore {
    async fn reserve(&self, mut request: Reserve) -> Result<Decision> {
        let reservation = Reservation {
            identity: request.identity.clone(),
            fingerprint: request.fingerprints.newest(),
            policy: request.policy.clone(),
        };
        request.identity = self.lookup_identity(request.identity);
        self.weaken_request(&mut request).await?;
        let decision = self.distort_decision(self.memory.reserve(request).await?);
        let now = self.memory.clock().now();
        self.scenario.record_event(format_args!(
            "store: Reserve of {}: {}",
            slot_of(&reservation.identity),
            describe(&decision)
        ));
        let broken = lock(&self.scenario.witness).reserved(&reservation, &decision, now);
        self.scenario.violate_all(broken);
        Ok(decision)
    }

    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Held> {
        let accepted = self.accepted_fence(fence).await?;
        let response = completion.response.clone();
        if self.is_sabotaged(Sabotage::AcknowledgesBeforeWriting)
            && self.scenario.draw(|rng| rng.in_thousand(100))
        {
            return Ok(Held::Applied);
        }
        let mut held = self.memory.complete(accepted, completion).await;
        if self.is_sabotaged(Sabotage::OverwritesAnswers)
            && let Ok(Held::Fenced(fenced)) = &held
            && fenced
                .found
                .is_some_and(|(status, _)| status == semel_core::Status::Completed)
        {
            lock(&self.damage).replaced.insert(fence.id, response);
            held = Ok(Held::Repeated);
        }
        self.observe_write(HolderWrite::Complete, fence, held)
    }

    async fn release(&self, fence: Fence, code: Code) -> Result<Held> {
        let accepted = self.accepted_fence(fence).await?;
        let held = self.memory.release(accepted, code).await;
        self.observe_write(HolderWrite::Release, fence, held)
    }

    async fn evict(&self, fence: Fence, code: Code) -> Result<Held> {
        let accepted = self.accepted_fence(fence).await?;
        let record = self.memory.find(fence.id).await?;
        let held = self.memory.evict(accepted, code).await;
        if self.is_sabotaged(Sabotage::ForgetsLaterAttempts)
            && fence.attempt > 1
            && let (Some(record), Ok(Held::Applied)) = (record, &held)
        {
            let identity = &record.identity;
            // The key of a later record is derived from that of the first.
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
        self.observe_write(HolderWrite::Evict, fence, held)
    }

    async fn mark_unknown(
        &self,
        fence: Fence,
        code: Code,
        resource: Option<Resource>,
    ) -> Result<Held> {
        let accepted = self.accepted_fence(fence).await?;
        let held = self.memory.mark_unknown(accepted, code, resource).await;
        self.observe_write(HolderWrite::MarkUnknown, fence, held)
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        let accepted = self.accepted_fence(fence).await?;
        let held = self.memory.advance(accepted, point).await;
        self.observe_write(HolderWrite::Advance, fence, held)
    }

    async fn heartbeat(&self, fence: Fence, lease: Duration) -> Result<Held> {
        let accepted = self.accepted_fence(fence).await?;
        let held = self.memory.heartbeat(accepted, lease).await;
        self.observe_write(HolderWrite::Heartbeat(lease), fence, held)
    }

    async fn sweep(&self, limit: usize) -> Result<Vec<Fence>> {
        let swept = self.memory.sweep(limit).await?;
        for fence in &swept {
            let id = number(fence.id);
            self.scenario
                .record_event(format_args!("store: sweeps op{id}"));
            if self.is_sabotaged(Sabotage::ReleasesSweptRecords) {
                let verdict = Resolve {
                    fence: *fence,
                    verdict: Verdict::NotExecuted("silent".into()),
                    by: Actor::from("sweeper"),
                    evidence: None,
                };
                self.memory.resolve(verdict).await?;
            }
        }
        let now = self.memory.clock().now();
        let broken = lock(&self.scenario.witness).swept(&swept, now);
        self.scenario.violate_all(broken);
        Ok(swept)
    }

    async fn resolve(&self, verdict: Resolve) -> Result<Resolution> {
        let verdict_given = verdict.clone();
        let resolution = self.memory.resolve(verdict).await?;
        let now = self.memory.clock().now();
        let Fence { id, attempt } = verdict_given.fence;
        let what = match &verdict_given.verdict {
            Verdict::Completed(_) => "completed",
            Verdict::NotExecuted(_) => "not executed",
            Verdict::StillUnknown(..) => "still unknown",
        };
        let (id, by) = (number(id), &verdict_given.by.who);
        self.scenario.record_event(format_args!(
            "store: {by} resolves op{id} attempt {attempt}: {what}: {resolution:?}"
        ));
        let broken = lock(&self.scenario.witness).resolved(&verdict_given, resolution, now);
        self.scenario.violate_all(broken);
        Ok(resolution)
    }

    async fn dead_letter(&self, fence: Fence, code: Code) -> Result<Resolution> {
        let id = number(fence.id);
        self.scenario
            .record_event(format_args!("store: dead-letters op{id}"));
        self.memory.dead_letter(fence, code).await
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        if self.is_sabotaged(Sabotage::PrunesUnknowns) {
            let ids = lock(&self.scenario.witness).ids();
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

fn describe(decision: &Decision) -> String {
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
        Decision::OtherRules { id, .. } => format!("op{} has other rules", number(*id)),
        Decision::Expired(expired) => format!("op{} is expired", number(expired.id)),
    }
}
