//! What a connection is doing, for its idle and header timers.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::Limits;
use super::progress::ResponseProgress;

/// A stalled HTTP/2 response is noticed this fraction of the limit too late, at most.
const STALL_CHECKS: u32 = 6;

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
    /// The number of the request whose head is too large; zero if there is none.
    large_head: AtomicU64,
    /// The number of the request whose body is framed wrongly; zero if there is none.
    malformed_body: AtomicU64,
    /// Every request that has begun has arrived in full.
    is_complete: AtomicBool,
    /// The number of the request whose body was left unread; zero if there is none.
    unread_body: AtomicU64,
    /// The server is about to stop: each response asks the client to close the connection.
    closing: AtomicBool,
    /// HTTP/2 only: the responses that are not completely sent.
    responses: Option<Mutex<Vec<Weak<ResponseProgress>>>>,
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
    /// The client does not read a response.
    Stalled,
}

impl Activity {
    pub(super) fn new(is_http2: bool) -> Self {
        Self {
            opened: Instant::now(),
            busy: AtomicU32::new(0),
            idle_since_ms: AtomicU64::new(0),
            head_since_ms: AtomicU64::new(0),
            raw: AtomicBool::new(false),
            large_head: AtomicU64::new(0),
            malformed_body: AtomicU64::new(0),
            is_complete: AtomicBool::new(false),
            unread_body: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            responses: is_http2.then(Mutex::default),
        }
    }

    pub(super) fn note_large_head(&self, request: u64) {
        self.large_head.store(request, Relaxed);
    }

    pub(super) fn has_large_head(&self, request: u64) -> bool {
        self.large_head.load(Relaxed) == request
    }

    pub(super) fn note_malformed_body(&self, request: u64) {
        self.malformed_body.store(request, Relaxed);
    }

    pub(super) fn has_malformed_body(&self, request: u64) -> bool {
        self.malformed_body.load(Relaxed) == request
    }

    pub(super) fn note_complete(&self, is_complete: bool) {
        self.is_complete.store(is_complete, Relaxed);
    }

    /// A body was dropped before its end. hyper keeps the connection only if it can skip the rest at
    /// once: a body of known length that has arrived.
    pub(super) fn note_unread_body(&self, request: u64, has_length: bool) {
        let is_skipped = has_length && self.is_complete.load(Relaxed);
        if self.responses.is_none() && !is_skipped {
            self.unread_body.store(request, Relaxed);
        }
    }

    pub(super) fn has_unread_body(&self, request: u64) -> bool {
        self.unread_body.load(Relaxed) == request
    }

    pub(super) fn note_closing(&self) {
        self.closing.store(true, Relaxed);
    }

    /// Whether a response has to ask the client to close. On HTTP/2 a frame does that, later.
    pub(super) fn is_closing(&self) -> bool {
        self.responses.is_none() && self.closing.load(Relaxed)
    }

    /// Follows a response; `None` on HTTP/1, where the socket shows whether the client reads.
    pub(super) fn follow_response(&self) -> Option<Arc<ResponseProgress>> {
        let responses = self.responses.as_ref()?;
        let progress = ResponseProgress::new();
        let mut responses = responses.lock().unwrap_or_else(PoisonError::into_inner);
        responses.push(Arc::downgrade(&progress));
        Some(progress)
    }

    /// Whether the client has taken nothing of a response for too long.
    fn is_stalled(&self, now: Instant, limit: Duration) -> bool {
        let Some(responses) = &self.responses else {
            return false;
        };
        let mut responses = responses.lock().unwrap_or_else(PoisonError::into_inner);
        responses.retain(|response| response.strong_count() > 0);
        responses
            .iter()
            .filter_map(|response| response.upgrade()?.stalled_since())
            .any(|since| since + limit <= now)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Relaxed) > 0
    }

    /// When the timer fires first.
    pub(super) fn first_check(&self, limits: &Limits) -> Instant {
        self.opened + self.check_interval(limits)
    }

    fn check_interval(&self, limits: &Limits) -> Duration {
        match self.responses {
            Some(_) => limits
                .idle_timeout
                .min(limits.write_stall_timeout / STALL_CHECKS),
            None => limits.idle_timeout,
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
        if self.is_stalled(now, limits.write_stall_timeout) {
            return TimerAction::Stalled;
        }
        let next_check = now + self.check_interval(limits);
        if self.is_busy() {
            return TimerAction::Wait(next_check);
        }
        let (deadline, expired) = match self.head_deadline(limits) {
            Some(deadline) => (deadline, TimerAction::SlowHead),
            None => (
                self.at(self.idle_since_ms.load(Relaxed)) + limits.idle_timeout,
                TimerAction::Idle,
            ),
        };
        if now < deadline {
            TimerAction::Wait(deadline.min(next_check))
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
