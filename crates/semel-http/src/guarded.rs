//! The way of one guarded request, from its key to its answer.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use semel_core::store::{Epoch, Hearing};
use semel_core::transition::InProgress;
use semel_core::{Decision, Identity, Key, OperationId, Reserve, Store, Timestamp};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{Instrument as _, Span};

use crate::answer::{self, Refusal};
use crate::body::{self, ResponseBody, Unread};
use crate::cache::{Answer, Entry, Exact};
use crate::extract::original_uri;
use crate::fingerprint::{TooLarge, fingerprints};
use crate::layer::Layer;
use crate::reason;
use crate::replay;
use crate::reserve::{Attempted, attempt};
use crate::route::{Guard, InFlight};
use crate::service::{Flow, Inner, settled};
use crate::spans;

/// How often a waiter looks for itself where the store does not hear: the execution may be
/// another process's, from which no wake-up comes. Also how long a store may take to listen.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How often it looks where the store does hear, since what is heard may be lost on the way.
const LOOK_ANYWAY_EVERY: Duration = Duration::from_secs(1);

/// The longest that a client is told to stay away.
const RETRY_AFTER_MAX: u64 = 60;

/// Everything that is needed to ask for an execution, and to perform it.
pub(crate) struct Job<S, I> {
    pub(crate) layer: Layer<S>,
    pub(crate) guard: Arc<Guard>,
    /// What the store is asked. Its id is of no meaning: every time of asking has a new one.
    pub(crate) request: Reserve,
    pub(crate) head: Parts,
    pub(crate) body: Bytes,
    pub(crate) inner: I,
    /// Around the whole request.
    pub(crate) span: Span,
}

pub(crate) async fn guarded<S, I, B, R>(
    layer: Layer<S>,
    guard: Arc<Guard>,
    key: Key,
    line: HeaderValue,
    request: Request<B>,
    inner: I,
) -> Response<ResponseBody<R>>
where
    S: Store,
    I: Inner<B, R>,
    B: Flow,
    R: Flow,
{
    let rules = Arc::clone(&layer.rules);
    let span = spans::guard(&guard);
    let within = span.clone();
    let answering = async {
        match prepare(layer, guard, key, request, inner, within).await {
            Ok(Prepared::New(job)) => answer(job).await,
            Ok(Prepared::Cached(found)) => settled(replay::respond(&rules, *found)),
            Err(refusal) => settled(refusal.render(rules.dialect)),
        }
    };
    let mut answer = answering.instrument(span).await;
    answer.headers_mut().insert(rules.header.clone(), line);
    answer
}

/// What is known once the request is read.
enum Prepared<S, I> {
    /// It was sent before, and its answer is at hand.
    Cached(Box<Answer>),
    /// The store has to be asked.
    New(Box<Job<S, I>>),
}

/// Reads the body, finds the tenant, and takes the fingerprint.
async fn prepare<S, I, B>(
    layer: Layer<S>,
    guard: Arc<Guard>,
    key: Key,
    request: Request<B>,
    inner: I,
    span: Span,
) -> Result<Prepared<S, I>, Refusal>
where
    S: Store,
    B: Body<Data = Bytes>,
{
    let (head, body) = request.into_parts();
    let body = match body::read(body, guard.route.max_request).await {
        Ok(body) => body,
        Err(Unread::TooLarge) => return Err(Refusal::new(&reason::REQUEST_TOO_LARGE)),
        Err(Unread::Broken(_)) => return Err(Refusal::new(&reason::REQUEST_INCOMPLETE)),
    };
    let rules = &layer.rules;
    let tenant = (rules.tenant)(&head).ok_or(Refusal::new(&reason::TENANT_UNRESOLVED))?;
    let unnamed;
    let operation = if let Some(name) = &guard.route.operation {
        name
    } else {
        let uri = original_uri(&head.extensions, &head.uri);
        unnamed = format!("{} {}", head.method, uri.path()).into_boxed_str();
        &unnamed
    };
    let identity = Identity::new(tenant, operation.clone(), key)
        .map_err(|error| Refusal::new(&reason::TENANT_UNRESOLVED).detail(format!("{error}.")))?
        .scoped(guard.scope(rules.dialect));
    let state = &layer.state;
    let known = state
        .cache
        .find(&identity, state.clock.now(), state.store.epoch());
    let same_bytes = |entry: &Arc<Entry>| entry.to_same_bytes(&guard, &head, &body);
    if let Some(found) = known.as_ref().and_then(same_bytes) {
        guard.meters.replay.increment(1);
        spans::replayed_at_once(&span, found.id);
        return Ok(Prepared::Cached(Box::new(found)));
    }
    let fingerprints = fingerprints(&guard, rules.dialect, operation, &head, &body)
        .map_err(|TooLarge| Refusal::new(&reason::REQUEST_TOO_LARGE))?;
    if let Some(found) = known.and_then(|entry| entry.to_same_meaning(&fingerprints)) {
        guard.meters.replay.increment(1);
        spans::replayed_at_once(&span, found.id);
        return Ok(Prepared::Cached(Box::new(found)));
    }
    let request = Reserve {
        id: OperationId::from_bytes([0; 16]),
        identity,
        fingerprints,
        owner: state.owner.clone(),
        policy: guard.route.policy.clone(),
    };
    Ok(Prepared::New(Box::new(Job {
        layer,
        guard,
        request,
        head,
        body,
        inner,
        span,
    })))
}

