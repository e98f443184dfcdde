//! The store itself: which lane does what.

use std::sync::Arc;
use std::time::Duration;

use semel_core::history::Entry;
use semel_core::identity::IdentityHash;
use semel_core::store::{Epoch, Hearing, Page, Query, Result, Standing, Which};
use semel_core::transition::{Completion, Decision, Held, Reserve, Resolution, Resolve};
use semel_core::{
    Backoff, By, Clock, Code, Error, Fence, Identity, Inspect, Maintain, OperationId, Owner,
    Record, RecoveryPoint, Resource, Store,
};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use crate::connection::{Connector, Session};
use crate::errand::{Command, Errand, Running, errand};
use crate::error::{Failure, chain, unavailable};
use crate::holder::{Saying, Verb, Word};
use crate::lane::{self, Kind};
use crate::listen::{self, Ears, Line};
use crate::maintenance::{
    ClaimAbandoned, ClaimDue, DeadLetter, DropBodies, Erase, Expire, Judge, Purge, Reveal, Sweep,
    Watch,
};
use crate::queue::{Queue, Refused};
use crate::reader::{Find, FindIdentity, FindResource, History, List, Standings};
use crate::reserve::{Reservation, Reserving};
use crate::time::Time;
use crate::{Options, Postgres, migrate};

/// Connections that reserve, and as many that say how it ended. The second only helps out: two
/// at work from the first call on would halve the groups, and a statement costs as much as ten
/// of its rows.
const LANES: usize = 2;

/// What all clones of a store share.
pub(crate) struct Inner {
    reservations: Arc<Queue<Reservation>>,
    words: Arc<Queue<Word>>,
    /// Looks, verdicts and erasures: one row each.
    pub(crate) errands: Arc<Queue<Box<dyn Errand>>>,
    /// Lists and the workers' batches: a filter may have to pass over millions of rows.
    pub(crate) chores: Arc<Queue<Box<dyn Errand>>>,
    ears: Arc<Ears>,
    time: Arc<Time>,
    pub(crate) identity_hash: fn(&Identity) -> IdentityHash,
}

impl Inner {
    /// Migrates, and starts the lanes on a thread of their own: whatever the application's
    /// runtime is busy with, leases are renewed and outcomes written.
    pub(crate) async fn open(options: Options) -> std::result::Result<Self, crate::Error> {
        let connector = Connector::new(&options.url, options.queries.clone())?;
        let (opened, answer) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("semel-postgres".into())
            .spawn(move || {
                let lanes = LocalSet::new();
                let start = lanes.run_until(Self::start(connector, options));
                let inner = runtime.block_on(start);
                let ended = inner.is_err();
                // Nobody waits any more: then the lanes end, too.
                let _ = opened.send(inner);
                if !ended {
                    runtime.block_on(lanes);
                }
            })?;
        match answer.await {
            Ok(inner) => inner,
            Err(_) => Err(crate::Error::Thread(std::io::Error::other(
                "the thread of the store ended while it started",
            ))),
        }
    }

