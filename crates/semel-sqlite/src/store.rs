//! The store itself: which thread does what.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use semel_core::history::Entry;
use semel_core::identity::IdentityHash;
use semel_core::store::{Epoch, Page, Query, Result, Standing, Which};
use semel_core::transition::{Completion, Decision, Held, Reserve, Resolution, Resolve};
use semel_core::{
    Backoff, By, Clock, Code, Fence, Identity, Inspect, Maintain, OperationId, Owner, Record,
    RecoveryPoint, Resource, Store,
};
use tokio::sync::oneshot;

use crate::checkpoint::Checkpoints;
use crate::error::Error;
use crate::history::History;
use crate::holder::{Advance, Complete, Evict, Heartbeat, MarkUnknown, Release};
use crate::inline::Inline;
use crate::list::List;
use crate::maintenance::{
    ClaimAbandoned, ClaimDue, DeadLetter, DropBodies, Erase, Expire, Judge, Purge, Reveal, Sweep,
};
use crate::queue::{Queue, Refused};
use crate::reader::{Find, FindIdentity, FindResource, Look, Lookup, Peek};
use crate::recent::Recent;
use crate::reserve::Reservation;
use crate::standing::Stand;
use crate::writer::{Call, Command, unsettled};
use crate::{Options, Sqlite, connection, reader, writer};

/// Threads that answer lookups of one record. Two keep a slow read of a cold page from
/// holding up all others.
const READERS: usize = 2;

/// What all clones of a store share.
pub(crate) struct Inner {
    pub(crate) writes: Arc<Queue<Box<dyn Call>>>,
    looks: Arc<Queue<Look>>,
    /// Lists have a thread of their own: a filter may have to pass over millions of rows.
    pub(crate) lists: Arc<Queue<Look>>,
    checkpoints: Arc<Checkpoints>,
    recent: Recent,
    inline: Inline,
    clock: Arc<dyn Clock>,
    /// By this process; others over the same file do not hear of it.
    erasures: AtomicU64,
    answer_from_readers: bool,
    pub(crate) identity_hash: fn(&Identity) -> IdentityHash,
    /// The writer first.
    threads: Vec<JoinHandle<()>>,
}

impl Inner {
    /// Opens all connections and starts the threads, on a thread of its own: opening a file
    /// blocks, and may have a log to recover.
    pub(crate) async fn open(options: Options) -> std::result::Result<Self, Error> {
        let path = options.path.clone();
        let (reply, opened) = oneshot::channel();
        let start = move || {
            let _ = reply.send(Self::start(&options));
        };
        match thread::Builder::new()
            .name("semel-open".into())
            .spawn(start)
        {
            Ok(_) => match opened.await {
                Ok(inner) => inner,
                Err(gone) => Err(Error::Other {
                    path,
                    source: gone.into(),
                }),
            },
            Err(error) => Err(Error::Other {
                path,
                source: error.into(),
            }),
        }
    }

    fn start(options: &Options) -> std::result::Result<Self, Error> {
        let connection = connection::open_writer(options)?;
        let mut inner = Self {
            writes: Arc::new(Queue::new()),
            looks: Arc::new(Queue::new()),
            lists: Arc::new(Queue::new()),
            checkpoints: Arc::new(Checkpoints::new(options.busy_timeout)),
            recent: Recent::new(),
            inline: Inline::open(options)?,
            clock: Arc::clone(&options.clock),
            erasures: AtomicU64::new(0),
            answer_from_readers: options.answer_from_readers,
            identity_hash: options.identity_hash,
            threads: Vec::new(),
        };
        let (queue, checkpoints) = (Arc::clone(&inner.writes), Arc::clone(&inner.checkpoints));
        let (queries, clock) = (options.queries.clone(), Arc::clone(&options.clock));
        inner.spawn(options, "semel-writer", move || {
            // Should the thread end early, callers are told instead of left waiting.
            let _closed = Closed(&queue);
            let _ = writer::run(&connection, &queries, &clock, &queue, &checkpoints);
        })?;
        let lists = Arc::clone(&inner.lists);
        let looks = std::iter::repeat_n(Arc::clone(&inner.looks), READERS);
        for queue in looks.chain([lists]) {
            let connection = connection::open_reader(options)?;
            let queries = options.queries.clone();
            inner.spawn(options, "semel-reader", move || {
                let _closed = Closed(&queue);
                let _ = reader::run(&connection, &queries, &queue);
            })?;
        }
        let connection = connection::open_checkpointer(options)?;
        let checkpoints = Arc::clone(&inner.checkpoints);
        inner.spawn(options, "semel-checkpoint", move || {
            checkpoints.run(&connection);
        })?;
        Ok(inner)
    }

