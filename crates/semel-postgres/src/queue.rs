//! Calls that wait for a connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Most calls that wait. Beyond it the database is not keeping up, and a caller is better told
/// so than left to wait.
const MAX_WAITING: usize = 16 * 1024;

/// Calls of one kind, and the connections that serve them.
pub(crate) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    changed: Notify,
    /// Lanes that have a connection. While none has, nobody is left waiting for one.
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
    pub(crate) fn new() -> Self {
        let waiting = Waiting {
            calls: VecDeque::new(),
            closed: false,
        };
        Self {
            waiting: Mutex::new(waiting),
            changed: Notify::new(),
            connected: AtomicUsize::new(0),
        }
    }

    /// Adds a call, and wakes a lane if one is idle.
    pub(crate) fn push(&self, call: T) -> Result<(), Refused> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(Refused::Closed);
        }
        if waiting.calls.len() >= MAX_WAITING {
            return Err(Refused::Full);
        }
        waiting.calls.push_back(call);
        drop(waiting);
        self.changed.notify_one();
        Ok(())
    }

    /// Moves what waits into `group`, up to `most` in all, after waiting until there is
    /// something in it. Says false when the queue is closed and nothing is left.
    pub(crate) async fn take(&self, group: &mut Vec<T>, most: usize) -> bool {
        loop {
            let changed = self.changed.notified();
            {
                let mut waiting = self.lock();
                let count = waiting.calls.len().min(most.saturating_sub(group.len()));
                group.extend(waiting.calls.drain(..count));
                if !group.is_empty() {
                    // What is left is for another lane.
                    if !waiting.calls.is_empty() {
                        self.changed.notify_one();
                    }
                    return true;
                }
                if waiting.closed {
                    // The next lane is to see it, too.
                    self.changed.notify_one();
                    return false;
                }
            }
            changed.await;
        }
    }

    /// A lane has a connection.
    pub(crate) fn connected(&self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
    }

    /// A lane has lost its connection.
    pub(crate) fn disconnected(&self) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
    }

    /// What waits although no lane has a connection.
    pub(crate) fn stranded(&self) -> Vec<T> {
        if self.connected.load(Ordering::Relaxed) > 0 {
            return Vec::new();
        }
        self.lock().calls.drain(..).collect()
    }

    /// Lets the lanes finish what waits, and accepts nothing more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
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
    async fn everything_that_waits_is_taken_at_once_in_order() {
        let queue = Queue::new();
        (0..5).for_each(|call| queue.push(call).unwrap());
        let mut group = Vec::new();
        assert!(queue.take(&mut group, 3).await);
        assert_eq!(group, [0, 1, 2]);
        group.remove(0);
        assert!(queue.take(&mut group, 3).await);
        assert_eq!(group, [1, 2, 3]);
    }

    #[tokio::test]
    async fn a_closed_queue_is_emptied_and_then_says_so() {
        let queue = Queue::new();
        queue.push(1).unwrap();
        queue.close();
        assert_eq!(queue.push(2), Err(Refused::Closed));
        let mut group = Vec::new();
        assert!(queue.take(&mut group, 9).await);
        for _ in 0..2 {
            assert!(!queue.take(&mut Vec::new(), 9).await);
        }
    }

    #[test]
    fn a_queue_is_bounded() {
        let queue = Queue::new();
        (0..MAX_WAITING).for_each(|call| queue.push(call).unwrap());
        assert_eq!(queue.push(0), Err(Refused::Full));
    }

    #[test]
    fn nobody_is_stranded_while_a_lane_is_connected() {
        let queue = Queue::new();
        queue.connected();
        queue.push(1).unwrap();
        assert!(queue.stranded().is_empty());
        queue.disconnected();
        assert_eq!(queue.stranded(), [1]);
    }
}
