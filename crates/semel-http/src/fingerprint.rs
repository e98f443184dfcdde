//! Step 2: what the client asks for, in 32 bytes.
//!
//! A request that the [replay cache](crate::cache) has seen byte for byte is not hashed again. It is
//! hashed under the current rules of its route; only where its record was made under other rules,
//! also under those.

use std::sync::Arc;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST};
use http::{HeaderValue, Request};
use semel_core::fingerprint::{Authority, Request as Fields, RulesId, is_json};
use semel_core::key::Dialect;
use semel_core::{Fingerprint, Fingerprints, Store, path};

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::cache::StoredResponse;
use crate::context::AttemptContext;
use crate::decode::{Decoded, decode};
use crate::extract::Extracted;
use crate::reason;
use crate::refusal::Refusal;
use crate::route::{CommandParser, CommandSource, Guard, ParsedCommand, RouteRules, Target};
use crate::state::State;
use crate::uri::original_uri;

/// What the second step found.
pub(crate) enum Fingerprinted {
    /// The replay cache has the response to this very request.
    Cached(Box<StoredResponse>),
    /// The store decides.
    Computed(Fingerprints),
}

/// Decoding and hashing more than this takes long enough to delay the other requests of a thread.
const MAX_INLINE: usize = 64 << 10;

/// Looks the request up in the replay cache, and takes its fingerprint. A command that was parsed
/// for it is put into the request's extensions.
pub(crate) async fn fingerprint<S: Store>(
    state: &Arc<State<S>>,
    dialect: Dialect,
    mut extracted: Extracted,
) -> Result<(Fingerprinted, Extracted), Refusal> {
    let is_large = is_large(&extracted.request);
    let permits = Arc::clone(&state.hashing);
    let state = Arc::clone(state);
    run_where(is_large, permits, move || {
        let found = find_or_compute(&state, dialect, &mut extracted);
        found.map(|found| (found, extracted))
    })
    .await?
    .map_err(|refusal| *refusal)
}

/// Whether a request takes long to hash: it is large, or may be when it is decoded.
fn is_large(request: &Request<Bytes>) -> bool {
    let body = request.body();
    let is_coded = request.headers().contains_key(CONTENT_ENCODING);
    body.len() > MAX_INLINE || (is_coded && !body.is_empty())
}

/// Runs `work` here, or on another thread while fewer than the maximum of threads are at such work.
async fn run_where<T: Send + 'static>(
    elsewhere: bool,
    permits: Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    if !elsewhere {
        return Ok(work());
    }
    // Nothing is reserved yet, so a request that fails here may be sent again.
    let not_executed = || Refusal::new(&reason::NOT_EXECUTED);
    let permit = permits.acquire_owned().await.map_err(|_| not_executed())?;
    // The work holds the permit: it goes on when its client disconnects.
    let work = move || {
        let done = work();
        drop(permit);
        done
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| not_executed())
}

fn find_or_compute<S: Store>(
    state: &State<S>,
    dialect: Dialect,
    extracted: &mut Extracted,
) -> Result<Fingerprinted, Box<Refusal>> {
    let Extracted {
        guard,
        identity,
        request,
        ..
    } = extracted;
    let cached = state
        .cache
        .find(identity, state.clock.now(), state.store.erasure_epoch());
    if let Some(found) = cached
        .as_ref()
        .and_then(|entry| entry.for_same_bytes(guard, request))
    {
        return Ok(Fingerprinted::Cached(Box::new(found)));
    }
    let fingerprints = if let Some(parser) = &guard.route.command {
        let (fingerprint, command) = parse_command(
            guard,
            parser,
            guard.rules(dialect),
            identity.operation(),
            request,
        )?;
        request.extensions_mut().insert(command);
        fingerprint.into()
    } else {
        compute(guard, guard.rules(dialect), identity.operation(), request)
            .map(Fingerprints::from)
            .ok_or_else(|| Box::new(Refusal::new(&reason::REQUEST_TOO_LARGE)))?
    };
    if let Some(found) = cached.and_then(|entry| entry.for_same_meaning(&fingerprints)) {
        return Ok(Fingerprinted::Cached(Box::new(found)));
    }
    Ok(Fingerprinted::Computed(fingerprints))
}

/// Adds the fingerprint of a request under the rules of its record.
pub(crate) async fn add_older<S: Store>(
    mut context: Box<AttemptContext<S>>,
    rules: Arc<RouteRules>,
) -> Result<Box<AttemptContext<S>>, Refusal> {
    let is_large = is_large(&context.request);
    let permits = Arc::clone(&context.state.hashing);
    run_where(is_large, permits, move || {
        if let Some(older) = compute_older(&context, &rules) {
            let known = context.reservation.fingerprints.clone();
            context.reservation.fingerprints = known.with_older(older);
        }
        context
    })
    .await
}

fn compute_older<S: Store>(context: &AttemptContext<S>, rules: &RouteRules) -> Option<Fingerprint> {
    let AttemptContext { guard, request, .. } = context;
    let operation = context.reservation.identity.operation();
    match (&guard.route.command, rules.rules.is_command()) {
        // It was decoded once, so it is not too large.
        (_, false) => compute(guard, rules, operation, request),
        (Some(parser), true) => {
            // Of the first versions: under the headers that the route has now.
            let current = guard.rules(context.rules.dialect);
            let of_first = RouteRules {
                headers: current.headers.clone(),
                rules: rules.rules.clone(),
            };
            let is_first = rules.rules.id() == RulesId::COMMAND;
            let rules = if is_first { &of_first } else { rules };
            let parsed = parse_command(guard, parser, rules, operation, request);
            parsed.ok().map(|(fingerprint, _)| fingerprint)
        }
        // The route has no command any more: nothing can be said.
        (None, true) => None,
    }
}

