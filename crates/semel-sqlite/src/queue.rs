//! A bounded queue between the callers and a thread.
//!
//! The thread takes everything that waits at once: that is what makes a group out of the
//! requests that arrived during a commit, without any timer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most calls that wait for one thread. Beyond it the disk is not keeping up, and a caller
/// is better told so than left to wait.
const MAX_WAITING: usize = 16 * 1024;

/// Most calls that share a commit. Enough to make the fsync cheap, and few enough that the
/// first of them is not kept waiting by the last.
pub(crate) const MAX_GROUP: usize = 512;

/// How often a thread with nothing to do gives way before it sleeps: a fifth of a millisecond
/// on an idle machine, and as long as it takes an answered caller to be woken and come back.
/// With none a lone caller reached half of a bare loop, with 100 four fifths, with 300 and
/// with 1000 nine tenths, and each took less processor time than the one before.
const LINGER: usize = 400;

/// How long giving way may take: enough for a few callers to come back, less than a turn of
/// the scheduler.
const CHEAP: Duration = Duration::from_millis(1);

/// How often a thread does not give way after it was not cheap: some seconds of traffic.
const HURRY: u32 = 1000;

pub(crate) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    changed: Condvar,
    /// How often not to give way.
    hurry: AtomicU32,
}

struct Waiting<T> {
    calls: VecDeque<T>,
    /// Threads that wait for a call; nobody is woken who is not asleep.
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
            hurry: AtomicU32::new(0),
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

    /// Moves what waits, up to `most`, into `group`, after waiting until there is something.
    /// Leaves it empty when the queue is closed and nothing is left. Says whether it slept.
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

    /// Gives way a few times while nothing waits, before going to sleep: a caller that was
    /// just answered often comes back at once, and waking a thread costs both more than this.
    fn linger<'q>(&'q self, mut waiting: MutexGuard<'q, Waiting<T>>) -> MutexGuard<'q, Waiting<T>> {
        for _ in 0..LINGER {
            if !waiting.calls.is_empty() || waiting.closed {
                break;
            }
            drop(waiting);
            let cheap = self.give_way();
            waiting = self.lock();
            if !cheap {
                break;
            }
        }
        waiting
    }

    /// Lets others run, and says whether that was cheap. On a busy machine it is not: the
    /// others keep the processor for milliseconds, where a thread that sleeps would be woken
    /// at once. Then nobody gives way for a while.
    #[allow(
        clippy::disallowed_methods,
        reason = "measures the machine, decides no lease"
    )]
    pub(crate) fn give_way(&self) -> bool {
        let left = self.hurry.load(Ordering::Relaxed);
        if left > 0 {
            self.hurry.store(left - 1, Ordering::Relaxed);
            return false;
        }
        let before = std::time::Instant::now();
        std::thread::yield_now();
        let cheap = before.elapsed() < CHEAP;
        if !cheap {
            self.hurry.store(HURRY, Ordering::Relaxed);
        }
        cheap
    }

    /// Adds to `group` what has come since, up to `most` in all, without waiting.
    pub(crate) fn take_more(&self, group: &mut Vec<T>, most: usize) {
        let mut waiting = self.lock();
        let count = waiting.calls.len().min(most.saturating_sub(group.len()));
        group.extend(waiting.calls.drain(..count));
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().calls.len()
    }

    /// Whether a thread has gone to sleep.
    #[cfg(test)]
    pub(crate) fn someone_sleeps(&self) -> bool {
        self.lock().idle > 0
    }

    /// Lets the threads finish what waits, and accepts nothing more.
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
    fn everything_that_waits_is_taken_at_once_in_order() {
        let queue = Queue::new();
        (0..5).for_each(|call| queue.push(call).unwrap());
        assert_eq!(taken(&queue, 3), [0, 1, 2]);
        assert_eq!(taken(&queue, 3), [3, 4]);
    }

    #[test]
    fn a_closed_queue_is_emptied_and_then_says_so() {
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
