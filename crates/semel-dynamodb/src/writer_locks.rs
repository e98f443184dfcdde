//! Locks by record: many writers of one record would fail all but one, again and again.

use tokio::sync::{Mutex, MutexGuard};

/// How many records' writers can wait apart from each other.
const LOCKS: usize = 256;

/// One lock for the writers of a record in this process. A few records may share one.
pub(crate) struct WriterLocks(Vec<Mutex<()>>);

impl WriterLocks {
    pub(crate) fn new() -> Self {
        Self((0..LOCKS).map(|_| Mutex::new(())).collect())
    }

    /// Waits for the turn of a writer of this record.
    pub(crate) async fn lock(&self, partition: &str) -> MutexGuard<'_, ()> {
        // The last digits of a hash, and any two that meet only wait for each other.
        let place = partition
            .bytes()
            .rev()
            .take(4)
            .fold(0, |sum, digit| sum * 31 + usize::from(digit));
        self.0[place % LOCKS].lock().await
    }
}
