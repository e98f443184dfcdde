//! Step 2: what the client asks for, in 32 bytes.
//!
//! A request that the [replay cache](crate::cache) has seen byte for byte is not hashed again. It is
//! hashed under the current rules of its route; only where its record was made under other rules,
//! also under those.

use http::Request;
use http::header::CONTENT_TYPE;
use semel_core::fingerprint::{Request as Fields, is_json};
use semel_core::key::Dialect;
use semel_core::{Fingerprint, Fingerprints, Store};

use bytes::Bytes;

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

/// Looks the request up in the replay cache, and takes its fingerprint. A command that was parsed
/// for it is put into the request's extensions.
pub(crate) fn fingerprint<S: Store>(
    state: &State<S>,
    dialect: Dialect,
    extracted: &mut Extracted,
) -> Result<Fingerprinted, Box<Refusal>> {
    let Extracted {
        guard,
        identity,
        request,
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
        let (fingerprint, command) =
            parse_command(guard, parser, dialect, identity.operation(), request)?;
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
pub(crate) fn add_older<S: Store>(context: &mut AttemptContext<S>, rules: &RouteRules) {
    let AttemptContext {
        guard,
        reservation,
        request,
        ..
    } = context;
    let operation = reservation.identity.operation();
    // It was decoded once, so it is not too large.
    if let Some(older) = compute(guard, rules, operation, request) {
        reservation.fingerprints = reservation.fingerprints.clone().with_older(older);
    }
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
    dialect: Dialect,
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
    let lines = guard.rules(dialect).headers.iter().flat_map(|name| {
        let lines = headers.get_all(name).iter();
        lines.map(|line| (name.as_str(), line.as_bytes()))
    });
    let source = CommandSource {
        operation,
        target: Target {
            method: request.method().as_str(),
            path: uri.path(),
            query: uri.query(),
            headers: lines.collect(),
        },
        body,
    };
    parser.parse(&source).map_err(invalid)
}
