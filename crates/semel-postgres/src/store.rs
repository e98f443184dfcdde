//! The store: its queues, and which call goes to which.

use std::sync::Arc;

use semel_core::identity::IdentityHash;
use semel_core::store::{RecentKeys, Result};
use semel_core::transition::{Decision, Held, Reserve};
use semel_core::{Error, Fence, Identity};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use crate::command::{Command, Commands, QueuedCommand, queued};
use crate::connection::{Connector, Session};
use crate::connection_worker::{ConnectionWorker, Workload};
use crate::error::unavailable;
use crate::holder::{HolderWrite, HolderWrites, Verb};
use crate::notify::{self, Listening, NotifyHub};
use crate::queue::{Queue, Refused};
use crate::reserve::{Lookups, Reservation, Reservations};
use crate::time::Time;
use crate::{Options, migrate};

/// Workers that reserve, and as many that write for holders. The second only helps: two that share
/// the calls from the start would halve the batches, and a statement costs as much as ten of its
/// rows.
const WORKERS: usize = 2;

/// What all clones of a store share.
pub(crate) struct Inner {
    /// Retries, most of which change nothing.
    lookups: Arc<Queue<Reservation>>,
    reservations: Arc<Queue<Reservation>>,
    recent: RecentKeys,
    holder_writes: Arc<Queue<HolderWrite>>,
    /// Lookups, verdicts and erasures: one row each.
    pub(crate) command_queue: Arc<Queue<Box<dyn QueuedCommand>>>,
    /// Lists and the background jobs' batches: a filter may have to pass over millions of rows.
    pub(crate) batch_queue: Arc<Queue<Box<dyn QueuedCommand>>>,
    pub(crate) notify_hub: Arc<NotifyHub>,
    pub(crate) time: Arc<Time>,
    pub(crate) connector: Arc<Connector>,
    pub(crate) identity_hash: fn(&Identity) -> IdentityHash,
}

impl Inner {
    /// Migrates, and starts the workers on a thread of their own, so that leases are renewed and
    /// outcomes written even while the application's runtime is busy.
    pub(crate) async fn open(options: Options) -> std::result::Result<Self, crate::Error> {
        let time = Arc::new(Time::new(options.clock));
        let connector = Connector::new(&options.url, options.queries, time)?;
        let (opened, answer) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("semel-postgres".into())
            .spawn(move || {
                let workers = LocalSet::new();
                let start = workers.run_until(Self::start(connector, options.identity_hash));
                let inner = runtime.block_on(start);
                let ended = inner.is_err();
                // If the caller was dropped, the queues close and the workers end.
                let _ = opened.send(inner);
                if !ended {
                    runtime.block_on(workers);
                }
            })?;
        match answer.await {
            Ok(inner) => inner,
            Err(_) => Err(crate::Error::Thread(std::io::Error::other(
                "the store's thread ended while it started",
            ))),
        }
    }

    async fn start(
        connector: Connector,
        identity_hash: fn(&Identity) -> IdentityHash,
    ) -> std::result::Result<Self, crate::Error> {
        let address = connector.address.clone();
        let opening = |failure| crate::Error::opening(failure, &address);
        let mut first = connector.connect().await.map_err(opening)?;
        let listening = Listening::connect(&connector).await.map_err(opening)?;
        let probed = connector.refuse_pooler(&first, listening.link());
        probed.await.map_err(opening)?;
        migrate::migrate(&connector.address, &mut first.client).await?;
        let first = connector.set_up(first).await.map_err(opening)?;
        let inner = Self {
            lookups: Arc::new(Queue::new(Lookups::MAX_BATCH)),
            reservations: Arc::new(Queue::new(Reservations::MAX_BATCH)),
            recent: RecentKeys::default(),
            holder_writes: Arc::new(Queue::new(HolderWrites::MAX_BATCH)),
            command_queue: Arc::new(Queue::new(Commands::MAX_BATCH)),
            batch_queue: Arc::new(Queue::new(Commands::MAX_BATCH)),
            notify_hub: Arc::new(NotifyHub::new()),
            time: Arc::clone(&connector.time),
            connector: Arc::new(connector),
            identity_hash,
        };
        let sent = inner.time.sending();
        let now = inner.time.ask(&first.client, &first.sql.now).await;
        let now = now.map_err(|error| opening(error.into()))?;
        inner.time.heard(sent, now);
        let listening = listening.listen(&inner.notify_hub).await.map_err(opening)?;
        let connector = Arc::clone(&inner.connector);
        spawn_local(notify::run(
            Arc::clone(&connector),
            Arc::downgrade(&inner.notify_hub),
            listening,
        ));
        let mut first = Some(first);
        for nth in 0..WORKERS {
            inner.spawn_worker::<Reservations>(&connector, &inner.reservations, nth, first.take());
            inner.spawn_worker::<HolderWrites>(&connector, &inner.holder_writes, nth, None);
        }
        inner.spawn_worker::<Lookups>(&connector, &inner.lookups, 0, None);
        inner.spawn_worker::<Commands>(&connector, &inner.command_queue, 0, None);
        inner.spawn_worker::<Commands>(&connector, &inner.batch_queue, 0, None);
        Ok(inner)
    }

    fn spawn_worker<W: Workload>(
        &self,
        connector: &Arc<Connector>,
        queue: &Arc<Queue<W::Call>>,
        index: usize,
        first: Option<Session>,
    ) {
        let worker = ConnectionWorker::<W> {
            connector: Arc::clone(connector),
            time: Arc::clone(&self.time),
            queue: Arc::clone(queue),
            index,
        };
        spawn_local(worker.run(first));
    }

    /// Asks to execute. A record that this process has seen lately is read first: most retries need
    /// no more.
    pub(crate) async fn reserve(&self, request: Reserve) -> Result<Decision> {
        let hash = (self.identity_hash)(&request.identity);
        let request = Arc::new(request);
        let ask = async |queue: &Queue<Reservation>| {
            let (reply, answer) = oneshot::channel();
            queue.push(Reservation {
                hash,
                request: Arc::clone(&request),
                reply,
                tries: 0,
            })?;
            Ok(answer.await)
        };
        if self.recent.may_know(hash)
            && let Ok(Ok(answer)) = ask(&self.lookups).await
        {
            return answer;
        }
        let answer = ask(&self.reservations).await.map_err(refused)?;
        let decision = answer.unwrap_or_else(|_| Err(unsettled()))?;
        self.recent.note(hash);
        Ok(decision)
    }

    pub(crate) async fn write(&self, fence: Fence, verb: Verb) -> Result<Held> {
        let (reply, answer) = oneshot::channel();
        let write = HolderWrite {
            fence,
            verb,
            reply,
            tries: 0,
        };
        self.holder_writes.push(write).map_err(refused)?;
        answer.await.unwrap_or_else(|_| Err(unsettled()))
    }

    pub(crate) async fn send<C: Command>(
        &self,
        queue: &Queue<Box<dyn QueuedCommand>>,
        command: C,
    ) -> Result<C::Answer> {
        let (command, answer) = queued(command);
        queue.push(command).map_err(refused)?;
        answer.await.unwrap_or_else(|_| Err(unsettled()))
    }
}

/// Lets the workers finish the accepted calls, and end.
impl Drop for Inner {
    fn drop(&mut self) {
        self.lookups.close();
        self.reservations.close();
        self.holder_writes.close();
        self.command_queue.close();
        self.batch_queue.close();
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

/// The error where the thread ended before it answered: the call may have taken effect.
fn unsettled() -> Error {
    Error::Ambiguous {
        reason: "the store's thread ended before it answered".into(),
        source: None,
    }
}
