//! The store: its threads, and which call goes to which.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::{self, JoinHandle};

use semel_core::identity::IdentityHash;
use semel_core::store::{RecentKeys, Result};
use semel_core::transition::{Decision, Reserve};
use semel_core::{Clock, Identity};
use tokio::sync::oneshot;

use crate::checkpoint::Checkpoints;
use crate::error::Error;
use crate::inline_reader::InlineReader;
use crate::queue::{Queue, Refused};
use crate::reader::{DecideWithoutWrite, Lookup, QueuedLookup};
use crate::reserve::Reservation;
use crate::same_file::SameFile;
use crate::writer::{Call, Command, unsettled};
use crate::{Options, connection, reader, writer};

/// Threads that answer lookups of one record. Two keep a slow read of a cold page from
/// holding up all others.
const READERS: usize = 2;

/// What all clones of a store share.
pub(crate) struct Inner {
    pub(crate) writes: Arc<Queue<Box<dyn Call>>>,
    pub(crate) looks: Arc<Queue<QueuedLookup>>,
    /// Lists have a thread of their own: a filter may have to pass over millions of rows.
    pub(crate) lists: Arc<Queue<QueuedLookup>>,
    checkpoints: Arc<Checkpoints>,
    recent: RecentKeys,
    inline: InlineReader,
    file: Arc<SameFile>,
    pub(crate) clock: Arc<dyn Clock>,
    /// By this process; other processes with the same file are not notified.
    pub(crate) erasures: AtomicU64,
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
            recent: RecentKeys::default(),
            inline: InlineReader::open(options)?,
            file: Arc::new(SameFile::new(&options.path)),
            clock: Arc::clone(&options.clock),
            erasures: AtomicU64::new(0),
            answer_from_readers: options.answer_from_readers,
            identity_hash: options.identity_hash,
            threads: Vec::new(),
        };
        let (queue, checkpoints) = (Arc::clone(&inner.writes), Arc::clone(&inner.checkpoints));
        let (queries, clock) = (options.queries.clone(), Arc::clone(&options.clock));
        let file = Arc::clone(&inner.file);
        inner.spawn(options, "semel-writer", move || {
            // If the thread ends early, its callers get an error and do not wait.
            let _closed = Closed(&queue);
            let _ = writer::run(&connection, &queries, &clock, &queue, &checkpoints, &file);
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

    /// Has the writer perform a command; the answer comes when it is on the disk.
    pub(crate) async fn write<C: Command>(&self, command: C) -> Result<C::Answer> {
        let (call, answer) = writer::call(command);
        self.writes.push(call).map_err(refused)?;
        answer.await.unwrap_or_else(|_| Err(unsettled()))
    }

    /// Has a reader look something up.
    pub(crate) async fn look<L: Lookup>(
        &self,
        queue: &Queue<QueuedLookup>,
        lookup: L,
    ) -> Result<L::Answer> {
        self.file.check()?;
        let (lookup, answer) = reader::queued(lookup);
        queue.push(lookup).map_err(refused)?;
        answer
            .await
            .unwrap_or_else(|_| Err(refused(Refused::Closed)))
    }

    /// Decides on the caller's thread, where the row is likely to be in memory.
    pub(crate) fn try_decide(&self, request: &Reserve) -> Option<Decision> {
        let hash = (self.identity_hash)(&request.identity);
        if !self.answer_from_readers || !self.recent.may_know(hash) {
            return None;
        }
        self.inline.answer(hash, request, || self.clock.now())
    }

    /// Decides a reservation: a reader where the key was seen lately, else the writer.
    pub(crate) async fn reserve(&self, request: Reserve) -> Result<Decision> {
        let hash = (self.identity_hash)(&request.identity);
        let request = Arc::new(request);
        if self.answer_from_readers && self.recent.may_know(hash) {
            let decide = DecideWithoutWrite {
                hash,
                request: Arc::clone(&request),
                clock: Arc::clone(&self.clock),
            };
            // Without a reader's answer, for whatever reason, the writer decides.
            if let Ok(Some(decision)) = self.look(&self.looks, decide).await {
                return Ok(decision);
            }
        }
        let decision = self.write(Reservation { hash, request }).await?;
        self.recent.note(hash);
        Ok(decision)
    }
}

/// Finishes the accepted calls, and closes the file.
impl Drop for Inner {
    fn drop(&mut self) {
        self.inline.close();
        self.looks.close();
        self.lists.close();
        self.checkpoints.end();
        // The writer was started first and ends last: as the last connection it lets SQLite remove
        // the log.
        while let Some(thread) = self.threads.pop() {
            if self.threads.is_empty() {
                self.writes.close();
            }
            // The application's work may have held the last clone: then this is the writer's thread, and
            // it ends once the queue is closed.
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
        // The waiting calls are never performed: dropping them gives their callers an error.
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
