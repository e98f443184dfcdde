//! Requests that wait for another one with the same key to end.
//!
//! A waiter holds nothing but its own place: no lock, no connection, and nothing of the
//! execution it waits for. When its patience ends it goes, and changes nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::OperationId;
use tokio::sync::Notify;

/// How many requests may wait at once in one process; more are answered as if they did not
/// want to. Each holds its body, 8 MiB at most by default.
pub(crate) const MAX_WAITERS: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    rooms: Mutex<HashMap<OperationId, Room>>,
}

#[derive(Debug, Default)]
struct Room {
    waiting: usize,
    ended: Arc<Notify>,
}

/// A place among those who wait for one operation.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    waiters: &'a Waiters,
    operation: OperationId,
    ended: Arc<Notify>,
}

impl Waiters {
    /// A place, unless all are taken.
    pub(crate) fn enter(&self, operation: OperationId) -> Option<Waiter<'_>> {
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting: usize = rooms.values().map(|room| room.waiting).sum();
        if waiting >= MAX_WAITERS {
            return None;
        }
        let room = rooms.entry(operation).or_default();
        room.waiting += 1;
        Some(Waiter {
            waiters: self,
            operation,
            ended: Arc::clone(&room.ended),
        })
    }

    /// Wakes all who wait for this operation. Called after its end is written, so that
    /// whoever looked before and enters now is not woken, but looks again first.
    pub(crate) fn wake(&self, operation: OperationId) {
        let rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = rooms.get(&operation) {
            room.ended.notify_waiters();
        }
    }
}

impl Waiter<'_> {
    /// What is notified when the operation ends.
    pub(crate) fn ended(&self) -> Arc<Notify> {
        Arc::clone(&self.ended)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut rooms = self
            .waiters
            .rooms
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut room) = rooms.entry(self.operation) {
            room.get_mut().waiting -= 1;
            if room.get().waiting == 0 {
                room.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let waiters = Waiters::default();
        let ids = [OperationId::generate(), OperationId::generate()];
        let places: Vec<_> = (0..MAX_WAITERS)
            .map(|at| waiters.enter(ids[at % 2]).unwrap())
            .collect();
        assert!(waiters.enter(ids[0]).is_none());
        drop(places);
        assert!(waiters.rooms.lock().unwrap().is_empty());
        assert!(waiters.enter(ids[0]).is_some());
    }
}
