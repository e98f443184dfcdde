//! Third step: asking the store for the right to execute.

use std::pin::pin;
use std::sync::Arc;

use http::Response;
use semel_core::{Decision, Fence, OperationId, Reserve, Store, store};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tracing::Instrument as _;

use crate::answer::Refusal;
use crate::body::ResponseBody;
use crate::complete::{Record, Word};
use crate::execute::{Granted, perform};
use crate::guarded::Job;
use crate::layer::State;
use crate::reason;
use crate::route::Guard;
use crate::service::{Flow, Inner, settled};
use crate::spans;

/// What came of asking.
pub(crate) enum Attempted<S, I, R> {
    /// The client's answer.
    Answered(Response<ResponseBody<R>>),
    /// Somebody else executes, or did; the job is handed back.
    Decided(Decision, Box<Job<S, I>>),
}

/// Where the client's answer goes, once.
pub(crate) type Reply<S, I, R> = oneshot::Sender<Attempted<S, I, R>>;

/// Reserves, and performs what is granted.
pub(crate) async fn attempt<S, I, B, R>(job: Box<Job<S, I>>, reply: Reply<S, I, R>)
where
    S: Store,
    I: Inner<B, R>,
    B: Flow,
    R: Flow,
{
    let state = Arc::clone(&job.layer.state);
    if state.abandon.is_cancelled() {
        return answer(reply, &job, &shutting_down());
    }
    let id = OperationId::generate();
    let request = Reserve {
        id,
        ..job.request.clone()
    };
    let asked_at = Instant::now();
    let mut reserving = pin!(state.store.reserve(request));
    let span = spans::reserve();
    let answered = timeout(state.store_patience, &mut reserving).instrument(span.clone());
    let Ok(decision) = answered.await else {
        spans::failed(&span);
        drop(span);
        tracing::error!(%id, "the store did not answer in time; nothing is executed");
        job.guard.meters.store_error.increment(1);
        answer(reply, &job, &Refusal::new(&reason::STORE_UNAVAILABLE));
        // The client was told that nothing happened, and nothing will.
        let guard = Arc::clone(&job.guard);
        drop(job);
        let late = reserving.await;
        return give_back(&state, &guard, id, late).await;
    };
    match &decision {
        Ok(decision) => spans::decided([&job.span, &span], decision),
        Err(_) => spans::failed(&span),
    }
    drop(span);
    let elapsed = asked_at.elapsed();
    job.guard.meters.reserve_seconds.record(elapsed);
    match decision {
        // What was given up on while it was being reserved does not begin any more.
        Ok(granted @ (Decision::Execute(_) | Decision::Resume(_)))
            if state.abandon.is_cancelled() =>
        {
            answer(reply, &job, &shutting_down());
            let guard = Arc::clone(&job.guard);
            drop(job);
            give_back(&state, &guard, id, Ok(granted)).await;
        }
        // Boxed: the many requests that are granted nothing need not carry its room around.
        Ok(Decision::Execute(grant)) => {
            let granted = Granted {
                grant,
                resumed: false,
            };
            Box::pin(perform(job, granted, reply)).await;
        }
        Ok(Decision::Resume(grant)) => {
            let granted = Granted {
                grant,
                resumed: true,
            };
            Box::pin(perform(job, granted, reply)).await;
        }
        Ok(decision) => {
            // Whoever asked may be gone.
            let _ = reply.send(Attempted::Decided(decision, job));
        }
        Err(error) => {
            tracing::error!(%id, %error, "could not reserve; nothing is executed");
            job.guard.meters.store_error.increment(1);
            answer(reply, &job, &Refusal::new(&reason::STORE_UNAVAILABLE));
            if error.may_have_written() {
                let guard = Arc::clone(&job.guard);
                drop(job);
                give_back(&state, &guard, id, Err(error)).await;
            }
        }
    }
}

/// Returns a grant, or what may be one, that nothing was done with.
pub(crate) async fn give_back<S: Store>(
    state: &State<S>,
    guard: &Guard,
    id: OperationId,
    granted: store::Result<Decision>,
) {
    let fence = match granted {
        Ok(Decision::Execute(grant)) => grant.fence,
        // It may have begun a new record under our name. A later attempt of an older one is
        // left to its lease, since its number is not known here.
        Err(error) if error.may_have_written() => Fence { id, attempt: 1 },
        // Nothing was granted; or nothing was done with a resumed grant, but nobody knows what was
        // done with the one before it. Its lease runs out, and somebody else resumes it.
        Ok(_) | Err(_) => return,
    };
    let record = Record::new(state, guard, fence);
    let operation = guard.route.operation.as_deref();
    let span = spans::logged(fence.id, Some(fence.attempt), operation);
    let word = Word::Evict("not_started".into());
    record.write(&word).instrument(span).await;
}

fn shutting_down() -> Refusal {
    Refusal::new(&reason::STORE_UNAVAILABLE)
        .detail("Nothing was executed: the server is shutting down. Retry with the same key.")
}

fn answer<S, I, R>(reply: Reply<S, I, R>, job: &Job<S, I>, refusal: &Refusal) {
    let response = settled(refusal.render(job.layer.rules.dialect));
    // Whoever asked may be gone.
    let _ = reply.send(Attempted::Answered(response));
}
