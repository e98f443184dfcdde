//! How an outbox stands, in gauges.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::Result;
use semel_core::{Chore, Clock, Outbox, chore};

use crate::meters;

/// Shows the backlog of an outbox. Apart from the relay: a backlog grows where no relay works.
pub struct BacklogGauge<S> {
    store: S,
    clock: Arc<dyn Clock>,
}

impl<S: Outbox> BacklogGauge<S> {
    /// Of this outbox, whose events are as old as this clock says.
    pub fn new(store: S, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    async fn show(&self) -> Result<bool> {
        let backlog = self.store.backlog().await?;
        meters::show_backlog(&backlog, self.clock.now());
        Ok(false)
    }
}

impl<S: Outbox> Chore for BacklogGauge<S> {
    fn name(&self) -> &'static str {
        "outbox_measure"
    }

    fn every(&self) -> Duration {
        // As often as the other gauges, and as Prometheus usually looks.
        Duration::from_secs(10)
    }

    fn round(&self) -> chore::Round<'_> {
        Box::pin(self.show())
    }
}

impl<S> std::fmt::Debug for BacklogGauge<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BacklogGauge").finish_non_exhaustive()
    }
}