    fn spawn(
        &mut self,
        options: &Options,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> std::result::Result<(), Error> {
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(run)
            .map_err(|error| Error::Other {
                path: options.path.clone(),
                source: error.into(),
            })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Has the writer do something; the answer comes when it is on the disk.
    pub(crate) async fn write<C: Command>(&self, command: C) -> Result<C::Answer> {
        let (call, answer) = writer::call(command);
        self.writes.push(call).map_err(refused)?;
        answer.await.unwrap_or_else(|_| Err(unsettled()))
    }

    /// Has a reader look something up.
    pub(crate) async fn look<L: Lookup>(
        &self,
        queue: &Queue<Look>,
        lookup: L,
    ) -> Result<L::Answer> {
        let (look, answer) = reader::look(lookup);
        queue.push(look).map_err(refused)?;
        answer
            .await
            .unwrap_or_else(|_| Err(refused(Refused::Closed)))
    }

    /// A request's answer, on the caller's own thread, where the row is likely to be at hand.
    fn glance(&self, request: &Reserve) -> Option<Decision> {
        let hash = (self.identity_hash)(&request.identity);
        if !self.answer_from_readers || !self.recent.may_know(hash) {
            return None;
        }
        self.inline.answer(hash, request, || self.clock.now())
    }

    /// A request's answer, from a reader where one is likely to have it.
    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        let hash = (self.identity_hash)(&request.identity);
        let request = Arc::new(request);
        if self.answer_from_readers && self.recent.may_know(hash) {
            let peek = Peek {
                hash,
                request: Arc::clone(&request),
                clock: Arc::clone(&self.clock),
            };
            // Without a reader's answer, for whatever reason, there is the writer's.
            if let Ok(Some(decision)) = self.look(&self.looks, peek).await {
                return Ok(decision);
            }
        }
        let decision = self.write(Reservation { hash, request }).await?;
        self.recent.note(hash);
        Ok(decision)
    }
}

/// Finishes what was accepted, and closes the file.
impl Drop for Inner {
    fn drop(&mut self) {
        self.inline.close();
        self.looks.close();
        self.lists.close();
        self.checkpoints.end();
        // The writer was started first and ends last: it closes a file that nobody else holds,
        // so that SQLite clears the log away.
        while let Some(thread) = self.threads.pop() {
            if self.threads.is_empty() {
                self.writes.close();
            }
            // The application's work may have held the last clone: then the writer is here, and
            // ends by itself once the queue is closed.
            if thread.thread().id() == thread::current().id() {
                continue;
            }
            // A thread that panicked has nothing left to finish.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

/// Closes a queue when its thread ends, however it ends.
struct Closed<'q, T>(&'q Queue<T>);

impl<T> Drop for Closed<'_, T> {
    fn drop(&mut self) {
        self.0.close();
        // What waits will never be done: dropping it tells the callers.
        self.0.take(&mut Vec::new(), usize::MAX);
    }
}

pub(crate) fn refused(why: Refused) -> semel_core::Error {
    let reason = match why {
        Refused::Full => "too many calls wait for the disk",
        Refused::Closed => "the store is closed, or its thread ended; open it again",
    };
    semel_core::Error::Unavailable {
        reason: reason.into(),
        source: None,
    }
}

impl Store for Sqlite {
    fn glance(&self, request: &Reserve) -> Option<Decision> {
        self.inner.glance(request)
    }

    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        self.inner.reserve(request).await
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.inner.clock)
    }

