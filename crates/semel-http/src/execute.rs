//! Fourth step: executing what was granted, and finding out how it ended.

use std::panic::AssertUnwindSafe;
use std::pin::pin;

use futures_util::FutureExt as _;
use http::{Request, Response};
use semel_core::transition::Grant;
use semel_core::{Fence, Held, Store};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::Instrument as _;

use crate::body::{Collected, RequestBody, ResponseBody, collect};
use crate::complete::Record;
use crate::conclude::{Broken, Ended};
use crate::ground::Ground;
use crate::guarded::Job;
use crate::layer::State;
use crate::operation::Operation;
use crate::outcome::Unframed;
use crate::reserve::{Attempted, Reply};
use crate::route::Guard;
use crate::service::{Flow, Inner};
use crate::settle::Attempt;
use crate::spans;
use crate::together;

/// How many heartbeats fit into a lease: two may be lost before it runs out.
const BEATS_PER_LEASE: u32 = 3;

/// What was granted.
pub(crate) struct Granted {
    pub(crate) grant: Grant,
    /// Whether the attempt before fell silent.
    pub(crate) resumed: bool,
}

/// Performs a granted execution to its end: whatever happens, something is written, and every
/// line that is logged meanwhile says of which operation.
pub(crate) fn perform<S, I, B, R>(
    job: Box<Job<S, I>>,
    granted: Granted,
    reply: Reply<S, I, R>,
) -> impl Future<Output = ()> + Send
where
    S: Store,
    I: Inner<B, R>,
    B: Flow,
    R: Flow,
{
    let Fence { id, attempt } = granted.grant.fence;
    let span = spans::logged(id, Some(attempt), Some(job.request.identity.operation()));
    performing(job, granted, reply).instrument(span)
}

async fn performing<S, I, B, R>(job: Box<Job<S, I>>, granted: Granted, reply: Reply<S, I, R>)
where
    S: Store,
    I: Inner<B, R>,
    B: Flow,
    R: Flow,
{
    let Job {
        layer,
        guard,
        request: asked,
        mut head,
        body,
        inner,
        span: _guard,
    } = *job;
    let Granted { grant, resumed } = granted;
    let state = &layer.state;
    let meters = &guard.meters;
    if grant.fence.attempt == 1 {
        meters.created.increment(1);
    } else {
        meters.failed_retry.increment(1);
    }
    let granted_at = state.clock.now();
    let ground = Ground::new(state, &guard, &grant, resumed);
    head.extensions.insert(Operation::on(ground));
    let request = Request::from_parts(head, RequestBody::buffered(body));

    let began = Instant::now();
    let span = spans::execute(grant.fence);
    let executing = execute(state, &guard, grant.fence, inner, request);
    let ended = executing.instrument(span.clone()).await;
    spans::answered(&span, ended.as_ref().ok());
    drop(span);
    meters.execute_seconds.record(began.elapsed());

    let span = spans::complete(grant.fence);
    let attempt = Attempt {
        layer: &layer,
        guard: &guard,
        grant,
        granted_at,
        asked,
        span: span.clone(),
    };
    let mut settling = pin!(attempt.settle(ended).instrument(span));
    let answer = tokio::select! {
        biased;
        answer = &mut settling => answer,
        () = sleep(state.record_patience) => {
            send(reply, attempt.pending());
            settling.await;
            return;
        }
    };
    send(reply, answer);
}

/// Runs the inner service, with a heartbeat, within its bound.
async fn execute<S, I, B, R>(
    state: &State<S>,
    guard: &Guard,
    fence: Fence,
    mut inner: I,
    request: Request<RequestBody<B>>,
) -> Ended<R>
where
    S: Store,
    I: Inner<B, R>,
    R: Flow,
{
    let execution = async {
        let (answered, left) = together::noted(async { inner.call(request).await }).await;
        let response = answered.map_err(|error| {
            let error = error.into();
            tracing::error!(id = %fence.id, error, "the service failed");
            broken("service_failed")
        })?;
        let carried = together::carried(&response);
        if carried.map_or(left, |of| of != fence) {
            // The answer may speak of rows that are not there.
            tracing::error!(id = %fence.id, "the handler's transaction did not come with its answer: does a middleware drop the response's extensions?");
            return Err(broken("transaction_lost"));
        }
        let (head, body) = response.into_parts();
        let body = if head.extensions.get::<Unframed>().is_some() {
            Ok(Collected::flowing(body))
        } else {
            collect(body, guard.route.max_response).await
        };
        let body = body.map_err(|error| {
            let error = error.into();
            tracing::error!(id = %fence.id, error, "the answer broke off");
            broken("response_truncated")
        })?;
        Ok(Response::from_parts(head, body))
    };
    let id = fence.id;
    tokio::select! {
        biased;
        ended = AssertUnwindSafe(execution).catch_unwind() => ended.unwrap_or_else(|_| {
            tracing::error!(%id, "the handler panicked");
            Err(broken("handler_panicked"))
        }),
        () = heart(state, guard, fence) => {
            tracing::error!(%id, bound = ?guard.route.execute_max, "the execution took too long and is given up");
            Err(Broken::Stopped("execution_timed_out".into()))
        }
        () = state.abandon.cancelled() => Err(Broken::Stopped("shut_down_while_executing".into())),
    }
}

fn broken(code: &'static str) -> Broken {
    Broken::Unknown(code.into())
}

/// Renews the lease until the execution's time is over. A handler that is wedged must not be
/// believed alive for ever.
pub(crate) async fn heart<S: Store>(state: &State<S>, guard: &Guard, fence: Fence) {
    let lease = guard.route.policy.lease;
    let over = Instant::now() + guard.route.execute_max;
    let record = Record::new(state, guard, fence);
    loop {
        let next = Instant::now() + lease / BEATS_PER_LEASE;
        if next >= over {
            return sleep_until(over).await;
        }
        sleep_until(next).await;
        let beat = timeout_at(over, state.store.heartbeat(fence, lease)).await;
        match beat {
            Ok(Ok(Held::Applied | Held::Repeated)) | Err(_) => {}
            // The application completed its own record, and may be busy for a while yet.
            Ok(Ok(Held::Fenced(fenced))) if record.is_completed(fenced) => {
                return sleep_until(over).await;
            }
            Ok(Ok(Held::Fenced(fenced))) => {
                guard.meters.fenced.increment(1);
                tracing::warn!(id = %fence.id, found = ?fenced.found, "the lease was lost while executing");
                return sleep_until(over).await;
            }
            Ok(Err(error)) => {
                guard.meters.store_error.increment(1);
                tracing::warn!(id = %fence.id, %error, "a heartbeat failed");
            }
        }
    }
}

fn send<S, I, R>(reply: Reply<S, I, R>, answer: Response<ResponseBody<R>>) {
    // Whoever asked may be gone; the record is written all the same.
    let _ = reply.send(Attempted::Answered(answer));
}
