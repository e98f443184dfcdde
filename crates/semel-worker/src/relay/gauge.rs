//! Gauges of an outbox.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::Result;
use semel_core::{BackgroundJob, Clock, Store, background_job};

use crate::meters;

/// Exports the backlog of an outbox. A separate job, because the backlog grows while no relay
/// runs.
pub struct BacklogGauge<S> {
    store: S,
    clock: Arc<dyn Clock>,
}

impl<S: Store> BacklogGauge<S> {
    /// Measures this outbox; `clock` gives the age of its events.
    pub fn new(store: S, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    async fn measure(&self) -> Result<bool> {
        let backlog = self.store.outbox_backlog().await?;
        meters::set_backlog_gauges(&backlog, self.clock.now());
        Ok(false)
    }
}

impl<S: Store> BackgroundJob for BacklogGauge<S> {
    fn name(&self) -> &'static str {
        "outbox_measure"
    }

    fn every(&self) -> Duration {
        // As often as the other gauges.
        Duration::from_secs(10)
    }

    fn round(&self) -> background_job::Round<'_> {
        Box::pin(self.measure())
    }
}

impl<S> std::fmt::Debug for BacklogGauge<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BacklogGauge").finish_non_exhaustive()
    }
}
