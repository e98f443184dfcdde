//! Step 6: the response to the client: from its own attempt, from the record, or a refusal.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use semel_core::store::ErasureEpoch;
use semel_core::transition::Replay;
use semel_core::{Decision, Reserve, Store, Timestamp};
use tracing::Span;

use crate::body::{ResponseBody, from_bytes};
use crate::cache::{ExactRequest, StoredResponse};
use crate::complete::Completed;
use crate::context::{AttemptContext, AttemptGrant};
use crate::reason;
use crate::reconstruct::fetch_first;
use crate::record::release_unused;
use crate::refusal::{self, Refusal, refuse};
use crate::replay;
use crate::route::{Guard, InFlight};
use crate::rules::Rules;
use crate::spans;

/// The most seconds in a `Retry-After`.
const RETRY_AFTER_MAX: u64 = 60;

/// The response to the client whose request was executed.
pub(crate) async fn respond<S: Store, R>(
    context: &AttemptContext<S>,
    grant: &AttemptGrant,
    completed: Completed<R>,
) -> Response<ResponseBody<R>> {
    match completed {
        Completed::Response(response) => response,
        Completed::Refused(reason) => refuse(&context.rules, reason, grant.id()),
        Completed::InRecord => from_record(context, grant).await,
    }
}

/// The response while the outcome is still being recorded.
pub(crate) fn pending<S, R>(
    context: &AttemptContext<S>,
    grant: &AttemptGrant,
) -> Response<ResponseBody<R>> {
    refuse(&context.rules, &reason::OUTCOME_PENDING, grant.id())
}

/// A replay from this process's memory; `replaced` is sent in place of the stored response.
pub(crate) fn replay_cached<R>(
    rules: &Rules,
    guard: &Guard,
    span: &Span,
    found: StoredResponse,
    replaced: Option<Response<Bytes>>,
) -> Response<ResponseBody<R>> {
    guard.metrics.replay.increment(1);
    spans::replayed_at_once(span, found.id);
    let schema = guard.route.replay.schema;
    from_bytes(replaced.unwrap_or_else(|| replay::replay(rules, schema, found)))
}

/// The response to a request that does not execute. `replaced` is sent in place of a stored
/// response. `read_at` is the store's epoch from before it was asked.
pub(crate) fn render_decision<S: Store, R>(
    context: AttemptContext<S>,
    decision: Decision,
    replaced: Option<Response<Bytes>>,
    read_at: Option<ErasureEpoch>,
) -> Response<ResponseBody<R>> {
    from_bytes(render(context, decision, replaced, read_at))
}

