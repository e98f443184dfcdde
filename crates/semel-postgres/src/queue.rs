//! Calls that wait for a connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// Most calls that wait. Beyond it the database is not keeping up, and a caller is better told
/// so than left to wait.
const MAX_WAITING: usize = 16 * 1024;

/// How long a call waits for the first lane before another takes it: longer than any statement
/// takes that goes well.
const HELP_AFTER: Duration = Duration::from_millis(100);

/// Calls of one kind, and the connections that serve them.
pub(crate) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    changed: Notify,
    /// More waits than the first lane can take at once.
    overflow: Notify,
    /// How much that is.
    most: usize,
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
    pub(crate) fn new(most: usize) -> Self {
        let waiting = Waiting {
            calls: VecDeque::new(),
            closed: false,
        };
        Self {
            waiting: Mutex::new(waiting),
            changed: Notify::new(),
            overflow: Notify::new(),
            most,
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
        let overflows = waiting.calls.len() > self.most;
        drop(waiting);
        self.changed.notify_one();
        if overflows {
            self.overflow.notify_one();
        }
        Ok(())
    }

    /// Moves what waits into `group`, as much as fits, after waiting until there is something in
    /// it. Says false when the queue is closed and nothing is left.
    ///
    /// The first lane takes whatever there is: a lone call waits for nobody, and many share one
    /// statement. Others help out only where it is too much for one, or where the first is slow.
    pub(crate) async fn take(&self, group: &mut Vec<T>, lane: usize) -> bool {
        let mut is_slow = false;
        loop {
            {
                let mut waiting = self.lock();
                let ours = lane == 0 || is_slow || waiting.calls.len() > self.most;
                if ours || waiting.closed {
                    let room = self.most.saturating_sub(group.len());
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
            if lane == 0 {
                self.changed.notified().await;
            } else {
                let overflow = timeout(HELP_AFTER, self.overflow.notified()).await;
                is_slow = overflow.is_err();
            }
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
    async fn everything_that_waits_is_taken_at_once_in_order() {
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
    async fn a_closed_queue_is_emptied_and_then_says_so() {
        let queue = Queue::new(9);
        queue.push(1).unwrap();
        queue.close();
        assert_eq!(queue.push(2), Err(Refused::Closed));
        let mut group = Vec::new();
        assert!(queue.take(&mut group, 0).await);
        for lane in 0..2 {
            assert!(!queue.take(&mut Vec::new(), lane).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_lane_helps_where_it_is_too_much_or_too_slow() {
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
    fn nobody_is_stranded_while_a_lane_is_connected() {
        let queue = Queue::new(1);
        queue.connected();
        queue.push(1).unwrap();
        assert!(queue.stranded().is_empty());
        queue.disconnected();
        assert_eq!(queue.stranded(), [1]);
    }
}
