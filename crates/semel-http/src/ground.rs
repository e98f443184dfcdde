//! What the phases of an operation stand on: its record, whatever the store.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use semel_core::transition::Grant;
use semel_core::{Fence, Held, RecoveryPoint, Store, store};

use crate::layer::State;
use crate::route::Guard;

/// One granted attempt and its record.
pub(crate) struct Ground {
    pub(crate) fence: Fence,
    /// What an earlier attempt committed.
    pub(crate) recovery: Option<RecoveryPoint>,
    /// Whether the attempt before fell silent. If it did not, it is proven to have done nothing
    /// beyond what is committed.
    pub(crate) resumed: bool,
    /// Whether the route says that its handler is made of phases.
    pub(crate) declared: bool,
    pub(crate) points: Arc<dyn Points>,
}

/// Where recovery points are written.
pub(crate) trait Points: Send + Sync {
    /// See [`Store::advance`].
    fn advance(&self, fence: Fence, point: RecoveryPoint) -> Advancing<'_>;

    /// See [`Store::prepare_point`].
    fn prepare(&self, fence: Fence, point: RecoveryPoint) -> store::Result<RecoveryPoint>;
}

type Advancing<'a> = Pin<Box<dyn Future<Output = store::Result<Held>> + Send + 'a>>;

impl<S: Store> Points for State<S> {
    fn advance(&self, fence: Fence, point: RecoveryPoint) -> Advancing<'_> {
        Box::pin(self.store.advance(fence, point))
    }

    fn prepare(&self, fence: Fence, point: RecoveryPoint) -> store::Result<RecoveryPoint> {
        self.store.prepare_point(fence.id, point)
    }
}

impl fmt::Debug for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ground")
            .field("fence", &self.fence)
            .field("recovery", &self.recovery)
            .finish_non_exhaustive()
    }
}

impl Ground {
    pub(crate) fn new<S: Store>(
        state: &Arc<State<S>>,
        guard: &Guard,
        grant: &Grant,
        resumed: bool,
    ) -> Self {
        Self {
            fence: grant.fence,
            recovery: grant.recovery.clone(),
            resumed,
            declared: guard.route.policy.resumes_within().is_some(),
            points: Arc::clone(state) as Arc<dyn Points>,
        }
    }
}
