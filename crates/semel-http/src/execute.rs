//! Fourth step: executing what was granted, and finding out how it ended.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt as _;
use http::{Request, Response};
use semel_core::transition::Grant;
use semel_core::{Code, Completion, Fence, Held, Resource, Store, Timestamp};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::answer::Refusal;
use crate::body::{Collected, RequestBody, ResponseBody, Settled, collect};
use crate::complete::{Record, Word};
use crate::guarded::Job;
use crate::layer::State;
use crate::operation::Operation;
use crate::outcome::{Ending, Outcome, Unframed, Words};
use crate::reason::{self, Reason};
use crate::replay::disclose_expiry;
use crate::reserve::{Attempted, Reply};
use crate::route::{Guard, Route};
use crate::rules::Rules;
use crate::service::{Flow, Inner, settled};

/// How many heartbeats fit into a lease: two may be lost before it runs out.
const BEATS_PER_LEASE: u32 = 3;

/// How an execution ended: with a whole answer, or without.
type Ended<R> = Result<Response<Collected<R>>, Code>;

/// Performs a granted execution to its end: whatever happens, something is written.
pub(crate) async fn perform<S, I, B, R>(job: Box<Job<S, I>>, grant: Grant, reply: Reply<S, I, R>)
where
    S: Store,
    I: Inner<B, R>,
    B: Flow,
    R: Flow,
{
    let Job {
        layer,
        guard,
        mut head,
        body,
        inner,
        ..
    } = *job;
    let state = Arc::clone(&layer.state);
    let meters = &guard.meters;
    if grant.fence.attempt == 1 {
        meters.created.increment(1);
    } else {
        meters.failed_retry.increment(1);
    }
    let granted_at = state.clock.now();
    head.extensions.insert(Operation::new(grant.fence));
    let request = Request::from_parts(head, RequestBody::buffered(body));

    let began = Instant::now();
    let ended = execute(&state, &guard, grant.fence, inner, request).await;
    meters.execute_seconds.record(began.elapsed());

    let (word, mut answer) = conclude(&guard.route, &layer.rules, grant.fence, ended);
    let record = Record::new(&state, &guard, grant.fence);
    if let Word::Complete(_) = word {
        // By the store's clock: what it said at the grant, and the time since then.
        let since = state.clock.now().as_micros() - granted_at.as_micros();
        let lease = guard.route.policy.lease;
        let at_grant = grant.locked_until.as_micros() - semel_core::time::micros(lease);
        let expires_at = Timestamp::from_micros(at_grant.saturating_add(since))
            .saturating_add(guard.route.policy.windows.replay);
        disclose_expiry(answer.headers_mut(), expires_at);
        // An application may have marks of its own; here they would claim a replay.
        answer.headers_mut().remove(&layer.rules.replayed);
    }
    let mut recording = pin!(record.write(&word));
    let held = tokio::select! {
        biased;
        held = &mut recording => held,
        () = sleep(state.record_patience) => {
            send(reply, pending(&layer.rules, record.id()));
            recording.await;
            return;
        }
    };
    let answer = match (held, &word) {
        // What a retry would be given is not this answer.
        (Some(Held::Fenced(_)), Word::Complete(_)) => {
            refuse(&layer.rules, &reason::OUTCOME_UNKNOWN, record.id())
        }
        (None, _) => pending(&layer.rules, record.id()),
        (Some(_), _) => answer,
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
        let response = inner.call(request).await.map_err(|error| {
            let error = error.into();
            tracing::error!(id = %fence.id, error, "the service failed");
            Code::new("service_failed")
        })?;
        let (head, body) = response.into_parts();
        let body = if head.extensions.get::<Unframed>().is_some() {
            Ok(Collected::flowing(body))
        } else {
            collect(body, guard.route.max_response).await
        };
        let body = body.map_err(|error| {
            let error = error.into();
            tracing::error!(id = %fence.id, error, "the answer broke off");
            Code::new("response_truncated")
        })?;
        Ok(Response::from_parts(head, body))
    };
    let id = fence.id;
    tokio::select! {
        biased;
        ended = AssertUnwindSafe(execution).catch_unwind() => ended.unwrap_or_else(|_| {
            tracing::error!(%id, "the handler panicked");
            Err(Code::new("handler_panicked"))
        }),
        () = heart(state, guard, fence) => {
            tracing::error!(%id, bound = ?guard.route.execute_max, "the execution took too long and is given up");
            Err(Code::new("execution_timed_out"))
        }
        () = state.abandon.cancelled() => Err(Code::new("shut_down_while_executing")),
    }
}

