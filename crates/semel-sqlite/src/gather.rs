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
        if queue.take(group, MAX_GROUP) {
            // It was quiet for so long that nobody is on the way back.
            self.expected = 1;
        }
        if group.is_empty() {
            return;
        }
        let expected = self.expected.min(MAX_GROUP);
        // What did not pay before may pay again, so some patience always comes back.
        self.patience = (self.patience + 1).min(MOST_PATIENCE);
        if group.len() >= expected {
            return;
        }
        for _ in 0..self.patience {
            if !queue.give_way() {
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
    pub(crate) fn settled<T>(&mut self, queue: &Queue<T>, answered: usize) {
        self.expected = answered + queue.waiting();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn taken(gathering: &mut Gathering, queue: &Queue<u32>) -> Vec<u32> {
        let mut group = Vec::new();
        gathering.take(queue, &mut group);
        group
    }

    #[test]
    fn those_who_were_answered_are_waited_for_while_it_pays() {
        let queue = Queue::new();
        let mut gathering = Gathering::new();
        queue.push(1).unwrap();
        gathering.settled(&queue, 3);
        // Three were answered and one waits: four are expected, and only one comes.
        assert_eq!(taken(&mut gathering, &queue), [1]);
        assert_eq!(gathering.patience, MOST_PATIENCE / 2);
        // All that is expected is there at once: nothing was learnt by waiting.
        gathering.settled(&queue, 2);
        queue.push(2).unwrap();
        queue.push(3).unwrap();
        assert_eq!(taken(&mut gathering, &queue), [2, 3]);
        assert_eq!(gathering.patience, MOST_PATIENCE / 2 + 1);
    }

    #[test]
    fn a_lone_call_after_a_quiet_time_waits_for_nobody() {
        let queue = Arc::new(Queue::new());
        let mut gathering = Gathering::new();
        gathering.settled(&queue, 64);
        let writer = {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || (taken(&mut gathering, &queue), gathering.patience))
        };
        while !queue.someone_sleeps() {
            std::thread::yield_now();
        }
        queue.push(7).unwrap();
        // Had it waited for the 64, it would have less patience now.
        assert_eq!(writer.join().unwrap(), (vec![7], MOST_PATIENCE));
    }
}
