//! Step 4: running the service, and judging how it ended.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use http::{Request, Response};
use semel_core::{Fence, Store};
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::body::{Collected, RequestBody, collect};
use crate::bounds::{ByteBody, InnerService};
use crate::commit_with;
use crate::context::{AttemptContext, AttemptGrant};
use crate::heartbeat::run_heartbeat;
use crate::judge::{AttemptOutcome, Interruption, judge_attempt};
use crate::operation::Operation;
use crate::outcome::CloseDelimited;
use crate::phase_context::PhaseContext;
use crate::spans;

/// Executes a granted attempt. Whatever happens, there is an outcome to write.
pub(crate) async fn execute<S, I, B, R>(
    context: &mut AttemptContext<S>,
    grant: &AttemptGrant,
    service: I,
) -> AttemptOutcome<R>
where
    S: Store,
    I: InnerService<B, R>,
    B: ByteBody,
    R: ByteBody,
{
    let fence = grant.fence();
    let metrics = &context.guard.metrics;
    if fence.attempt == 1 {
        metrics.created.increment(1);
    } else {
        metrics.failed_retry.increment(1);
    }
    let mut request = if context.guard.route.replay.reconstruct.is_some() {
        // The response may have to be fetched for this very client, with its credentials.
        context.request.clone()
    } else {
        std::mem::take(&mut context.request)
    };
    let phases = PhaseContext::new(&context.state, &context.guard, grant);
    request
        .extensions_mut()
        .insert(Operation::with_phases(phases));

    let began = Instant::now();
    let span = spans::execute(fence);
    let running = run(context, fence, service, request.map(RequestBody::buffered));
    let ended = running.instrument(span.clone()).await;
    spans::answered(&span, ended.as_ref().ok());
    drop(span);
    metrics.execute_seconds.record(began.elapsed());
    judge_attempt(context, grant, ended)
}

/// Runs the service with a heartbeat, within the route's bound.
async fn run<S, I, B, R>(
    context: &AttemptContext<S>,
    fence: Fence,
    mut service: I,
    request: Request<RequestBody<B>>,
) -> Result<Response<Collected<R>>, Interruption>
where
    S: Store,
    I: InnerService<B, R>,
    R: ByteBody,
{
    let (state, guard) = (&context.state, &context.guard);
    let id = fence.id;
    let execution = async {
        let calling = async { service.call(request).await };
        let (answered, promised) = commit_with::track_promise(calling).await;
        let response = answered.map_err(|error| {
            let error = error.into();
            tracing::error!(%id, error, "the service failed");
            failed("service_failed")
        })?;
        let carried = commit_with::carried_fence(&response);
        if carried.map_or(promised, |of| of != fence) {
            // The response may describe rows that are rolled back.
            tracing::error!(%id, "the handler's transaction did not come with its answer: does a middleware drop the response's extensions?");
            return Err(failed("transaction_lost"));
        }
        let (head, body) = response.into_parts();
        let body = if head.extensions.get::<CloseDelimited>().is_some() {
            Ok(Collected::streaming(body))
        } else {
            collect(body, guard.route.max_response, &state.response_bytes).await
        };
        let body = body.map_err(|error| {
            let error = error.into();
            tracing::error!(%id, error, "the answer broke off");
            failed("response_truncated")
        })?;
        Ok(Response::from_parts(head, body))
    };
    tokio::select! {
        biased;
        ended = AssertUnwindSafe(execution).catch_unwind() => ended.unwrap_or_else(|_| {
            tracing::error!(%id, "the handler panicked");
            Err(failed("handler_panicked"))
        }),
        () = run_heartbeat(state, guard, fence) => {
            tracing::error!(%id, bound = ?guard.route.execute_max, "the execution took too long and is given up");
            Err(Interruption::Stopped("execution_timed_out".into()))
        }
        () = state.abandon.cancelled() => {
            Err(Interruption::Stopped("shut_down_while_executing".into()))
        }
    }
}

fn failed(code: &'static str) -> Interruption {
    Interruption::Failed(code.into())
}
