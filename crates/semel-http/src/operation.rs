//! What a handler knows about its attempt.

use std::fmt;
use std::sync::Arc;

use semel_core::{Fence, OperationId};

use crate::phase_context::PhaseContext;

/// The attempt that a handler executes. The layer puts it into the request's extensions; with axum
/// a handler takes it as an argument.
///
/// No other handler runs under the same attempt.
#[derive(Clone)]
pub struct Operation {
    fence: Fence,
    /// `None` where there is no store behind it.
    pub(crate) phases: Option<Arc<PhaseContext>>,
}

impl Operation {
    /// For tests of handlers that take one. It has no phases, since there is no store behind it.
    pub fn new(fence: Fence) -> Self {
        Self {
            fence,
            phases: None,
        }
    }

    pub(crate) fn with_phases(phases: PhaseContext) -> Self {
        Self {
            fence: phases.fence,
            phases: Some(Arc::new(phases)),
        }
    }

    /// The record's public id: for logs, the provider's metadata, and reconciliation.
    pub fn id(&self) -> OperationId {
        self.fence.id
    }

    /// The number of this attempt. Above 1, the attempts before are proven not to have executed, or
    /// this one resumes after their last phase.
    pub fn attempt(&self) -> u32 {
        self.fence.attempt
    }

    /// The fencing token: the record's id and the attempt.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The idempotency key for a call that the handler makes to another service: the same on every
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
