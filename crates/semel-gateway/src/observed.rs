//! What happens to operations in this process, told to whoever listens.

use std::time::Duration;

use semel_core::store::Result;
use semel_core::{
    Code, Completion, Decision, Fence, Figures, Held, Inbox, Inspect, Maintain, Outbox, Owner,
    Record, RecoveryPoint, Reserve, Resolution, Resolve, Resource, Status, Store, Timestamp,
    Verdict,
};
use tokio::sync::broadcast;

use crate::activity::Counts;

/// How many transitions a slow listener may be behind. Whoever falls further is told so, and
/// has missed some.
const BEHIND: usize = 1024;

/// One transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The operation and its attempt.
    pub fence: Fence,
    /// Where it stands now; `None` where nothing is remembered.
    pub status: Option<Status>,
    /// What made it so, as the store's verbs are called.
    pub verb: &'static str,
    /// When, by the store's clock.
    pub at: Timestamp,
}

/// The transitions of this process. Other processes tell their own.
#[derive(Clone, Debug)]
pub struct Events(broadcast::Sender<Transition>);

impl Default for Events {
    fn default() -> Self {
        Self(broadcast::Sender::new(BEHIND))
    }
}

impl Events {
    /// All transitions from now on.
    pub fn listen(&self) -> broadcast::Receiver<Transition> {
        self.0.subscribe()
    }
}

/// A store whose changes are told.
#[derive(Clone, Debug)]
pub struct Observed<S> {
    inner: S,
    events: Events,
    counts: Counts,
}

impl<S: Store> Observed<S> {
    /// Tells `events` what changes in a store, and `counts` whose keys are misused.
    pub fn new(inner: S, events: Events, counts: Counts) -> Self {
        Self {
            inner,
            events,
            counts,
        }
    }

    fn tell(&self, fence: Fence, status: Option<Status>, verb: &'static str) {
        // Usually nobody listens, and then this costs nothing.
        if self.events.0.receiver_count() > 0 {
            let at = self.inner.clock().now();
            let _ = self.events.0.send(Transition {
                fence,
                status,
                verb,
                at,
            });
        }
    }

    fn decided(&self, decision: &Decision) {
        match decision {
            Decision::Execute(grant) | Decision::Resume(grant) => {
                self.tell(grant.fence, Some(Status::InProgress), "reserve");
            }
            Decision::KeyMisuse { id } => self.counts.misused(*id, self.inner.clock().now()),
            Decision::Replay(_)
            | Decision::InProgress(_)
            | Decision::Unknown(_)
            | Decision::Expired(_) => {}
        }
    }

    fn held(
        &self,
        fence: Fence,
        held: Result<Held>,
        status: Option<Status>,
        verb: &'static str,
    ) -> Result<Held> {
        match &held {
            Ok(Held::Applied) => self.tell(fence, status, verb),
            Ok(Held::Fenced(fenced)) => {
                self.tell(fence, fenced.found.map(|(status, _)| status), "fenced");
            }
            Ok(Held::Repeated) | Err(_) => {}
        }
        held
    }

    fn resolved(
        &self,
        fence: Fence,
        resolution: Result<Resolution>,
        status: Status,
        verb: &'static str,
    ) -> Result<Resolution> {
        if let Ok(Resolution::Applied) = &resolution {
            self.tell(fence, Some(status), verb);
        }
        resolution
    }
}

impl<S: Store> Store for Observed<S> {
    semel_core::forward!([inner] clock epoch watch prepare prepare_point heartbeat);

    fn glance(&self, request: &Reserve) -> Option<Decision> {
        let decision = self.inner.glance(request)?;
        self.decided(&decision);
        Some(decision)
    }

    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        let decision = self.inner.reserve(request).await?;
        self.decided(&decision);
        Ok(decision)
    }

    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Held> {
        let held = self.inner.complete(fence, completion).await;
        self.held(fence, held, Some(Status::Completed), "complete")
    }

    async fn release(&self, fence: Fence, code: Code) -> Result<Held> {
        let held = self.inner.release(fence, code).await;
        self.held(fence, held, Some(Status::FailedRetryable), "release")
    }

    async fn evict(&self, fence: Fence, code: Code) -> Result<Held> {
        let held = self.inner.evict(fence, code).await;
        self.held(fence, held, None, "evict")
    }

    async fn mark_unknown(
        &self,
        fence: Fence,
        code: Code,
        resource: Option<Resource>,
    ) -> Result<Held> {
        let held = self.inner.mark_unknown(fence, code, resource).await;
        self.held(fence, held, Some(Status::Unknown), "mark_unknown")
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        let held = self.inner.advance(fence, point).await;
        self.held(fence, held, Some(Status::InProgress), "advance")
    }
}

impl<S: Maintain + Store> Maintain for Observed<S> {
    semel_core::forward!([inner] claim_due expire drop_bodies purge erase revealed);

    async fn sweep(&self, limit: usize) -> Result<Vec<Fence>> {
        let swept = self.inner.sweep(limit).await?;
        for fence in &swept {
            self.tell(*fence, Some(Status::Unknown), "sweep");
        }
        Ok(swept)
    }

    async fn claim_abandoned(
        &self,
        operation: &str,
        owner: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let claimed = self.inner.claim_abandoned(operation, owner, lease, limit);
        let claimed = claimed.await?;
        for record in &claimed {
            self.tell(record.fence(), Some(Status::InProgress), "claim_abandoned");
        }
        Ok(claimed)
    }

    async fn resolve(&self, verdict: Resolve) -> Result<Resolution> {
        let fence = verdict.fence;
        let status = match verdict.verdict {
            Verdict::Completed(_) => Status::Completed,
            Verdict::NotExecuted(_) => Status::FailedRetryable,
            Verdict::StillUnknown(..) => Status::Unknown,
        };
        let resolution = self.inner.resolve(verdict).await;
        self.resolved(fence, resolution, status, "resolve")
    }

    async fn dead_letter(&self, fence: Fence, code: Code) -> Result<Resolution> {
        let resolution = self.inner.dead_letter(fence, code).await;
        self.resolved(fence, resolution, Status::Unknown, "dead_letter")
    }
}

impl<S: Inspect> Inspect for Observed<S> {
    semel_core::forward!([inner] find find_identity find_resource history reveal standing list);
}

impl<S: Figures> Figures for Observed<S> {
    semel_core::forward!([inner] count activity misuses survey meet count_alone);
    semel_core::forward!([inner] publish_census census find_key forget_activity forget_misuses);
}

impl<S: Inbox> Inbox for Observed<S> {
    semel_core::forward!([inner] receive settle claim_parked forget);
}

impl<S: Outbox> Outbox for Observed<S> {
    semel_core::forward!([inner] claim_events mark_sent hold_back set_aside);
    semel_core::forward!([inner] dead_events revive backlog stand_down);
}
