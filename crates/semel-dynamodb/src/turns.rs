//! Turns of writers: many writers of one record would fail all but one, again and again.

use tokio::sync::{Mutex, MutexGuard};

/// How many records' writers can wait apart from each other.
const TURNS: usize = 256;

/// The turns of this process's writers of one record. A few records may share one.
pub(crate) struct Turns(Vec<Mutex<()>>);

impl Turns {
    pub(crate) fn new() -> Self {
        Self((0..TURNS).map(|_| Mutex::new(())).collect())
    }

    /// Waits for the turn of a writer of this record.
    pub(crate) async fn take(&self, partition: &str) -> MutexGuard<'_, ()> {
        // The last digits of a hash, and any two that meet only wait for each other.
        let place = partition
            .bytes()
            .rev()
            .take(4)
            .fold(0, |sum, digit| sum * 31 + usize::from(digit));
        self.0[place % TURNS].lock().await
    }
}
