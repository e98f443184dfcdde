//! The request pipeline: extract → fingerprint → reserve → execute → complete → respond.
//!
//! [`run`] calls one function for each step, each in the module of that name. No step calls
//! another, and only this module imports all of them: `cargo xtask tidy` checks it.

use std::pin::pin;
use std::sync::Arc;

use http::{Request, Response};
use semel_core::{Decision, Store};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tracing::{Instrument as _, Span};

use crate::body::ResponseBody;
use crate::bounds::{ByteBody, InnerService};
use crate::complete;
use crate::context::{AttemptContext, AttemptGrant};
use crate::contracts;
use crate::execute;
use crate::extract::{self, KeyedRoute};
use crate::fingerprint::{self, Fingerprinted};
use crate::forward;
use crate::layer::Layer;
use crate::reason;
use crate::reconstruct::replace_stored;
use crate::refusal::Refusal;
use crate::replay::{head_in_cache, head_in_store};
use crate::reserve::{self, Reserved};
use crate::respond;
use crate::wait::InFlightWait;

/// How often a request is compared under other rules: its record can be replaced meanwhile.
const MAX_COMPARISONS: u32 = 4;

/// Runs the pipeline for one guarded request.
///
/// The steps from `reserve` on run in a task of their own: a client that disconnects stops
/// nothing. The outcome is stored before the response is sent. Where another request with the
/// same key executes, and the route says so, the request waits and asks again.
pub(crate) async fn run<S, I, B, R>(
    layer: &Layer<S>,
    route: KeyedRoute,
    request: Request<B>,
    mut service: I,
    span: Span,
) -> Result<Response<ResponseBody<R>>, Refusal>
where
    S: Store,
    I: InnerService<B, R>,
    B: ByteBody,
    R: ByteBody,
{
    let (state, rules) = (&layer.state, &layer.rules);
    contracts::ensure_published(layer).await?;
    let extracted = extract::extract(layer, route, request).await?;
    if let Some(home) = forward::locate(rules, &extracted).map_err(|refusal| *refusal)? {
        return forward::forward(layer, extracted, home, service, &span).await;
    }
    let (fingerprinted, extracted) =
        fingerprint::fingerprint(state, rules.dialect, extracted).await?;
    let fingerprints = match fingerprinted {
        Fingerprinted::Computed(fingerprints) => fingerprints,
        Fingerprinted::Cached(found) => {
            let (guard, identity) = (&extracted.guard, &extracted.identity);
            let head = || Some(head_in_cache(&found));
            let replaced = replace_stored(rules, guard, identity, &extracted.request, head).await;
            return Ok(respond::replay_cached(
                rules, guard, &span, *found, replaced,
            ));
        }
    };
    let (read_at, mut comparisons) = (state.store.erasure_epoch(), 0);
    let mut wait = InFlightWait::new(state, extracted.guard.route.in_flight);
    let mut context = Box::new(AttemptContext::new(
        Arc::clone(state),
        Arc::clone(rules),
        extracted,
        fingerprints,
        span,
    ));
    loop {
        let decision = if let Some(decision) = reserve::try_decide(&context) {
            decision
        } else {
            let (client, reply) = oneshot::channel();
            let attempt = async move {
                let grant = match reserve::reserve(&context).await {
                    Reserved::Granted(grant) => grant,
                    Reserved::Decided(decision) => {
                        return send(client, Reply::Decided(decision, context, service));
                    }
                    Reserved::Refused(refusal, release_unused) => {
                        send(client, Reply::Refused(refusal));
                        drop(context);
                        return release_unused.await;
                    }
                };
                let log_span = context.log_span(&grant);
                let executing = async move {
                    let outcome = execute::execute(&mut context, &grant, service).await;
                    let completing = async {
                        let completed = complete::complete(&context, &grant, outcome).await;
                        respond::respond(&context, &grant, completed).await
                    };
                    send_in_time(client, &context, &grant, completing).await;
                };
                // Boxed: a request that is granted nothing does not need the room.
                Box::pin(executing.instrument(log_span)).await;
            };
            state.executions.spawn(attempt.in_current_span());
            match reply.await {
                Ok(Reply::Responded(response)) => return Ok(response),
                Ok(Reply::Refused(refusal)) => return Err(refusal),
                // The runtime ended the task, which may have executed.
                Err(_) => return Err(Refusal::new(&reason::OUTCOME_BROKEN)),
                Ok(Reply::Decided(decision, unchanged, unused)) => {
                    (context, service) = (unchanged, unused);
                    decision
                }
            }
        };
        // The record was made under another configuration: compare it under its own rules.
        if let Decision::OtherRules { rules: other, .. } = decision
            && comparisons < MAX_COMPARISONS
        {
            comparisons += 1;
            let other = state.loaded_rules.find(&state.store, other).await?;
            context = fingerprint::add_older(context, other).await?;
            continue;
        }
        if let Decision::InProgress(running) = &decision
            && wait.wait(running).await
        {
            continue;
        }
        let replaced = match &decision {
            Decision::Replay(found) => {
                let (guard, identity) = (&context.guard, &context.reservation.identity);
                let head = || head_in_store(found);
                replace_stored(rules, guard, identity, &context.request, head).await
            }
            Decision::Execute(_)
            | Decision::Resume(_)
            | Decision::InProgress(_)
            | Decision::Unknown(_)
            | Decision::KeyMisuse { .. }
            | Decision::OtherRules { .. }
            | Decision::Expired(_) => None,
        };
        return Ok(respond::render_decision(
            *context, decision, replaced, read_at,
        ));
    }
}

/// Enters the pipeline at `execute`, for an abandoned record that was claimed. There is no client
/// to respond to.
#[cfg(feature = "axum")]
pub(crate) async fn resume<S, I, B, R>(
    mut context: AttemptContext<S>,
    grant: AttemptGrant,
    service: I,
) where
    S: Store,
    I: InnerService<B, R>,
    B: ByteBody,
    R: ByteBody,
{
    let log_span = context.log_span(&grant);
    let executing = async move {
        let outcome = execute::execute::<S, I, B, R>(&mut context, &grant, service).await;
        complete::complete(&context, &grant, outcome).await;
    };
    executing.instrument(log_span).await;
}

/// What the task of an attempt sends to the client's request, once.
enum Reply<S, I, R> {
    Responded(Response<ResponseBody<R>>),
    /// Nothing was executed.
    Refused(Refusal),
    /// Nothing was granted: the request is handed back.
    Decided(Decision, Box<AttemptContext<S>>, I),
}

fn send<S, I, R>(client: oneshot::Sender<Reply<S, I, R>>, reply: Reply<S, I, R>) {
    // The client may have disconnected.
    let _ = client.send(reply);
}

/// Sends the response when it is ready. Where recording the outcome takes too long, the client is
/// sent a refusal that says so, and the recording goes on.
async fn send_in_time<S: Store, I, R>(
    client: oneshot::Sender<Reply<S, I, R>>,
    context: &AttemptContext<S>,
    grant: &AttemptGrant,
    completing: impl Future<Output = Response<ResponseBody<R>>>,
) {
    let mut completing = pin!(completing);
    tokio::select! {
        biased;
        response = &mut completing => send(client, Reply::Responded(response)),
        () = sleep(context.state.record_timeout) => {
            send(client, Reply::Responded(respond::pending(context, grant)));
            completing.await;
        }
    }
}
