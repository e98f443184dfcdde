//! Whether the process takes requests.

use semel_core::{OperationId, Store};
use tokio_util::sync::CancellationToken;

use crate::rollback::StoreWatch;

/// What the readiness check looks at.
#[derive(Clone)]
pub(super) struct Readiness<S> {
    pub(super) store: S,
    pub(super) watch: StoreWatch,
    pub(super) stopping: CancellationToken,
}

impl<S: Store> Readiness<S> {
    /// Looks up a record that cannot exist, and describes the server of the store.
    pub(super) async fn check(self) -> Result<Vec<String>, String> {
        if self.stopping.is_cancelled() {
            return Err("the process is stopping".to_owned());
        }
        let trusted = self.watch.check();
        let found = self.store.find(OperationId::from_bytes([0; 16])).await;
        let ready = trusted.and(found.map(drop));
        ready
            .map(|()| self.watch.describe_server())
            .map_err(|error| error.to_string())
    }
}