/// The authority in the target, and in `Host`.
fn authorities(request: &Request<Bytes>) -> impl Iterator<Item = Authority<'_>> {
    let uri = original_uri(request.extensions(), request.uri());
    let scheme = uri.scheme_str();
    let in_target = uri
        .authority()
        .map(|authority| authority.as_str().as_bytes());
    let lines = request.headers().get_all(HOST).iter();
    let hosts = in_target
        .into_iter()
        .chain(lines.map(HeaderValue::as_bytes));
    hosts.map(move |host| Authority { scheme, host })
}

/// `None` where the decoded body is larger than the route allows.
fn compute(
    guard: &Guard,
    rules: &RouteRules,
    operation: &str,
    request: &Request<Bytes>,
) -> Option<Fingerprint> {
    let (headers, body) = (request.headers(), request.body());
    let uri = original_uri(request.extensions(), request.uri());
    let mut fields = Fields::new(operation, request.method().as_str(), uri.path());
    if let Some(query) = uri.query() {
        fields = fields.query(query);
    }
    for authority in authorities(request) {
        fields = fields.authority(authority);
    }
    let joined;
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    match (types.next(), types.next()) {
        (None, _) => {}
        (Some(one), None) => fields = fields.content_type(one.as_bytes()),
        (Some(_), Some(_)) => {
            let all: Vec<_> = headers.get_all(CONTENT_TYPE).iter().collect();
            joined = all
                .iter()
                .map(|line| line.as_bytes())
                .collect::<Vec<_>>()
                .join(&b", "[..]);
            fields = fields.content_type(&joined);
        }
    }
    for name in &rules.headers {
        for line in headers.get_all(name) {
            fields = fields.header(name.as_str(), line.as_bytes());
        }
    }
    let decoded = decode(headers, body, guard.route.max_request);
    let fields = match &decoded {
        Decoded::Plain => fields.body(body),
        Decoded::Body(body) => fields.body(body),
        Decoded::Raw(coding) => fields.body(body).undecoded(coding),
        Decoded::TooLarge => return None,
    };
    Some(fields.fingerprint(&rules.rules))
}

/// Parses the command of a request, and takes the fingerprint of it.
fn parse_command(
    guard: &Guard,
    parser: &CommandParser,
    rules: &RouteRules,
    operation: &str,
    request: &Request<Bytes>,
) -> Result<(Fingerprint, ParsedCommand), Box<Refusal>> {
    let invalid = |problem: String| {
        Box::new(Refusal::new(&reason::REQUEST_INVALID).detail(format!(
            "The request's body is not valid: {problem}. Nothing was executed, and the key is not used up."
        )))
    };
    let headers = request.headers();
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let json = types.next().is_some_and(|one| is_json(one.as_bytes()));
    if !json || types.next().is_some() {
        return Err(invalid("its content type is not JSON".to_owned()));
    }
    let decoded = decode(headers, request.body(), guard.route.max_request);
    let body: &[u8] = match &decoded {
        Decoded::Plain => request.body(),
        Decoded::Body(body) => body,
        Decoded::Raw(coding) => {
            return Err(invalid(format!("its content coding is {coding:?}")));
        }
        Decoded::TooLarge => return Err(Box::new(Refusal::new(&reason::REQUEST_TOO_LARGE))),
    };
    let uri = original_uri(request.extensions(), request.uri());
    let lines = rules.headers.iter().flat_map(|name| {
        let lines = headers.get_all(name).iter();
        lines.map(|line| (name.as_str(), line.as_bytes()))
    });
    let hosts = rules.rules.hosts();
    let source = CommandSource {
        operation,
        target: Target {
            method: request.method().as_str(),
            path: match hosts {
                Some(_) => path::normalize(uri.path()),
                None => uri.path().into(),
            },
            query: uri.query(),
            authority: hosts.and_then(|hosts| hosts.canonical(authorities(request))),
            headers: lines.collect(),
        },
        body,
    };
    let (fingerprint, command) = parser.parse(&source).map_err(invalid)?;
    Ok((fingerprint.under(rules.rules.id()), command))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use super::*;

    #[test]
    fn large_and_coded_bodies_are_hashed_elsewhere() {
        let request = |size: usize, coding: Option<&str>| {
            let builder = coding.iter().fold(Request::post("/"), |builder, coding| {
                builder.header(CONTENT_ENCODING, *coding)
            });
            builder.body(Bytes::from(vec![7; size])).unwrap()
        };
        assert!(!is_large(&request(MAX_INLINE, None)));
        assert!(is_large(&request(MAX_INLINE + 1, None)));
        assert!(is_large(&request(20, Some("gzip"))), "it may be a bomb");
        assert!(!is_large(&request(0, Some("gzip"))));
    }

    #[tokio::test]
    async fn hashing_elsewhere_takes_a_thread_and_a_permit() {
        let here = thread::current().id();
        let permits = Arc::new(Semaphore::new(1));
        let running = Arc::new(AtomicUsize::new(0));
        let jobs = (0..4).map(|_| {
            let running = Arc::clone(&running);
            run_where(true, Arc::clone(&permits), move || {
                assert_eq!(running.fetch_add(1, SeqCst), 0, "more threads than permits");
                thread::yield_now();
                running.fetch_sub(1, SeqCst);
                thread::current().id()
            })
        });
        for thread in futures_util::future::join_all(jobs).await {
            assert_ne!(thread.ok(), Some(here));
        }
        let inline = run_where(false, permits, || thread::current().id()).await;
        assert_eq!(inline.ok(), Some(here));
    }
}
