//! What a connection is doing, for its idle and header timers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

use super::Limits;

/// Shared by a connection's socket, its service and its timer. All on one thread, so relaxed
/// atomics are plain loads and stores; they only make the types `Send`.
#[derive(Debug)]
pub(super) struct Activity {
    opened: Instant,
    /// Requests whose response is not completely sent yet.
    busy: AtomicU32,
    /// When the last of them ended, in milliseconds since `opened`.
    idle_since_ms: AtomicU64,
    /// When the unfinished head began, in milliseconds since `opened` plus one; zero if there is none.
    head_since_ms: AtomicU64,
    /// The connection was upgraded to another protocol.
    raw: AtomicBool,
}

/// What the connection's timer does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimerAction {
    /// Check again at this time.
    Wait(Instant),
    /// The connection had no request for too long.
    Idle,
    /// A request head takes too long.
    SlowHead,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            opened: Instant::now(),
            busy: AtomicU32::new(0),
            idle_since_ms: AtomicU64::new(0),
            head_since_ms: AtomicU64::new(0),
            raw: AtomicBool::new(false),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Records whether a head has begun and not ended.
    pub(super) fn note_head(&self, unfinished: bool) {
        if !unfinished {
            self.head_since_ms.store(0, Relaxed);
        } else if self.head_since_ms.load(Relaxed) == 0 {
            self.head_since_ms.store(self.now_ms() + 1, Relaxed);
        }
    }

    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Relaxed);
        Busy(Arc::clone(self))
    }

    pub(super) fn go_raw(&self) {
        self.raw.store(true, Relaxed);
    }

    pub(super) fn is_raw(&self) -> bool {
        self.raw.load(Relaxed)
    }

    /// When an unfinished head times out; `None` while another request is running.
    pub(super) fn head_deadline(&self, limits: &Limits) -> Option<Instant> {
        let begun = self.head_since_ms.load(Relaxed).checked_sub(1)?;
        if self.busy.load(Relaxed) > 0 {
            return None;
        }
        // A pipelined head may have begun while the previous request ran.
        let since = begun.max(self.idle_since_ms.load(Relaxed));
        Some(self.at(since) + limits.header_timeout)
    }

    pub(super) fn timer_action(&self, now: Instant, limits: &Limits) -> TimerAction {
        if self.busy.load(Relaxed) > 0 {
            return TimerAction::Wait(now + limits.idle_timeout);
        }
        let (deadline, expired) = match self.head_deadline(limits) {
            Some(deadline) => (deadline, TimerAction::SlowHead),
            None => (
                self.at(self.idle_since_ms.load(Relaxed)) + limits.idle_timeout,
                TimerAction::Idle,
            ),
        };
        if now < deadline {
            TimerAction::Wait(deadline)
        } else {
            expired
        }
    }

    fn at(&self, ms: u64) -> Instant {
        self.opened + Duration::from_millis(ms)
    }
}

/// Marks a request as running until dropped.
#[derive(Debug)]
pub(super) struct Busy(Arc<Activity>);

impl Busy {
    pub(super) fn activity(&self) -> Arc<Activity> {
        Arc::clone(&self.0)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.idle_since_ms.store(self.0.now_ms(), Relaxed);
        self.0.busy.fetch_sub(1, Relaxed);
    }
}
