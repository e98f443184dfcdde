//! Moving pages from the log into the file, off the write path.
//!
//! A thread of its own copies most pages while commits continue. It cannot quite catch up with a busy
//! writer, and a log that is not copied to its end is never reused and keeps growing. So the writer
//! copies the last few pages itself, between two groups.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use crate::connection::CHECKPOINT_PATIENCE;

/// Pages in the log that make a checkpoint worthwhile: 64 MiB. Larger logs were not
/// faster; smaller ones write the pages of the key index more often.
const LOG_PAGES: u32 = 16 * 1024;

/// Rounds of copying before the writer copies the rest: each is about a tenth of the one before.
const ROUNDS: u32 = 3;

/// State that the writer and the checkpointing thread share.
pub(crate) struct Checkpoints {
    wanted: Mutex<Wanted>,
    changed: Condvar,
    /// Most pages are copied; the writer may copy the rest.
    copied: AtomicBool,
    /// The size of the log at which the writer requests a checkpoint.
    ask_at: AtomicU32,
    /// How long the writer otherwise waits for others.
    busy_timeout: Duration,
}

#[derive(Default)]
struct Wanted {
    checkpoint: bool,
    end: bool,
}

impl Checkpoints {
    pub(crate) fn new(busy_timeout: Duration) -> Self {
        Self {
            wanted: Mutex::default(),
            changed: Condvar::new(),
            copied: AtomicBool::new(false),
            ask_at: AtomicU32::new(LOG_PAGES),
            busy_timeout,
        }
    }

    /// Called by the writer between groups: copies the last pages when most are copied, and requests
    /// a checkpoint when the log has grown.
    pub(crate) fn after_commit(&self, connection: &Connection, log_pages: u32) {
        if self.copied.swap(false, Ordering::Acquire) {
            self.copy_rest(connection);
            // If a reader still used the log, it is tried again later.
            self.ask_at
                .store(log_pages.saturating_add(LOG_PAGES / 4), Ordering::Relaxed);
        } else if log_pages >= self.ask_at.load(Ordering::Relaxed) {
            self.ask_at.store(u32::MAX, Ordering::Relaxed);
            self.lock().checkpoint = true;
            self.changed.notify_one();
        } else if log_pages < LOG_PAGES {
            self.ask_at.store(LOG_PAGES, Ordering::Relaxed);
        }
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.lock().end = true;
        self.changed.notify_one();
    }

    /// The thread's loop. An error is ignored: the log stays as it is, nothing is lost, and the writer
    /// requests again.
    pub(crate) fn run(&self, connection: &Connection) {
        while self.wait() {
            for _ in 0..ROUNDS {
                let _ = checkpoint(connection, "PASSIVE");
            }
            self.copied.store(true, Ordering::Release);
        }
    }

    /// Waits until a checkpoint is wanted; `false` at the end.
    fn wait(&self) -> bool {
        let mut wanted = self.lock();
        while !wanted.checkpoint && !wanted.end {
            wanted = self
                .changed
                .wait(wanted)
                .unwrap_or_else(PoisonError::into_inner);
        }
        wanted.checkpoint = false;
        !wanted.end
    }

    /// Copies the last pages, so that the next commit restarts the log.
    fn copy_rest(&self, connection: &Connection) {
        let _ = connection.busy_timeout(CHECKPOINT_PATIENCE);
        let _ = checkpoint(connection, "RESTART");
        let _ = connection.busy_timeout(self.busy_timeout);
    }

    fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<()> {
    connection.pragma(None, "wal_checkpoint", mode, |_| Ok(()))
}