fn render<S: Store>(
    context: AttemptContext<S>,
    decision: Decision,
    replaced: Option<Response<Bytes>>,
    read_at: Option<ErasureEpoch>,
) -> Response<Bytes> {
    let AttemptContext {
        state,
        rules,
        guard,
        reservation,
        request,
        ..
    } = context;
    let metrics = &guard.metrics;
    let refusal = match decision {
        Decision::Replay(found) => {
            if let Some(replaced) = replaced {
                metrics.replay.increment(1);
                return replaced;
            }
            return match replay::from_store(found, state.clock.now()) {
                Ok(found) => {
                    let Some(held) = state.response_bytes.try_hold(found.body.len()) else {
                        return Refusal::new(&reason::OVERLOADED).render(&rules);
                    };
                    metrics.replay.increment(1);
                    let exact = || ExactRequest::new(&guard, &request);
                    let Reserve {
                        identity,
                        fingerprints,
                        ..
                    } = reservation;
                    state
                        .cache
                        .fill(read_at, identity, fingerprints, exact, &found);
                    let mut replay = replay::replay(&rules, guard.route.replay.schema, found);
                    replay.extensions_mut().insert(Arc::new(held));
                    replay
                }
                Err(refusal) => {
                    metrics.replay.increment(1);
                    refusal.render(&rules)
                }
            };
        }
        Decision::InProgress(running) => {
            metrics.in_progress.increment(1);
            let id = running.fence.id;
            if guard.route.in_flight == InFlight::Accept {
                return refusal::accepted(id, rules.status_of(id));
            }
            Refusal::new(&reason::IN_PROGRESS).operation(id)
        }
        Decision::Unknown(unknown) => {
            metrics.unknown.increment(1);
            if unknown.lease_expired {
                metrics.lease_expired();
            }
            let id = unknown.id;
            let (refusal, retry_after) = if unknown.dead_lettered {
                let wait = rules.dead_letter_retry_after.as_secs();
                (Refusal::new(&reason::DEAD_LETTERED), wait.max(1))
            } else {
                let refusal = Refusal::new(&reason::OUTCOME_UNKNOWN);
                let refusal = if guard.route.reconciled {
                    refusal.detail(reason::RECONCILED_DETAIL)
                } else {
                    refusal
                };
                let wait = seconds_between(state.clock.now(), unknown.reconcile_after);
                (refusal, wait)
            };
            Refusal {
                location: rules.status_of(id),
                retry_after: Some(retry_after),
                ..refusal.operation(id)
            }
        }
        Decision::KeyMisuse { id } => {
            metrics.key_misuse.increment(1);
            let identity = &reservation.identity;
            let key = identity.key().short_hash();
            let (tenant, operation) = (identity.tenant(), identity.operation());
            spans::logged(id, None, Some(operation)).in_scope(
                || tracing::info!(%id, key, tenant, operation, "a key was used for another request"),
            );
            // Without the id: it would disclose the other request's record.
            Refusal::new(&reason::KEY_REUSED)
        }
        Decision::Expired(expired) => {
            metrics.expired.increment(1);
            Refusal {
                resource: expired.resource,
                ..Refusal::new(&reason::EXPIRED).operation(expired.id)
            }
        }
        // Not reached: the pipeline asks again, or executes.
        Decision::OtherRules { .. } => Refusal::new(&reason::STORE_UNAVAILABLE),
        Decision::Execute(_) | Decision::Resume(_) => Refusal::new(&reason::OUTCOME_BROKEN),
    };
    refusal.render(&rules)
}

/// The first client's response where another writer completed the record: what a retry gets,
/// without the header that marks a replay.
async fn from_record<S: Store, R>(
    context: &AttemptContext<S>,
    grant: &AttemptGrant,
) -> Response<ResponseBody<R>> {
    let reservation = context.new_reservation();
    let owner = reservation.owner.clone();
    let (state, guard) = (&context.state, &context.guard);
    let read = match state.store.reserve(reservation).await {
        Ok(Decision::Replay(found)) if found.id == grant.id() => {
            return from_bytes(first_response(context, found).await);
        }
        other => other,
    };
    if let Err(error) = &read {
        guard.metrics.store_error.increment(1);
        tracing::warn!(id = %grant.id(), %error, "a completed operation could not be read");
    }
    // Its window may have ended just now: then this call reserved the key anew.
    let identity = &context.reservation.identity;
    release_unused(state, guard, identity, &owner, read).await;
    pending(context, grant)
}

/// The stored response for the client whose request was executed. One without a body is fetched,
/// where the route does so for retries.
async fn first_response<S: Store>(context: &AttemptContext<S>, found: Replay) -> Response<Bytes> {
    let AttemptContext {
        state,
        rules,
        guard,
        reservation,
        request,
        ..
    } = context;
    let head = replay::head_in_store(&found);
    let refusal = match replay::from_store(found, state.clock.now()) {
        Ok(stored) => return replay::first(stored),
        Err(refusal) => refusal,
    };
    let fetched = match head {
        Some(head) => fetch_first(rules, guard, &reservation.identity, request, head).await,
        None => None,
    };
    fetched.unwrap_or_else(|| refusal.render(rules))
}

fn seconds_between(now: Timestamp, then: Timestamp) -> u64 {
    let micros = then.as_micros() - now.as_micros();
    u64::try_from(micros / 1_000_000)
        .unwrap_or(0)
        .clamp(1, RETRY_AFTER_MAX)
}
