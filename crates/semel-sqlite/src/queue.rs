//! A bounded queue between the callers and a thread.
//!
//! The thread takes all waiting calls at once: the requests that arrived during a commit become a
//! group without any timer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most calls that wait for one thread. Beyond it the disk does not keep up, and a caller is better
/// refused than left waiting.
const MAX_WAITING: usize = 16 * 1024;

/// Most calls that share a commit. Enough to make the fsync cheap, and few enough that the first
/// does not wait for the last.
pub(crate) const MAX_GROUP: usize = 512;

/// How often an idle thread yields before it sleeps: a fifth of a millisecond
/// on an idle machine, and as long as it takes an answered caller to be woken and come back.
/// With none a lone caller reached half of a bare loop, with 100 four fifths, with 300 and
/// with 1000 nine tenths, and each took less processor time than the one before.
const LINGER: usize = 400;

/// How long one yield may take: enough for a few callers to come back, less than a time slice of
/// the scheduler.
const CHEAP_YIELD: Duration = Duration::from_millis(1);

/// How many yields are skipped after an expensive one: some seconds of traffic.
const SKIPPED_YIELDS: u32 = 1000;

pub(crate) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    changed: Condvar,
    /// How many yields to skip.
    yields_to_skip: AtomicU32,
}

struct Waiting<T> {
    calls: VecDeque<T>,
    /// Threads that sleep until there is a call.
    idle: usize,
    closed: bool,
}

/// Why a call was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    Closed,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        let waiting = Waiting {
            calls: VecDeque::new(),
            idle: 0,
            closed: false,
        };
        Self {
            waiting: Mutex::new(waiting),
            changed: Condvar::new(),
            yields_to_skip: AtomicU32::new(0),
        }
    }

    /// Adds a call, and wakes a thread if one is idle.
    pub(crate) fn push(&self, call: T) -> Result<(), Refused> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(Refused::Closed);
        }
        if waiting.calls.len() >= MAX_WAITING {
            return Err(Refused::Full);
        }
        waiting.calls.push_back(call);
        let wake = waiting.idle > 0;
        drop(waiting);
        if wake {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Moves waiting calls, up to `most`, into `group`, after waiting for one. Leaves it empty when
    /// the queue is closed and empty. Returns whether the thread slept.
    pub(crate) fn take(&self, group: &mut Vec<T>, most: usize) -> bool {
        let mut waiting = self.linger(self.lock());
        let mut slept = false;
        while waiting.calls.is_empty() && !waiting.closed {
            slept = true;
            waiting.idle += 1;
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
            waiting.idle -= 1;
        }
        let count = waiting.calls.len().min(most);
        group.extend(waiting.calls.drain(..count));
        slept
    }

    /// Yields a few times while the queue is empty: a caller that was just answered often comes back
    /// at once, and waking a sleeping thread costs more than this.
    fn linger<'q>(&'q self, mut waiting: MutexGuard<'q, Waiting<T>>) -> MutexGuard<'q, Waiting<T>> {
        for _ in 0..LINGER {
            if !waiting.calls.is_empty() || waiting.closed {
                break;
            }
            drop(waiting);
            let cheap = self.yield_cheaply();
            waiting = self.lock();
            if !cheap {
                break;
            }
        }
        waiting
    }

    /// Yields the processor, and returns whether that was cheap. On a busy machine it is not: other
    /// threads keep the processor for milliseconds, where a sleeping thread would be woken at once.
    /// Then the next yields are skipped.
    #[allow(
        clippy::disallowed_methods,
        reason = "measures the machine, decides no lease"
    )]
    pub(crate) fn yield_cheaply(&self) -> bool {
        let left = self.yields_to_skip.load(Ordering::Relaxed);
        if left > 0 {
            self.yields_to_skip.store(left - 1, Ordering::Relaxed);
            return false;
        }
        let before = std::time::Instant::now();
        std::thread::yield_now();
        let cheap = before.elapsed() < CHEAP_YIELD;
        if !cheap {
            self.yields_to_skip.store(SKIPPED_YIELDS, Ordering::Relaxed);
        }
        cheap
    }

    /// Adds the calls that arrived since to `group`, up to `most` in all, without waiting.
    pub(crate) fn take_more(&self, group: &mut Vec<T>, most: usize) {
        let mut waiting = self.lock();
        let count = waiting.calls.len().min(most.saturating_sub(group.len()));
        group.extend(waiting.calls.drain(..count));
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().calls.len()
    }

    /// Whether a thread sleeps.
    #[cfg(test)]
    pub(crate) fn has_idle_thread(&self) -> bool {
        self.lock().idle > 0
    }

    /// Lets the threads finish what waits, and accepts no more calls.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        // No code that can panic runs under this lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(queue: &Queue<u32>, most: usize) -> Vec<u32> {
        let mut group = Vec::new();
        queue.take(&mut group, most);
        group
    }

    #[test]
    fn waiting_calls_are_taken_at_once_in_order() {
        let queue = Queue::new();
        (0..5).for_each(|call| queue.push(call).unwrap());
        assert_eq!(taken(&queue, 3), [0, 1, 2]);
        assert_eq!(taken(&queue, 3), [3, 4]);
    }

    #[test]
    fn a_closed_queue_is_emptied_before_take_returns_nothing() {
        let queue = Queue::new();
        queue.push(1).unwrap();
        queue.close();
        assert_eq!(queue.push(2), Err(Refused::Closed));
        assert_eq!(taken(&queue, 9), [1]);
        assert!(taken(&queue, 9).is_empty());
    }

    #[test]
    fn a_queue_is_bounded() {
        let queue = Queue::new();
        (0..u32::try_from(MAX_WAITING).unwrap()).for_each(|call| queue.push(call).unwrap());
        assert_eq!(queue.push(0), Err(Refused::Full));
    }
}