/// Renews the lease until the execution's time is over. A handler that is wedged must not be
/// believed alive for ever.
async fn heart<S: Store>(state: &State<S>, guard: &Guard, fence: Fence) {
    let lease = guard.route.policy.lease;
    let over = Instant::now() + guard.route.execute_max;
    loop {
        let next = Instant::now() + lease / BEATS_PER_LEASE;
        if next >= over {
            return sleep_until(over).await;
        }
        sleep_until(next).await;
        let beat = timeout_at(over, state.store.heartbeat(fence, lease)).await;
        match beat {
            Ok(Ok(Held::Applied | Held::Repeated)) | Err(_) => {}
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

/// What is written and what is sent.
fn conclude<R>(
    route: &Route,
    rules: &Rules,
    fence: Fence,
    ended: Ended<R>,
) -> (Word, Response<ResponseBody<R>>) {
    let mut response = match ended {
        Ok(response) => response,
        Err(code) => {
            let answer = refuse(rules, &reason::OUTCOME_BROKEN, fence.id);
            return (Word::MarkUnknown(code), answer);
        }
    };
    let Outcome {
        ending,
        code,
        words,
    } = route.outcomes.judge(&mut response);
    let in_other_words = match (words, ending) {
        (Words::Unreachable, _) => Some(&reason::UPSTREAM_UNREACHABLE),
        (Words::Layer, Ending::NotExecuted | Ending::Forget) => Some(&reason::NOT_EXECUTED),
        (Words::Layer, Ending::Unknown) => Some(&reason::OUTCOME_BROKEN),
        // A success that no retry would be given is not shown to the first caller either.
        (Words::Application, Ending::Unknown) if !response.status().is_server_error() => {
            Some(&reason::OUTCOME_BROKEN)
        }
        (Words::Application | Words::Layer, _) => None,
    };
    let word = match ending {
        Ending::Completed => Word::Complete(completion(route, &mut response)),
        Ending::NotExecuted => Word::Release(code),
        Ending::Forget => Word::Evict(code),
        Ending::Unknown => Word::MarkUnknown(code),
    };
    if let Some(reason) = in_other_words {
        return (word, refuse(rules, reason, fence.id));
    }
    let response = response.map(|body| {
        ResponseBody::settled(match body {
            Collected::Whole(body, trailers) => Settled::whole(body, trailers),
            Collected::Over(body) => body,
        })
    });
    (word, response)
}

fn completion<R>(route: &Route, response: &mut Response<Collected<R>>) -> Completion {
    Completion {
        resource: response.extensions_mut().remove::<Resource>(),
        response: semel_core::Response {
            status: response.status().as_u16(),
            headers: route.stored.take(response.headers()),
            body: match response.body() {
                Collected::Whole(body, _) => Some(body.clone()),
                Collected::Over(_) => None,
            },
            schema_version: 0,
        },
    }
}

fn refuse<R>(
    rules: &Rules,
    reason: &'static Reason,
    id: semel_core::OperationId,
) -> Response<ResponseBody<R>> {
    let location = reason.status_link.then(|| rules.status_of(id)).flatten();
    let refusal = Refusal {
        location,
        ..Refusal::new(reason).operation(id)
    };
    settled(refusal.render(rules.dialect))
}

fn pending<R>(rules: &Rules, id: semel_core::OperationId) -> Response<ResponseBody<R>> {
    refuse(rules, &reason::OUTCOME_PENDING, id)
}

fn send<S, I, R>(reply: Reply<S, I, R>, answer: Response<ResponseBody<R>>) {
    // Whoever asked may be gone; the record is written all the same.
    let _ = reply.send(Attempted::Answered(answer));
}