    fn epoch(&self) -> Option<Epoch> {
        Some(Epoch(self.inner.erasures.load(Ordering::SeqCst)))
    }

    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Held> {
        self.inner.write(Complete(fence, completion)).await
    }

    async fn release(&self, fence: Fence, code: Code) -> Result<Held> {
        self.inner.write(Release(fence, code)).await
    }

    async fn evict(&self, fence: Fence, code: Code) -> Result<Held> {
        self.inner.write(Evict(fence, code)).await
    }

    async fn mark_unknown(
        &self,
        fence: Fence,
        code: Code,
        resource: Option<Resource>,
    ) -> Result<Held> {
        self.inner.write(MarkUnknown(fence, code, resource)).await
    }

    async fn heartbeat(&self, fence: Fence, lease: Duration) -> Result<Held> {
        self.inner.write(Heartbeat(fence, lease)).await
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        self.inner.write(Advance(fence, point)).await
    }
}

impl Maintain for Sqlite {
    async fn sweep(&self, limit: usize) -> Result<Vec<Fence>> {
        self.inner.write(Sweep(limit)).await
    }

    async fn claim_abandoned(
        &self,
        operation: &str,
        owner: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let operation = operation.into();
        let claim = ClaimAbandoned {
            operation,
            owner,
            lease,
            limit,
        };
        self.inner.write(claim).await
    }

    async fn claim_due(&self, which: Which, backoff: Backoff, limit: usize) -> Result<Vec<Record>> {
        let claim = ClaimDue {
            which,
            backoff,
            limit,
        };
        self.inner.write(claim).await
    }

    async fn resolve(&self, verdict: Resolve) -> Result<Resolution> {
        self.inner.write(Judge(verdict)).await
    }

    async fn dead_letter(&self, fence: Fence, code: Code) -> Result<Resolution> {
        self.inner.write(DeadLetter(fence, code)).await
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        self.inner.write(Expire(limit)).await
    }

    async fn drop_bodies(&self, limit: usize) -> Result<usize> {
        self.inner.write(DropBodies(limit)).await
    }

    async fn purge(&self, limit: usize) -> Result<usize> {
        self.inner.write(Purge(limit)).await
    }

    async fn erase(&self, id: OperationId, by: By) -> Result<bool> {
        let erased = self.inner.write(Erase(id, by)).await;
        // Counted even where it failed: it may have been written all the same.
        self.inner.erasures.fetch_add(1, Ordering::SeqCst);
        erased
    }

    async fn revealed(&self, id: OperationId, by: By) -> Result<bool> {
        self.inner.write(Reveal(id, by)).await
    }
}

impl Inspect for Sqlite {
    async fn find(&self, id: OperationId) -> Result<Option<Record>> {
        self.inner.look(&self.inner.looks, Find(id)).await
    }

    async fn find_identity(&self, identity: &Identity) -> Result<Option<Record>> {
        let hash = (self.inner.identity_hash)(identity);
        self.inner
            .look(&self.inner.looks, FindIdentity(hash, identity.clone()))
            .await
    }

    async fn find_resource(&self, resource_id: &str) -> Result<Option<Record>> {
        let find = FindResource(resource_id.into());
        self.inner.look(&self.inner.looks, find).await
    }

    async fn history(&self, id: OperationId) -> Result<Vec<Entry>> {
        self.inner.look(&self.inner.looks, History(id)).await
    }

    async fn standing(&self) -> Result<Vec<Standing>> {
        self.inner.look(&self.inner.lists, Stand).await
    }

    async fn list(&self, query: Query) -> Result<Page> {
        self.inner.look(&self.inner.lists, List(query)).await
    }
}
