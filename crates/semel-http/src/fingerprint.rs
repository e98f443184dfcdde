//! Step 2: what the client asks for, in 32 bytes.
//!
//! A request that the [replay cache](crate::cache) has seen byte for byte is not hashed again.

use http::Request;
use http::header::CONTENT_TYPE;
use semel_core::fingerprint::Request as Fields;
use semel_core::key::Dialect;
use semel_core::{Fingerprints, Store};

use bytes::Bytes;

use crate::cache::StoredResponse;
use crate::decode::{Decoded, decode};
use crate::extract::Extracted;
use crate::reason;
use crate::refusal::Refusal;
use crate::route::Guard;
use crate::state::State;
use crate::uri::original_uri;

/// What the second step found.
pub(crate) enum Fingerprinted {
    /// The replay cache has the response to this very request.
    Cached(Box<StoredResponse>),
    /// The store decides.
    Computed(Fingerprints),
}

/// Looks the request up in the replay cache, and takes its fingerprint.
pub(crate) fn fingerprint<S: Store>(
    state: &State<S>,
    dialect: Dialect,
    extracted: &Extracted,
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
    let fingerprints = compute(guard, dialect, identity.operation(), request)
        .ok_or_else(|| Box::new(Refusal::new(&reason::REQUEST_TOO_LARGE)))?;
    if let Some(found) = cached.and_then(|entry| entry.for_same_meaning(&fingerprints)) {
        return Ok(Fingerprinted::Cached(Box::new(found)));
    }
    Ok(Fingerprinted::Computed(fingerprints))
}

/// `None` where the decoded body is larger than the route allows.
fn compute(
    guard: &Guard,
    dialect: Dialect,
    operation: &str,
    request: &Request<Bytes>,
) -> Option<Fingerprints> {
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
    for name in guard.semantic(dialect) {
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
    Some(fields.fingerprints(&guard.rules))
}
