//! What one guarded request carries from step to step.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use semel_core::transition::Grant;
use semel_core::{Fence, Fingerprints, OperationId, Reserve, Store, Timestamp, time::micros};
use tracing::Span;

use crate::budget::HeldBytes;
use crate::extract::Extracted;
use crate::record::AttemptRecord;
use crate::route::Guard;
use crate::rules::Rules;
use crate::spans;
use crate::state::State;

/// One guarded request. Every step from `reserve` on is given this.
pub(crate) struct AttemptContext<S> {
    pub(crate) state: Arc<State<S>>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) guard: Arc<Guard>,
    /// What the store is asked. Id and owner are placeholders: each call has its own, see
    /// [`new_reservation`](Self::new_reservation).
    pub(crate) reservation: Reserve,
    /// The request with its whole body. `execute` takes it out, unless the route fetches responses.
    pub(crate) request: Request<Bytes>,
    /// Counts the request's body until the attempt has ended.
    _held: HeldBytes,
    /// The span of the whole request.
    pub(crate) span: Span,
}

/// The right to execute one attempt, as the store granted it.
pub(crate) struct AttemptGrant {
    pub(crate) grant: Grant,
    /// Whether the attempt before this one ended without a final write.
    pub(crate) resumed: bool,
    /// When the grant arrived, by the store's clock.
    pub(crate) granted_at: Timestamp,
}

impl<S: Store> AttemptContext<S> {
    pub(crate) fn new(
        state: Arc<State<S>>,
        rules: Arc<Rules>,
        extracted: Extracted,
        fingerprints: Fingerprints,
        span: Span,
    ) -> Self {
        let Extracted {
            guard,
            identity,
            request,
            held,
        } = extracted;
        let reservation = Reserve {
            id: OperationId::from_bytes([0; 16]),
            identity,
            fingerprints,
            owner: state.owner.clone(),
            policy: guard.route.policy.clone(),
        };
        Self {
            state,
            rules,
            guard,
            reservation,
            request,
            _held: held,
            span,
        }
    }

    /// What one call asks the store. No other call has its owner: where the answer is lost, the
    /// record shows by it whether this call was granted the attempt.
    pub(crate) fn new_reservation(&self) -> Reserve {
        let id = OperationId::generate();
        let owner = format!("{}/{id}", self.state.owner.as_str()).into();
        Reserve {
            id,
            owner,
            ..self.reservation.clone()
        }
    }

    /// The record of a granted attempt.
    pub(crate) fn record(&self, grant: &AttemptGrant) -> AttemptRecord<'_, S> {
        AttemptRecord::new(&self.state, &self.guard, grant.fence())
    }

    /// The span that puts the operation on every log line of an attempt.
    pub(crate) fn log_span(&self, grant: &AttemptGrant) -> Span {
        let Fence { id, attempt } = grant.fence();
        let operation = self.reservation.identity.operation();
        spans::logged(id, Some(attempt), Some(operation))
    }

    /// When a response that is stored now stops being replayed, by the store's clock.
    pub(crate) fn expires_at(&self, grant: &AttemptGrant) -> Timestamp {
        let policy = &self.guard.route.policy;
        // Without its body a response is not replayed.
        let window = policy.windows.replay.min(policy.windows.body);
        let since = self.state.clock.now().as_micros() - grant.granted_at.as_micros();
        let at_grant = grant.grant.locked_until.as_micros() - micros(policy.lease);
        Timestamp::from_micros(at_grant.saturating_add(since)).saturating_add(window)
    }
}

impl AttemptGrant {
    pub(crate) fn fence(&self) -> Fence {
        self.grant.fence
    }

    pub(crate) fn id(&self) -> OperationId {
        self.grant.fence.id
    }
}
