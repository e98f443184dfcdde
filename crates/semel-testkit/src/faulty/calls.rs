//! Every call of a store, with the fault that is planned for it.

use std::time::Duration;

use semel_core::figures::{Activity, Census, Misuse, Survey};
use semel_core::history::Entry;
use semel_core::inbox::{Handling, Message, Parked, Receipt};
use semel_core::outbox::{Backlog, DeadEvent, EventId, Waiting};
use semel_core::store::{Page, Query, Result, Standing, Which};
use semel_core::{
    Backoff, By, Code, Completion, Decision, Fence, Figures, Held, Identity, Inbox, Inspect,
    Maintain, OperationId, Outbox, Owner, Record, RecoveryPoint, Reserve, Resolution, Resolve,
    Resource, Store, Timestamp,
};

use super::{Faulty, Verb};

macro_rules! faulty_calls {
    ($($verb:ident: $name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(async fn $name(&self, $($arg: $kind),*) -> Result<$answer> {
            self.call(Verb::$verb, |inner| async move { inner.$name($($arg),*).await }).await
        })*
    };
}

impl<S: Store> Store for Faulty<S> {
    // No glance: every request is to meet its fault.
    semel_core::forward!([inner] clock epoch watch prepare prepare_point);

    faulty_calls! {
        Reserve: reserve(request: Reserve) -> Decision;
        Complete: complete(fence: Fence, completion: Completion) -> Held;
        Release: release(fence: Fence, code: Code) -> Held;
        Evict: evict(fence: Fence, code: Code) -> Held;
        MarkUnknown: mark_unknown(fence: Fence, code: Code, resource: Option<Resource>) -> Held;
        Heartbeat: heartbeat(fence: Fence, lease: Duration) -> Held;
        Advance: advance(fence: Fence, point: RecoveryPoint) -> Held;
    }
}

impl<S: Maintain> Maintain for Faulty<S> {
    faulty_calls! {
        Sweep: sweep(limit: usize) -> Vec<Fence>;
        Resolve: resolve(verdict: Resolve) -> Resolution;
        DeadLetter: dead_letter(fence: Fence, code: Code) -> Resolution;
        Expire: expire(limit: usize) -> usize;
        DropBodies: drop_bodies(limit: usize) -> usize;
        Purge: purge(limit: usize) -> usize;
        Erase: erase(id: OperationId, by: By) -> bool;
        Revealed: revealed(id: OperationId, by: By) -> bool;
        ClaimDue: claim_due(which: Which, backoff: Backoff, limit: usize) -> Vec<Record>;
    }

    async fn claim_abandoned(
        &self,
        operation: &str,
        owner: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let operation = operation.to_owned();
        self.call(Verb::ClaimAbandoned, |inner| async move {
            let claimed = inner.claim_abandoned(&operation, owner, lease, limit);
            claimed.await
        })
        .await
    }
}

impl<S: Inspect> Inspect for Faulty<S> {
    faulty_calls! {
        Find: find(id: OperationId) -> Option<Record>;
        List: list(query: Query) -> Page;
        History: history(id: OperationId) -> Vec<Entry>;
        Standing: standing() -> Vec<Standing>;
    }

    semel_core::forward!([inner] reveal);

    async fn find_identity(&self, identity: &Identity) -> Result<Option<Record>> {
        let identity = identity.clone();
        self.call(Verb::FindIdentity, |inner| async move {
            inner.find_identity(&identity).await
        })
        .await
    }

    async fn find_resource(&self, resource_id: &str) -> Result<Option<Record>> {
        let resource_id = resource_id.to_owned();
        self.call(Verb::FindResource, |inner| async move {
            inner.find_resource(&resource_id).await
        })
        .await
    }
}

impl<S: Inbox> Inbox for Faulty<S> {
    faulty_calls! {
        Receive: receive(message: Message, handling: Handling) -> Receipt;
        ClaimParked: claim_parked(backoff: Backoff, limit: usize) -> Vec<Parked>;
        Forget: forget(limit: usize) -> usize;
    }

    async fn settle(&self, source: &str, id: &str) -> Result<()> {
        let (source, id) = (source.to_owned(), id.to_owned());
        self.call(Verb::Settle, |inner| async move {
            inner.settle(&source, &id).await
        })
        .await
    }
}

impl<S: Figures> Figures for Faulty<S> {
    faulty_calls! {
        Count: count(activity: Vec<Activity>, misuses: Vec<Misuse>) -> ();
        Activity: activity(since: Timestamp) -> Vec<Activity>;
        Survey: survey(after: Option<OperationId>, limit: usize) -> Survey;
        PublishCensus: publish_census(census: Census) -> ();
        Census: census() -> Option<Census>;
    }

    semel_core::forward!([inner] misuses meet count_alone find_key forget_activity forget_misuses);
}

impl<S: Outbox> Outbox for Faulty<S> {
    faulty_calls! {
        ClaimEvents: claim_events(relay: Owner, lease: Duration, limit: usize) -> Vec<Waiting>;
        MarkSent: mark_sent(events: Vec<EventId>) -> ();
        DeadEvents: dead_events(limit: usize) -> Vec<DeadEvent>;
        Revive: revive(event: EventId) -> bool;
        Backlog: backlog() -> Backlog;
        StandDown: stand_down(relay: Owner) -> ();
    }

    async fn hold_back(&self, event: EventId, reason: &str, backoff: Backoff) -> Result<()> {
        let reason = reason.to_owned();
        self.call(Verb::HoldBack, |inner| async move {
            inner.hold_back(event, &reason, backoff).await
        })
        .await
    }

    async fn set_aside(&self, event: EventId, reason: &str) -> Result<()> {
        let reason = reason.to_owned();
        self.call(Verb::SetAside, |inner| async move {
            inner.set_aside(event, &reason).await
        })
        .await
    }
}
