//! When a drain ends.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The end of the drain. Connections, and then executions whose clients are gone, share one
/// `drain` duration that starts when the process stops, after `drain_delay`.
#[derive(Clone)]
pub(super) struct Deadline {
    drain: Duration,
    at: Arc<OnceLock<Instant>>,
}

impl Deadline {
    pub(super) fn new(drain: Duration, stop: CancellationToken) -> Self {
        let at = Arc::new(OnceLock::new());
        let deadline = Self { drain, at };
        let set = deadline.clone();
        tokio::spawn(async move {
            stop.cancelled().await;
            set.at.get_or_init(|| Instant::now() + set.drain);
        });
        deadline
    }

    pub(super) fn remaining(&self) -> Duration {
        let at = self.at.get_or_init(|| Instant::now() + self.drain);
        at.saturating_duration_since(Instant::now())
    }
}
