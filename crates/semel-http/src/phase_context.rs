//! What the phases of an operation need of their attempt, whatever the store.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use semel_core::{Fence, Held, RecoveryPoint, Store, store};

use crate::context::AttemptGrant;
use crate::route::Guard;
use crate::state::State;

/// One granted attempt, and where its recovery points are written.
pub(crate) struct PhaseContext {
    pub(crate) fence: Fence,
    /// What an earlier attempt committed.
    pub(crate) recovery: Option<RecoveryPoint>,
    /// Whether the attempt before ended without a final write. If not, it is proven to have done
    /// nothing beyond what is committed.
    pub(crate) resumed: bool,
    /// Whether the route declares phases.
    pub(crate) declared: bool,
    pub(crate) points: Arc<dyn RecoveryPoints>,
}

/// Where recovery points are written.
pub(crate) trait RecoveryPoints: Send + Sync {
    /// See [`Store::advance`].
    fn advance(&self, fence: Fence, point: RecoveryPoint) -> Advancing<'_>;

    /// See [`Store::prepare_point`].
    fn prepare(&self, fence: Fence, point: RecoveryPoint) -> store::Result<RecoveryPoint>;
}

type Advancing<'a> = Pin<Box<dyn Future<Output = store::Result<Held>> + Send + 'a>>;

impl<S: Store> RecoveryPoints for State<S> {
    fn advance(&self, fence: Fence, point: RecoveryPoint) -> Advancing<'_> {
        Box::pin(self.store.advance(fence, point))
    }

    fn prepare(&self, fence: Fence, point: RecoveryPoint) -> store::Result<RecoveryPoint> {
        self.store.prepare_point(fence.id, point)
    }
}

impl fmt::Debug for PhaseContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhaseContext")
            .field("fence", &self.fence)
            .field("recovery", &self.recovery)
            .finish_non_exhaustive()
    }
}

impl PhaseContext {
    pub(crate) fn new<S: Store>(
        state: &Arc<State<S>>,
        guard: &Guard,
        grant: &AttemptGrant,
    ) -> Self {
        Self {
            fence: grant.fence(),
            recovery: grant.grant.recovery.clone(),
            resumed: grant.resumed,
            declared: guard.route.policy.resumes_within().is_some(),
            points: Arc::clone(state) as Arc<dyn RecoveryPoints>,
        }
    }
}