/// The answer from the store, or from an execution; where it is somebody else's, and the route
/// says so, after waiting for that.
async fn answer<S, I, B, R>(job: Box<Job<S, I>>) -> Response<ResponseBody<R>>
where
    S: Store,
    I: Inner<B, R>,
    B: Flow,
    R: Flow,
{
    let state = Arc::clone(&job.layer.state);
    let read_at = state.store.epoch();
    let patience = match job.guard.route.in_flight {
        InFlight::Wait { max } => max,
        InFlight::Reject | InFlight::Accept => Duration::ZERO,
    };
    let (mut running, mut job) = match look(job, read_at).await {
        Looked::Answered(response) => return response,
        Looked::Running(running, job) => (running, job),
    };
    let until = Instant::now() + patience;
    let mut watched = None;
    let mut hearing = None;
    while Instant::now() < until
        && let Some(place) = state.waiters.enter(running.fence.id)
    {
        // Listening before looking: an end that comes after the look is heard.
        let ended = place.ended();
        let mut ended = pin!(ended.notified());
        ended.as_mut().enable();
        // Once for each attempt: a store that is heard from too early is not asked again.
        if watched.replace(running.fence) != Some(running.fence) {
            let listening = state.store.watch(running.fence);
            let listening = timeout_at(until.min(Instant::now() + LOOK_EVERY), listening).await;
            hearing = listening.unwrap_or_default();
        }
        (running, job) = match look(job, read_at).await {
            Looked::Answered(response) => return response,
            Looked::Running(running, job) => (running, job),
        };
        if watched != Some(running.fence) {
            // Another attempt began meanwhile, and nobody listens for its end yet.
            continue;
        }
        let look_again = match hearing {
            Some(_) => LOOK_ANYWAY_EVERY,
            None => LOOK_EVERY,
        };
        tokio::select! {
            () = ended => {}
            () = heard(&mut hearing) => {}
            () = sleep_until(until.min(Instant::now() + look_again)) => {}
        }
    }
    settled(job.tell(Decision::InProgress(running), read_at))
}

/// Waits for what the store hears, once; for ever where it hears nothing.
async fn heard(hearing: &mut Option<Hearing>) {
    match hearing {
        Some(listening) => listening.await,
        None => return pending().await,
    }
    *hearing = None;
}

/// What a look came to.
enum Looked<S, I, R> {
    Answered(Response<ResponseBody<R>>),
    /// Somebody else executes; the job is handed back.
    Running(InProgress, Box<Job<S, I>>),
}

/// Looks once.
async fn look<S, I, B, R>(job: Box<Job<S, I>>, read_at: Option<Epoch>) -> Looked<S, I, R>
where
    S: Store,
    I: Inner<B, R>,
    B: Flow,
    R: Flow,
{
    match ask(job).await {
        Attempted::Answered(response) => Looked::Answered(response),
        Attempted::Decided(Decision::InProgress(running), job) => Looked::Running(running, job),
        Attempted::Decided(decision, job) => Looked::Answered(settled(job.tell(decision, read_at))),
    }
}

