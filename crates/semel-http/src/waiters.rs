//! Requests that wait for another one with the same key to end.
//!
//! A waiter holds no lock and no connection. When its time is over it leaves, and nothing else
//! changes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::OperationId;
use tokio::sync::Notify;

/// How many requests may wait at once in one process; further ones are answered as under
/// `InFlight::Reject`. Each holds its body, 8 MiB at most by default.
pub(crate) const MAX_WAITERS: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queues: Mutex<HashMap<OperationId, Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: usize,
    ended: Arc<Notify>,
}

/// One request that waits for one operation.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    waiters: &'a Waiters,
    operation: OperationId,
    ended: Arc<Notify>,
}

impl Waiters {
    /// Adds a waiter; `None` where there are [`MAX_WAITERS`].
    pub(crate) fn enter(&self, operation: OperationId) -> Option<Waiter<'_>> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting: usize = queues.values().map(|queue| queue.waiting).sum();
        if waiting >= MAX_WAITERS {
            return None;
        }
        let queue = queues.entry(operation).or_default();
        queue.waiting += 1;
        Some(Waiter {
            waiters: self,
            operation,
            ended: Arc::clone(&queue.ended),
        })
    }

    /// Wakes all waiters of an operation. Called after its end is written: a request that enters
    /// later is not woken, and asks the store first.
    pub(crate) fn wake(&self, operation: OperationId) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&operation) {
            queue.ended.notify_waiters();
        }
    }
}

impl Waiter<'_> {
    /// Notified when the operation ends.
    pub(crate) fn ended(&self) -> Arc<Notify> {
        Arc::clone(&self.ended)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut queues = self
            .waiters
            .queues
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut queue) = queues.entry(self.operation) {
            queue.get_mut().waiting -= 1;
            if queue.get().waiting == 0 {
                queue.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_bounded_and_removed_on_drop() {
        let waiters = Waiters::default();
        let ids = [OperationId::generate(), OperationId::generate()];
        let places: Vec<_> = (0..MAX_WAITERS)
            .map(|at| waiters.enter(ids[at % 2]).unwrap())
            .collect();
        assert!(waiters.enter(ids[0]).is_none());
        drop(places);
        assert!(waiters.queues.lock().unwrap().is_empty());
        assert!(waiters.enter(ids[0]).is_some());
    }
}
