//! Second step: what the client asks for, in 32 bytes.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use semel_core::Fingerprints;
use semel_core::fingerprint::Request;
use semel_core::key::Dialect;

use crate::decode::{Decoded, decode};
use crate::extract::original_uri;
use crate::route::Guard;

/// What is inside the content coding is larger than the route takes.
#[derive(Debug)]
pub(crate) struct TooLarge;

pub(crate) fn fingerprints(
    guard: &Guard,
    dialect: Dialect,
    operation: &str,
    head: &Parts,
    body: &Bytes,
) -> Result<Fingerprints, TooLarge> {
    let uri = original_uri(&head.extensions, &head.uri);
    let mut request = Request::new(operation, head.method.as_str(), uri.path());
    if let Some(query) = uri.query() {
        request = request.query(query);
    }
    let joined;
    let mut types = head.headers.get_all(CONTENT_TYPE).iter();
    match (types.next(), types.next()) {
        (None, _) => {}
        (Some(one), None) => request = request.content_type(one.as_bytes()),
        (Some(_), Some(_)) => {
            let all: Vec<_> = head.headers.get_all(CONTENT_TYPE).iter().collect();
            joined = all
                .iter()
                .map(|line| line.as_bytes())
                .collect::<Vec<_>>()
                .join(&b", "[..]);
            request = request.content_type(&joined);
        }
    }
    for name in guard.semantic(dialect) {
        for line in head.headers.get_all(name) {
            request = request.header(name.as_str(), line.as_bytes());
        }
    }
    let decoded = decode(&head.headers, body, guard.route.max_request);
    let request = match &decoded {
        Decoded::Plain => request.body(body),
        Decoded::Undone(body) => request.body(body),
        Decoded::Raw(coding) => request.body(body).undecoded(coding),
        Decoded::TooLarge => return Err(TooLarge),
    };
    Ok(request.fingerprints(&guard.rules))
}