/// Asks for an execution, and performs it where it is granted, in a task of its own: whoever
/// stops waiting for the answer stops nothing else.
async fn ask<S, I, B, R>(job: Box<Job<S, I>>) -> Attempted<S, I, R>
where
    S: Store,
    I: Inner<B, R>,
    B: Flow,
    R: Flow,
{
    let state = Arc::clone(&job.layer.state);
    // Where nothing is granted there is nothing to keep alive.
    if let Some(decision) = state.store.glance(&job.request) {
        spans::decided_at_once(&job.span, &decision);
        return Attempted::Decided(decision, job);
    }
    let (reply, answer) = oneshot::channel();
    let dialect = job.layer.rules.dialect;
    // Also of the spans that the layer stands in: they are the application's own.
    state
        .executions
        .spawn(attempt(job, reply).in_current_span());
    // A task that ends without a word was ended by the runtime: nobody knows how far it came.
    answer.await.unwrap_or_else(|_| {
        Attempted::Answered(settled(
            Refusal::new(&reason::OUTCOME_BROKEN).render(dialect),
        ))
    })
}

impl<S: Store, I> Job<S, I> {
    /// What a client is told that may not execute.
    fn tell(self, decision: Decision, read_at: Option<Epoch>) -> Response<Bytes> {
        let rules = &self.layer.rules;
        let meters = &self.guard.meters;
        let refusal = match decision {
            Decision::Replay(found) => {
                meters.replay.increment(1);
                return match replay::from_store(found, self.layer.state.clock.now()) {
                    Ok(found) => {
                        let exact = || Exact::of(&self.guard, &self.head, &self.body);
                        let cache = &self.layer.state.cache;
                        let Reserve {
                            identity,
                            fingerprints,
                            ..
                        } = self.request;
                        cache.fill(read_at, identity, fingerprints, exact, &found);
                        replay::respond(rules, found)
                    }
                    Err(refusal) => refusal.render(rules.dialect),
                };
            }
            Decision::InProgress(running) => {
                meters.in_progress.increment(1);
                let id = running.fence.id;
                if self.guard.route.in_flight == InFlight::Accept {
                    return answer::accepted(id, rules.status_of(id));
                }
                Refusal::new(&reason::IN_PROGRESS).operation(id)
            }
            Decision::Unknown(unknown) => {
                meters.unknown.increment(1);
                let id = unknown.id;
                Refusal {
                    location: rules.status_of(id),
                    retry_after: Some(self.seconds_until(unknown.reconcile_after)),
                    ..Refusal::new(&reason::OUTCOME_UNKNOWN).operation(id)
                }
            }
            Decision::KeyMisuse { id } => {
                meters.key_misuse.increment(1);
                let key = self.request.identity.key().short_hash();
                let (tenant, operation) = (
                    self.request.identity.tenant(),
                    self.request.identity.operation(),
                );
                spans::logged(id, None, Some(operation)).in_scope(
                    || tracing::info!(%id, key, tenant, operation, "a key was used for another request"),
                );
                // The id would tell a misuser that there is something to ask about.
                Refusal::new(&reason::KEY_REUSED)
            }
            Decision::Expired(expired) => {
                meters.expired.increment(1);
                Refusal {
                    resource: expired.resource,
                    ..Refusal::new(&reason::EXPIRED).operation(expired.id)
                }
            }
            // Never told: whoever is granted an execution performs it.
            Decision::Execute(_) | Decision::Resume(_) => Refusal::new(&reason::OUTCOME_BROKEN),
        };
        refusal.render(rules.dialect)
    }

    fn seconds_until(&self, at: Timestamp) -> u64 {
        let micros = at.as_micros() - self.layer.state.clock.now().as_micros();
        u64::try_from(micros / 1_000_000)
            .unwrap_or(0)
            .clamp(1, RETRY_AFTER_MAX)
    }
}
