//! Step 3: asking the store for the right to execute.

use std::pin::Pin;
use std::sync::Arc;

use semel_core::{Decision, Owner, Store, store};
use tokio::time::{Instant, timeout};
use tracing::Instrument as _;

use crate::context::{AttemptContext, AttemptGrant};
use crate::home::Home;
use crate::reason;
use crate::record::release_unused;
use crate::refusal::Refusal;
use crate::spans;

/// What the store decided.
pub(crate) enum Reserved {
    /// This request executes.
    Granted(AttemptGrant),
    /// Another attempt executes, or has executed.
    Decided(Decision),
    /// Nothing executes. What the store may have granted is returned by the future, after the
    /// client has its response.
    Refused(Refusal, ReleaseUnused),
}

/// Returns a grant that is not used.
pub(crate) type ReleaseUnused = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Decides without waiting where the store can, which grants nothing.
pub(crate) fn try_decide<S: Store>(context: &AttemptContext<S>) -> Option<Decision> {
    let decision = context.state.store.try_decide(&context.reservation)?;
    spans::decided_at_once(&context.span, &decision);
    Some(decision)
}

/// Reserves the key, within the store's timeout.
pub(crate) async fn reserve<S: Store>(context: &AttemptContext<S>) -> Reserved {
    let state = &context.state;
    if state.abandon.is_cancelled() {
        return Reserved::Refused(shutting_down(), Box::pin(async {}));
    }
    if let Some(refusal) = home_elsewhere(context) {
        return Reserved::Refused(refusal, Box::pin(async {}));
    }
    let reservation = context.new_reservation();
    let (id, owner) = (reservation.id, reservation.owner.clone());
    let asked_at = Instant::now();
    // Boxed: where it times out, it outlives this function and the request.
    let mut reserving = Box::pin({
        let state = Arc::clone(state);
        async move { state.store.reserve(reservation).await }
    });
    let span = spans::reserve();
    let answered = timeout(state.store_timeout, &mut reserving).instrument(span.clone());
    let Ok(decision) = answered.await else {
        spans::failed(&span);
        tracing::error!(%id, "the store did not answer in time; nothing is executed");
        context.guard.metrics.store_error.increment(1);
        let late = release_after(context, owner, reserving);
        return Reserved::Refused(Refusal::new(&reason::STORE_UNAVAILABLE), late);
    };
    match &decision {
        Ok(decision) => spans::decided([&context.span, &span], decision),
        Err(_) => spans::failed(&span),
    }
    drop(span);
    let elapsed = asked_at.elapsed();
    context.guard.metrics.reserve_seconds.record(elapsed);
    let granted = |grant, resumed| {
        Reserved::Granted(AttemptGrant {
            grant,
            resumed,
            granted_at: state.clock.now(),
        })
    };
    match decision {
        // The layer gave up on its executions while this one was being reserved.
        Ok(granted @ (Decision::Execute(_) | Decision::Resume(_)))
            if state.abandon.is_cancelled() =>
        {
            let unused = release_after(context, owner, async { Ok(granted) });
            Reserved::Refused(shutting_down(), unused)
        }
        Ok(Decision::Execute(grant)) => granted(grant, false),
        Ok(Decision::Resume(grant)) => granted(grant, true),
        Ok(decision) => Reserved::Decided(decision),
        Err(error) => {
            tracing::error!(%id, %error, "could not reserve; nothing is executed");
            context.guard.metrics.store_error.increment(1);
            let unused = release_after(context, owner, async { Err(error) });
            Reserved::Refused(Refusal::new(&reason::STORE_UNAVAILABLE), unused)
        }
    }
}

/// Releases what `decision` grants in the end. The client was sent a refusal, so nothing executes.
fn release_after<S: Store>(
    context: &AttemptContext<S>,
    owner: Owner,
    decision: impl Future<Output = store::Result<Decision>> + Send + 'static,
) -> ReleaseUnused {
    let (state, guard) = (Arc::clone(&context.state), Arc::clone(&context.guard));
    let identity = context.reservation.identity.clone();
    Box::pin(async move {
        let decision = decision.await;
        release_unused(&state, &guard, &identity, &owner, decision).await;
    })
}

fn shutting_down() -> Refusal {
    Refusal::new(&reason::STORE_UNAVAILABLE)
        .detail("Nothing was executed: the server is shutting down. Retry with the same key.")
}

/// Refuses a request whose home is not here any more: the list of regions may have changed while it
/// waited.
fn home_elsewhere<S: Store>(context: &AttemptContext<S>) -> Option<Refusal> {
    let homes = context.rules.homes.as_ref()?;
    match homes.find(&context.reservation.identity) {
        Home::Here => None,
        Home::Elsewhere(_) => Some(Refusal::region_mismatch(
            "Nothing was executed: the home of this key has changed. Retry with the same key.",
        )),
        Home::Undecided(detail) => Some(Refusal::region_mismatch(detail)),
    }
}
