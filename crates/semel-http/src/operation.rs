//! What a handler knows about the execution it was granted.

use std::fmt;
use std::sync::Arc;

use semel_core::{Fence, OperationId};

use crate::ground::Ground;

/// The operation that a request executes. The layer puts it into the request's extensions;
/// with axum a handler takes it as an argument.
///
/// A handler that runs has been granted this attempt, and nobody else has.
#[derive(Clone)]
pub struct Operation {
    fence: Fence,
    /// What phases stand on; none where nobody granted anything.
    pub(crate) ground: Option<Arc<Ground>>,
}

impl Operation {
    /// An operation as the layer makes them: for tests of handlers that take one. It has no
    /// phases, since there is no store behind it.
    pub fn new(fence: Fence) -> Self {
        Self {
            fence,
            ground: None,
        }
    }

    pub(crate) fn on(ground: Ground) -> Self {
        Self {
            fence: ground.fence,
            ground: Some(Arc::new(ground)),
        }
    }

    /// The public name: for logs, for the provider's metadata, for whoever reconciles.
    pub fn id(&self) -> OperationId {
        self.fence.id
    }

    /// Which grant this is. Above 1, the attempts before are proven not to have executed, or this
    /// one goes on where their last phase ended.
    pub fn attempt(&self) -> u32 {
        self.fence.attempt
    }

    /// The operation and the attempt together, as the store's fenced writes name them.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The idempotency key for a call that the handler makes elsewhere: the same on every
    /// attempt, another for every step.
    pub fn downstream_key(&self, step: &str) -> String {
        self.fence.id.downstream_key(step)
    }
}

impl PartialEq for Operation {
    fn eq(&self, other: &Self) -> bool {
        self.fence == other.fence
    }
}

impl Eq for Operation {}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("id", &self.fence.id)
            .field("attempt", &self.fence.attempt)
            .finish_non_exhaustive()
    }
}
