//! How many bytes of bodies the layer holds at a time, over all requests.
//!
//! Bytes count when they have arrived, not when they are announced: a client that announces much
//! and sends nothing takes no room. A request counts until its attempt has ended, a response until
//! all of it is taken over by the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A maximum of bytes, shared by all requests.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    held: AtomicUsize,
    max: usize,
}

/// Bytes that count against a [`ByteBudget`] until dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    budget: Arc<ByteBudget>,
    bytes: usize,
}

impl ByteBudget {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            held: AtomicUsize::new(0),
            max,
        })
    }

    /// Holds nothing yet, and may grow up to the whole budget.
    pub(crate) fn hold(self: &Arc<Self>) -> HeldBytes {
        HeldBytes {
            budget: Arc::clone(self),
            bytes: 0,
        }
    }

    /// Whether at most half of the budget is taken. The other half is left to what cannot be refused
    /// any more.
    pub(crate) fn is_half_free(&self) -> bool {
        self.held.load(Relaxed) <= self.max / 2
    }

    /// Holds bytes if half of the budget is free before: they may be more than the half.
    pub(crate) fn try_hold(self: &Arc<Self>, bytes: usize) -> Option<HeldBytes> {
        let half = self.max / 2;
        let room = |held: usize| (held <= half).then(|| held.saturating_add(bytes));
        self.held.fetch_update(Relaxed, Relaxed, room).ok()?;
        Some(HeldBytes {
            budget: Arc::clone(self),
            bytes,
        })
    }
}

impl HeldBytes {
    /// Counts more bytes, unless that is more than the budget has left.
    pub(crate) fn try_grow(&mut self, bytes: usize) -> bool {
        let max = self.budget.max;
        let grown = self
            .budget
            .held
            .fetch_update(Relaxed, Relaxed, |held| {
                held.checked_add(bytes).filter(|held| *held <= max)
            })
            .is_ok();
        if grown {
            self.bytes += bytes;
        }
        grown
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_until_they_are_dropped() {
        let budget = ByteBudget::new(10);
        let mut first = budget.hold();
        assert!(first.try_grow(4) && first.try_grow(4));
        assert!(!first.try_grow(3), "above the maximum");
        assert!(!budget.is_half_free() && budget.try_hold(0).is_none());
        let mut second = budget.hold();
        assert!(second.try_grow(2));
        drop(second);
        drop(first);
        let large = budget.try_hold(10).unwrap();
        assert!(budget.try_hold(0).is_none(), "more than half is taken");
        drop(large);
        assert!(budget.hold().try_grow(10));
    }
}
