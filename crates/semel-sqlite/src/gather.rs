//! Making groups larger without making anybody wait for a timer.
//!
//! Callers that were answered together tend to come back together. If the writer began the
//! next commit with the first of them, the others would share the one after it, and there
//! would be two groups of half the size for ever. So the writer counts who may come back,
//! and gives way to them as long as that has lately paid. A lone caller is all that there
//! is to come, and waits for nobody.

use crate::queue::{MAX_GROUP, Queue};

/// How often the writer gives way at most: as long as it takes some hundred callers to come
/// back, and less than a commit.
const MOST_PATIENCE: u32 = 1000;

/// What the writer has learnt about its callers.
pub(crate) struct Gathering {
    /// Callers that were answered last, and those that waited then.
    expected: usize,
    /// How often to give way before going without the rest. Halved when they did not come,
    /// so that it costs next to nothing where requests have nothing to do with each other.
    patience: u32,
}

impl Gathering {
    pub(crate) fn new() -> Self {
        Self {
            expected: 1,
            patience: MOST_PATIENCE,
        }
    }

    /// Takes the next group, after waiting until there is something to do. Leaves it empty
    /// when the queue is closed and nothing is left.
    pub(crate) fn take<T>(&mut self, queue: &Queue<T>, group: &mut Vec<T>) {
        queue.take(group, MAX_GROUP);
        if group.is_empty() {
            return;
        }
        let expected = self.expected.min(MAX_GROUP);
        let mut left = self.patience;
        while group.len() < expected && left > 0 {
            std::thread::yield_now();
            queue.take_more(group, MAX_GROUP);
            left -= 1;
        }
        self.patience = if group.len() < expected {
            self.patience / 2
        } else {
            MOST_PATIENCE
        };
        // It may pay again.
        self.patience = self.patience.saturating_add(1).min(MOST_PATIENCE);
    }

    /// Notes that `answered` callers were just answered.
    pub(crate) fn settled<T>(&mut self, queue: &Queue<T>, answered: usize) {
        self.expected = answered + queue.waiting();
    }
}
