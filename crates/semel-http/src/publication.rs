//! Whether a layer's contracts are published.

use std::sync::Arc;

use tokio::sync::OnceCell;

/// Whether a layer's contracts are published. A copy of the rules is changed before it is used, so
/// it starts unpublished.
#[derive(Default)]
pub(crate) struct Publication(pub(crate) OnceCell<Result<(), Arc<str>>>);

impl Clone for Publication {
    fn clone(&self) -> Self {
        Self::default()
    }
}
