//! What a handler knows about the execution it was granted.

use semel_core::{Fence, OperationId};

/// The operation that a request executes. The layer puts it into the request's extensions;
/// with axum a handler takes it as an argument.
///
/// A handler that runs has been granted this attempt, and nobody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    fence: Fence,
}

impl Operation {
    /// An operation as the layer makes them: for tests of handlers that take one.
    pub fn new(fence: Fence) -> Self {
        Self { fence }
    }

    /// The public name: for logs, for the provider's metadata, for whoever reconciles.
    pub fn id(&self) -> OperationId {
        self.fence.id
    }

    /// Which grant this is. Above 1, the attempts before are proven not to have executed.
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
