//! The way from a process to the store, on which calls are lost, late and slow.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use semel_core::history::Entry;
use semel_core::store::{Error, Page, Query, Result, Standing, Which};
use semel_core::transition::Grant;
use semel_core::{
    Backoff, By, Clock as _, Code, Completion, Decision, Fence, Held, Inbox, Inspect, Maintain,
    OperationId, Owner, Record, RecoveryPoint, Reserve, Resolution, Resolve, Resource, Store,
};
use tokio::time::{Instant, sleep};

use crate::Sabotage;
use crate::jostle::jostled;
use crate::process::Process;
use crate::store::Shared;
use crate::world::{Fate, World, lock};

/// One process's connection to the store. Every call meets a fate that the seed decides.
#[derive(Clone)]
pub(crate) struct Wire {
    pub(crate) world: Arc<World>,
    pub(crate) process: Arc<Process>,
    pub(crate) shared: Arc<Shared>,
}

impl Wire {
    async fn call<T, F>(&self, verb: &'static str, perform: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        jostled(&self.world, self.travel(verb, perform)).await
    }

    async fn travel<T, F>(&self, verb: &'static str, perform: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.process.step().await;
        let fate = self.world.fate();
        let who = &self.process.name;
        let told = |what: &str| self.world.tell(format_args!("{who}: {verb}: {what}"));
        let answer = match fate {
            Fate::Fine { before, after } => {
                sleep(before).await;
                self.process.step().await;
                let answer = perform.await;
                sleep(after).await;
                answer
            }
            Fate::Fails { before } => {
                sleep(before).await;
                told("fails before it is performed");
                Err(unavailable())
            }
            Fate::Lost { before } => {
                sleep(before).await;
                self.process.step().await;
                told("is performed, and its answer lost");
                perform.await.and_then(|_| Err(ambiguous()))
            }
            Fate::Late { before, by } => {
                told("will land late");
                let landing = jostled(&self.world, async move {
                    sleep(by).await;
                    drop(perform.await);
                });
                drop(tokio::spawn(landing));
                sleep(before).await;
                Err(ambiguous())
            }
            Fate::Slow { by, then } => {
                told("is slow");
                let performing = jostled(&self.world, async move {
                    sleep(by).await;
                    let answer = perform.await;
                    sleep(then).await;
                    answer
                });
                tokio::spawn(performing)
                    .await
                    .unwrap_or_else(|_| Err(ambiguous()))
            }
        };
        self.process.step().await;
        answer
    }

    /// A fence as the store knows it.
    fn named(&self, fence: Fence) -> Fence {
        Fence {
            id: self.world.name(fence.id),
            ..fence
        }
    }
}

fn unavailable() -> Error {
    Error::Unavailable {
        reason: "the seed says so".into(),
        source: None,
    }
}

fn ambiguous() -> Error {
    Error::Ambiguous {
        reason: "the seed says so".into(),
        source: None,
    }
}

macro_rules! calls {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(async fn $name(&self, $($arg: $kind),*) -> Result<$answer> {
            let shared = Arc::clone(&self.shared);
            self.call(stringify!($name), async move { shared.$name($($arg),*).await }).await
        })*
    };
}

macro_rules! fenced_calls {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(async fn $name(&self, fence: Fence, $($arg: $kind),*) -> Result<$answer> {
            let (shared, fence) = (Arc::clone(&self.shared), self.named(fence));
            self.call(stringify!($name), async move { shared.$name(fence, $($arg),*).await }).await
        })*
    };
}

impl Store for Wire {
    semel_core::forward!([shared] clock epoch watch prepare prepare_point);

    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        let asked_at = Instant::now();
        let (id, lease) = (self.world.christen(request.id), request.policy.lease);
        let request = Reserve { id, ..request };
        let shared = Arc::clone(&self.shared);
        let asked = self.call("reserve", async move { shared.reserve(request).await });
        match asked.await {
            // The guard is gone: an error is taken for leave.
            Err(_) if self.world.sabotage == Sabotage::FailsOpen => Ok(Decision::Execute(Grant {
                fence: Fence { id, attempt: 1 },
                locked_until: self.world.clock.now().saturating_add(lease),
                recovery: None,
            })),
            Ok(Decision::Execute(grant)) => {
                lock(&self.world.witness).delivered(&grant, asked_at.elapsed());
                Ok(Decision::Execute(grant))
            }
            Ok(Decision::Resume(grant)) => {
                lock(&self.world.witness).delivered(&grant, asked_at.elapsed());
                Ok(Decision::Resume(grant))
            }
            answer @ (Ok(_) | Err(_)) => answer,
        }
    }

    fenced_calls! {
        complete(completion: Completion) -> Held;
        release(code: Code) -> Held;
        evict(code: Code) -> Held;
        mark_unknown(code: Code, resource: Option<Resource>) -> Held;
        heartbeat(lease: Duration) -> Held;
        advance(point: RecoveryPoint) -> Held;
    }
}

impl Maintain for Wire {
    calls! {
        sweep(limit: usize) -> Vec<Fence>;
        claim_due(which: Which, backoff: Backoff, limit: usize) -> Vec<Record>;
        resolve(verdict: Resolve) -> Resolution;
        expire(limit: usize) -> usize;
        drop_bodies(limit: usize) -> usize;
        purge(limit: usize) -> usize;
        erase(id: OperationId, by: By) -> bool;
        revealed(id: OperationId, by: By) -> bool;
    }

    fenced_calls! {
        dead_letter(code: Code) -> Resolution;
    }

    async fn claim_abandoned(
        &self,
        operation: &str,
        owner: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let (shared, operation) = (Arc::clone(&self.shared), operation.to_owned());
        self.call("claim_abandoned", async move {
            shared
                .claim_abandoned(&operation, owner, lease, limit)
                .await
        })
        .await
    }
}

impl Inspect for Wire {
    semel_core::forward!([shared] find_identity find_resource reveal);

    calls! {
        find(id: OperationId) -> Option<Record>;
        history(id: OperationId) -> Vec<Entry>;
        standing() -> Vec<Standing>;
        list(query: Query) -> Page;
    }
}

impl Inbox for Wire {
    semel_core::forward!([shared] receive settle claim_parked forget);
}