    async fn start(
        connector: Connector,
        options: Options,
    ) -> std::result::Result<Self, crate::Error> {
        let refused = |error| crate::Error::Connect {
            address: connector.address.clone(),
            reason: chain(&error).into(),
        };
        let mut client = connector.client().await.map_err(refused)?;
        migrate::migrate(&connector, &mut client).await?;
        drop(client);
        let broken = |failure: Failure| match failure {
            Failure::Refused(error) | Failure::Broken(Some(error)) => {
                crate::Error::Start(chain(&*error).into())
            }
            Failure::Broken(None) => crate::Error::Start("it does not answer in time".into()),
            Failure::Corrupt(reason) => crate::Error::Start(reason),
            Failure::Contended => crate::Error::Start("it is busy".into()),
        };
        let first = connector.session().await.map_err(broken)?;
        let inner = Self {
            reservations: Arc::new(Queue::new(Reserving::MOST)),
            words: Arc::new(Queue::new(Saying::MOST)),
            errands: Arc::new(Queue::new(Running::MOST)),
            chores: Arc::new(Queue::new(Running::MOST)),
            ears: Arc::new(Ears::new()),
            time: Arc::new(Time::new(options.clock)),
            identity_hash: options.identity_hash,
        };
        let sent = inner.time.sending();
        let now = inner.time.ask(&first.client, &first.sql.now).await;
        let now = now.map_err(|error| broken(error.into()))?;
        inner.time.heard(sent, now);
        let line = Line::open(&connector, &inner.ears).await.map_err(broken)?;
        let connector = Arc::new(connector);
        spawn_local(listen::run(
            Arc::clone(&connector),
            Arc::downgrade(&inner.ears),
            line,
        ));
        let mut first = Some(first);
        for nth in 0..LANES {
            inner.lane::<Reserving>(&connector, &inner.reservations, nth, first.take());
            inner.lane::<Saying>(&connector, &inner.words, nth, None);
        }
        inner.lane::<Running>(&connector, &inner.errands, 0, None);
        inner.lane::<Running>(&connector, &inner.chores, 0, None);
        Ok(inner)
    }

    fn lane<K: Kind>(
        &self,
        connector: &Arc<Connector>,
        queue: &Arc<Queue<K::Call>>,
        nth: usize,
        first: Option<Session>,
    ) {
        let (connector, time, queue) = (
            Arc::clone(connector),
            Arc::clone(&self.time),
            Arc::clone(queue),
        );
        spawn_local(lane::run::<K>(connector, time, queue, nth, first));
    }

    async fn say(&self, fence: Fence, verb: Verb) -> Result<Held> {
        let (reply, answer) = oneshot::channel();
        let word = Word {
            fence,
            verb,
            reply,
            tries: 0,
        };
        self.words.push(word).map_err(refused)?;
        answer.await.unwrap_or_else(|_| Err(unsettled()))
    }

    pub(crate) async fn send<C: Command>(
        &self,
        queue: &Queue<Box<dyn Errand>>,
        command: C,
    ) -> Result<C::Answer> {
        let (errand, answer) = errand(command);
        queue.push(errand).map_err(refused)?;
        answer.await.unwrap_or_else(|_| Err(unsettled()))
    }
}

/// Lets the lanes finish what was accepted, and end.
impl Drop for Inner {
    fn drop(&mut self) {
        self.reservations.close();
        self.words.close();
        self.errands.close();
        self.chores.close();
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}

fn refused(why: Refused) -> Error {
    match why {
        Refused::Full => unavailable("too many calls wait for PostgreSQL", None),
        Refused::Closed => unavailable("the store is closed; open it again", None),
    }
}

/// Whether a caller was ever told is not known: the thread ended first.
fn unsettled() -> Error {
    Error::Ambiguous {
        reason: "the store's thread ended before it answered".into(),
        source: None,
    }
}

impl Store for Postgres {
    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        let (reply, answer) = oneshot::channel();
        let reservation = Reservation {
            hash: (self.inner.identity_hash)(&request.identity),
            request,
            reply,
            tries: 0,
        };
        self.inner.reservations.push(reservation).map_err(refused)?;
        answer.await.unwrap_or_else(|_| Err(unsettled()))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.time.clock()
    }

    fn epoch(&self) -> Option<Epoch> {
        self.inner.ears.epoch()
    }

    async fn watch(&self, fence: Fence) -> Option<Hearing> {
        let ears = &self.inner.ears;
        if ears.are_deaf() {
            return None;
        }
        let (hearing, first) = ears.wait_for(fence.id);
        if first {
            // If it fails, the end may be missed; whoever waits looks for itself, too.
            self.inner
                .send(&self.inner.errands, Watch(fence))
                .await
                .ok()?;
        }
        Some(hearing)
    }

    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Held> {
        self.inner.say(fence, Verb::Complete(completion)).await
    }

