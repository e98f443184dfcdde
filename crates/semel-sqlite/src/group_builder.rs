//! Makes groups larger without a timer.
//!
//! Callers that were answered together tend to send their next call together. If the writer
//! committed the first of these at once, the others would share the commit after it, and there
//! would be two groups of half the size from then on. So the writer counts the callers that may
//! come back, and yields to them as long as that has helped lately. A lone caller does not wait.

use crate::queue::{MAX_GROUP, Queue};

/// How often the writer yields at most: as long as it takes some hundred callers to come back, and
/// less than a commit.
const MOST_PATIENCE: u32 = 1000;

/// Takes groups from the queue, and remembers whether waiting for more calls has helped.
pub(crate) struct GroupBuilder {
    /// Callers of the last group, and those that waited when it was answered.
    expected: usize,
    /// How often to yield before committing without the rest. Halved when they did not come, so
    /// that it costs next to nothing where requests are independent.
    patience: u32,
}

impl GroupBuilder {
    pub(crate) fn new() -> Self {
        Self {
            expected: 1,
            patience: MOST_PATIENCE,
        }
    }

    /// Takes the next group, after waiting for a call. Leaves it empty when the queue is closed and
    /// empty.
    pub(crate) fn take<T>(&mut self, queue: &Queue<T>, group: &mut Vec<T>) {
        if queue.take(group, MAX_GROUP) {
            // The queue was idle for so long that no caller is on the way back.
            self.expected = 1;
        }
        if group.is_empty() {
            return;
        }
        let expected = self.expected.min(MAX_GROUP);
        // Waiting may help again later, so patience grows back slowly.
        self.patience = (self.patience + 1).min(MOST_PATIENCE);
        if group.len() >= expected {
            return;
        }
        for _ in 0..self.patience {
            if !queue.yield_cheaply() {
                break;
            }
            queue.take_more(group, MAX_GROUP);
            if group.len() >= expected {
                self.patience = MOST_PATIENCE;
                return;
            }
        }
        self.patience /= 2;
    }

    /// Notes that `answered` callers were just answered.
    pub(crate) fn answered<T>(&mut self, queue: &Queue<T>, answered: usize) {
        self.expected = answered + queue.waiting();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn taken(builder: &mut GroupBuilder, queue: &Queue<u32>) -> Vec<u32> {
        let mut group = Vec::new();
        builder.take(queue, &mut group);
        group
    }

    #[test]
    fn answered_callers_are_waited_for_while_that_helps() {
        let queue = Queue::new();
        let mut builder = GroupBuilder::new();
        queue.push(1).unwrap();
        builder.answered(&queue, 3);
        // Three were answered and one waits: four are expected, and only one comes.
        assert_eq!(taken(&mut builder, &queue), [1]);
        assert_eq!(builder.patience, MOST_PATIENCE / 2);
        // All that are expected are there at once: patience only grows by one.
        builder.answered(&queue, 2);
        queue.push(2).unwrap();
        queue.push(3).unwrap();
        assert_eq!(taken(&mut builder, &queue), [2, 3]);
        assert_eq!(builder.patience, MOST_PATIENCE / 2 + 1);
    }

    #[test]
    fn a_lone_call_after_an_idle_time_does_not_wait() {
        let queue = Arc::new(Queue::new());
        let mut builder = GroupBuilder::new();
        builder.answered(&queue, 64);
        let writer = {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || (taken(&mut builder, &queue), builder.patience))
        };
        while !queue.has_idle_thread() {
            std::thread::yield_now();
        }
        queue.push(7).unwrap();
        // Had it waited for the 64, it would have less patience now.
        assert_eq!(writer.join().unwrap(), (vec![7], MOST_PATIENCE));
    }
}
