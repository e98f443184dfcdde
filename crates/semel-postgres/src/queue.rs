//! Calls that wait for a connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// Most calls that wait. Beyond it the database does not keep up, and a caller is better refused
/// than left waiting.
const MAX_WAITING: usize = 16 * 1024;

/// How long a call waits for the first worker before another takes it: longer than a statement
/// normally takes.
const HELP_AFTER: Duration = Duration::from_millis(100);

/// Calls of one kind, and the connections that serve them.
pub(crate) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    changed: Notify,
    /// More calls wait than the first worker can take at once.
    overflow: Notify,
    /// How many the first worker can take at once.
    max_batch: usize,
    /// Workers that have a connection. While none has, calls are refused and not queued.
    connected: AtomicUsize,
}

struct Waiting<T> {
    calls: VecDeque<T>,
    closed: bool,
}

/// Why a call was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    Closed,
}

impl<T> Queue<T> {
    pub(crate) fn new(max_batch: usize) -> Self {
        let waiting = Waiting {
            calls: VecDeque::new(),
            closed: false,
        };
        Self {
            waiting: Mutex::new(waiting),
            changed: Notify::new(),
            overflow: Notify::new(),
            max_batch,
            connected: AtomicUsize::new(0),
        }
    }

    /// Adds a call, and wakes a worker if one is idle.
    pub(crate) fn push(&self, call: T) -> Result<(), Refused> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(Refused::Closed);
        }
        if waiting.calls.len() >= MAX_WAITING {
            return Err(Refused::Full);
        }
        waiting.calls.push_back(call);
        let overflows = waiting.calls.len() > self.max_batch;
        drop(waiting);
        self.changed.notify_one();
        if overflows {
            self.overflow.notify_one();
        }
        Ok(())
    }

    /// Fills `group` with waiting calls, up to a batch, after waiting until there is one. Returns
    /// false when the queue is closed and empty.
    ///
    /// The first worker takes all that waits: a lone call does not wait, and many share one
    /// statement. Other workers help only where there is more than one batch, or where the first
    /// worker is slow.
    pub(crate) async fn take(&self, group: &mut Vec<T>, worker: usize) -> bool {
        let mut is_slow = false;
        loop {
            {
                let mut waiting = self.lock();
                let ours = worker == 0 || is_slow || waiting.calls.len() > self.max_batch;
                if ours || waiting.closed {
                    let room = self.max_batch.saturating_sub(group.len());
                    let count = waiting.calls.len().min(room);
                    group.extend(waiting.calls.drain(..count));
                }
                if !group.is_empty() {
                    return true;
                }
                if waiting.closed {
                    return false;
                }
            }
            if worker == 0 {
                self.changed.notified().await;
            } else {
                let overflow = timeout(HELP_AFTER, self.overflow.notified()).await;
                is_slow = overflow.is_err();
            }
        }
    }

    /// A worker has connected.
    pub(crate) fn connected(&self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
    }

    /// A worker has lost its connection.
    pub(crate) fn disconnected(&self) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes all calls out if no worker has a connection.
    pub(crate) fn stranded(&self) -> Vec<T> {
        if self.connected.load(Ordering::Relaxed) > 0 {
            return Vec::new();
        }
        self.lock().calls.drain(..).collect()
    }

    /// Lets the workers finish what waits, and accepts no more calls.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
        self.overflow.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        // No code that can panic runs under this lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_calls_are_taken_at_once_in_order() {
        let queue = Queue::new(3);
        (0..5).for_each(|call| queue.push(call).unwrap());
        let mut group = Vec::new();
        assert!(queue.take(&mut group, 0).await);
        assert_eq!(group, [0, 1, 2]);
        group.remove(0);
        assert!(queue.take(&mut group, 0).await);
        assert_eq!(group, [1, 2, 3]);
    }

    #[tokio::test]
    async fn a_closed_queue_is_emptied_before_take_returns_false() {
        let queue = Queue::new(9);
        queue.push(1).unwrap();
        queue.close();
        assert_eq!(queue.push(2), Err(Refused::Closed));
        let mut group = Vec::new();
        assert!(queue.take(&mut group, 0).await);
        for worker in 0..2 {
            assert!(!queue.take(&mut Vec::new(), worker).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_worker_helps_with_a_long_or_slow_queue() {
        let queue = Queue::new(2);
        let mut group = Vec::new();
        queue.push(0).unwrap();
        assert!(group.is_empty() && queue.take(&mut group, 1).await);
        assert_eq!(group, [0]);
        (1..4).for_each(|call| queue.push(call).unwrap());
        group.clear();
        assert!(queue.take(&mut group, 1).await);
        assert_eq!(group, [1, 2]);
    }

    #[test]
    fn a_queue_is_bounded() {
        let queue = Queue::new(1);
        (0..MAX_WAITING).for_each(|call| queue.push(call).unwrap());
        assert_eq!(queue.push(0), Err(Refused::Full));
    }

    #[test]
    fn calls_are_stranded_only_while_no_worker_is_connected() {
        let queue = Queue::new(1);
        queue.connected();
        queue.push(1).unwrap();
        assert!(queue.stranded().is_empty());
        queue.disconnected();
        assert_eq!(queue.stranded(), [1]);
    }
}