    async fn release(&self, fence: Fence, code: Code) -> Result<Held> {
        self.inner.say(fence, Verb::Release(code)).await
    }

    async fn evict(&self, fence: Fence, code: Code) -> Result<Held> {
        self.inner.say(fence, Verb::Evict(code)).await
    }

    async fn mark_unknown(
        &self,
        fence: Fence,
        code: Code,
        resource: Option<Resource>,
    ) -> Result<Held> {
        let verb = Verb::MarkUnknown(code, resource);
        self.inner.say(fence, verb).await
    }

    async fn heartbeat(&self, fence: Fence, lease: Duration) -> Result<Held> {
        self.inner.say(fence, Verb::Heartbeat(lease)).await
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        self.inner.say(fence, Verb::Advance(point)).await
    }
}

impl Maintain for Postgres {
    async fn sweep(&self, limit: usize) -> Result<Vec<Fence>> {
        self.inner.send(&self.inner.chores, Sweep(limit)).await
    }

    async fn claim_abandoned(
        &self,
        operation: &str,
        owner: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let claim = ClaimAbandoned {
            operation: operation.into(),
            owner,
            lease,
            limit,
        };
        self.inner.send(&self.inner.chores, claim).await
    }

    async fn claim_due(&self, which: Which, backoff: Backoff, limit: usize) -> Result<Vec<Record>> {
        let claim = ClaimDue {
            which,
            backoff,
            limit,
        };
        self.inner.send(&self.inner.chores, claim).await
    }

    async fn resolve(&self, verdict: Resolve) -> Result<Resolution> {
        self.inner.send(&self.inner.errands, Judge(verdict)).await
    }

    async fn dead_letter(&self, fence: Fence, code: Code) -> Result<Resolution> {
        self.inner
            .send(&self.inner.errands, DeadLetter(fence, code))
            .await
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        self.inner.send(&self.inner.chores, Expire(limit)).await
    }

    async fn drop_bodies(&self, limit: usize) -> Result<usize> {
        self.inner.send(&self.inner.chores, DropBodies(limit)).await
    }

    async fn purge(&self, limit: usize) -> Result<usize> {
        self.inner.send(&self.inner.chores, Purge(limit)).await
    }

    async fn erase(&self, id: OperationId, by: By) -> Result<bool> {
        let epoch = self.inner.send(&self.inner.errands, Erase(id, by)).await?;
        if let Some(epoch) = epoch {
            // Here it counts at once; the others hear of it.
            self.inner.ears.erased(epoch);
        }
        Ok(epoch.is_some())
    }

    async fn revealed(&self, id: OperationId, by: By) -> Result<bool> {
        self.inner.send(&self.inner.errands, Reveal(id, by)).await
    }
}

impl Inspect for Postgres {
    async fn find(&self, id: OperationId) -> Result<Option<Record>> {
        self.inner.send(&self.inner.errands, Find(id)).await
    }

    async fn find_identity(&self, identity: &Identity) -> Result<Option<Record>> {
        let hash = (self.inner.identity_hash)(identity);
        let find = FindIdentity(hash, identity.clone());
        self.inner.send(&self.inner.errands, find).await
    }

    async fn find_resource(&self, resource_id: &str) -> Result<Option<Record>> {
        let find = FindResource(resource_id.into());
        self.inner.send(&self.inner.errands, find).await
    }

    async fn history(&self, id: OperationId) -> Result<Vec<Entry>> {
        self.inner.send(&self.inner.errands, History(id)).await
    }

    async fn standing(&self) -> Result<Vec<Standing>> {
        self.inner.send(&self.inner.chores, Standings).await
    }

    async fn list(&self, query: Query) -> Result<Page> {
        self.inner.send(&self.inner.chores, List(query)).await
    }
}
