//! Which headers go on to the next hop.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Extensions, Method, StatusCode, Uri, Version, request, response};
use http_body::Body;
use semel_http::Operation;

use crate::server::Peer;

const OPERATION_ID: HeaderName = HeaderName::from_static("semel-operation-id");
const ATTEMPT: HeaderName = HeaderName::from_static("semel-attempt");
const DOWNSTREAM_KEY: HeaderName = HeaderName::from_static("semel-downstream-key");

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The one protocol that may take over a connection. Any other could carry HTTP requests past
/// the guard (`h2c` does exactly this), so it is not offered to the upstream.
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Where requests go: what is put in front of the path, and the host for a caller that named
/// none (HTTP/1.0).
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Without a trailing slash; empty for a base at the root.
    pub(crate) prefix: String,
    pub(crate) host: HeaderValue,
}

/// Whether the caller may be handed the connection as a raw stream afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tunnel {
    /// It asked for a WebSocket, and may have one.
    Wanted,
    /// An ordinary exchange.
    No,
}

/// Makes a received request into the one for the upstream.
pub(crate) fn request<B: Body>(
    parts: &mut request::Parts,
    body: &B,
    target: &Target,
) -> Result<Tunnel, http::Error> {
    let tunnel = tunnel(parts);
    let trailers = accepts_trailers(&parts.headers);
    if parts.version == Version::HTTP_2
        && !parts.headers.contains_key(header::HOST)
        && let Some(authority) = parts.uri.authority()
    {
        let host = HeaderValue::from_str(authority.as_str())?;
        parts.headers.insert(header::HOST, host);
    }

    strip(&mut parts.headers, Direction::ToUpstream);
    reframe(&mut parts.headers, &parts.method, body);
    if trailers {
        parts
            .headers
            .insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if tunnel == Tunnel::Wanted {
        parts
            .headers
            .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, WEBSOCKET);
    }

    // The caller's own `Host` goes on: applications build links and choose tenants from it.
    let host = parts
        .headers
        .entry(header::HOST)
        .or_insert_with(|| target.host.clone())
        .clone();
    if let Some(peer) = parts.extensions.get::<Peer>() {
        forwarded(&mut parts.headers, peer, host);
    }
    annotate(&mut parts.headers, &parts.extensions);

    parts.uri = rewrite(&parts.uri, &target.prefix)?;
    parts.version = Version::HTTP_11;
    Ok(tunnel)
}

/// Makes the upstream's answer into the one for the caller.
pub(crate) fn response(parts: &mut response::Parts) {
    let switching = parts.status == StatusCode::SWITCHING_PROTOCOLS;
    strip(&mut parts.headers, Direction::ToCaller);
    if switching {
        parts
            .headers
            .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, WEBSOCKET);
    }
    parts.version = Version::HTTP_11;
}

/// Adds what Semel tells the application about the operation. The only place that does: the
/// same headers from outside were removed just before.
fn annotate(headers: &mut HeaderMap, extensions: &Extensions) {
    let Some(operation) = extensions.get::<Operation>() else {
        return;
    };
    let text = |text: String| HeaderValue::from_maybe_shared(Bytes::from(text));
    if let (Ok(id), Ok(key)) = (
        text(operation.id().to_string()),
        text(operation.downstream_key("")),
    ) {
        headers.insert(OPERATION_ID, id);
        headers.insert(DOWNSTREAM_KEY, key);
    }
    headers.insert(ATTEMPT, HeaderValue::from(operation.attempt()));
}

fn tunnel(parts: &request::Parts) -> Tunnel {
    let asked = parts.version == Version::HTTP_11
        && parts.extensions.get::<Operation>().is_none()
        && single(&parts.headers, &header::UPGRADE)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && has_token(&parts.headers, &header::CONNECTION, b"upgrade");
    if asked { Tunnel::Wanted } else { Tunnel::No }
}

fn accepts_trailers(headers: &HeaderMap) -> bool {
    has_token(headers, &header::TE, b"trailers")
}

fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut lines = headers.get_all(name).iter();
    lines.next().filter(|_| lines.next().is_none())
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &[u8]) -> bool {
    headers.get_all(name).iter().any(|line| {
        line.as_bytes()
            .split(|byte| *byte == b',')
            .any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToUpstream,
    ToCaller,
}

/// Removes what belongs to the last hop only, in one pass over the names.
fn strip(headers: &mut HeaderMap, direction: Direction) {
    // Empty for most messages, and then without an allocation.
    let mut doomed: Vec<HeaderName> = Vec::new();
    for name in headers.keys() {
        let text = name.as_str();
        let goes = super::is_hop_by_hop(text)
            || (direction == Direction::ToUpstream
                // `Expect` is answered by our own server, which asks for the body when it is
                // wanted; sent on, the upstream would wait for a body that is under way.
                && (super::is_ours(text) || text == "content-length" || text == "expect"));
        if goes {
            doomed.push(name.clone());
        }
    }
    if direction == Direction::ToCaller {
        named_in_connection(headers, &mut doomed);
    }
    for name in doomed {
        headers.remove(name);
    }
}

/// What the upstream names in `Connection` goes too, except what frames or describes the
/// answer: that is not the connection's. (A request that does this was refused on arrival.)
fn named_in_connection(headers: &HeaderMap, doomed: &mut Vec<HeaderName>) {
    for line in headers.get_all(header::CONNECTION) {
        for token in line.as_bytes().split(|byte| *byte == b',') {
            if let Ok(name) = HeaderName::from_bytes(token.trim_ascii())
                && !name.as_str().starts_with("content-")
                && name != header::LOCATION
                && name != header::SET_COOKIE
                && !super::is_ours(name.as_str())
            {
                doomed.push(name);
            }
        }
    }
}

/// Says how the body is framed, from the body alone. hyper would leave a `POST` without a
/// length and drop the body of a `GET` that has none.
fn reframe<B: Body>(headers: &mut HeaderMap, method: &Method, body: &B) {
    if body.is_end_stream() {
        if !matches!(
            *method,
            Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::DELETE
        ) {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
    } else if body.size_hint().exact().is_none() {
        headers.insert(
            header::TRANSFER_ENCODING,
            HeaderValue::from_static("chunked"),
        );
    }
}

/// Says who called. The lists are appended to, as RFC 7239 has it: the last entry is the one
/// we know, those before are hearsay. Scheme and host are ours to say and replace what came.
fn forwarded(headers: &mut HeaderMap, peer: &Peer, host: HeaderValue) {
    append(headers, X_FORWARDED_FOR, peer.forwarded_for());
    append(headers, header::FORWARDED, peer.forwarded());
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(peer.scheme()));
    headers.insert(X_FORWARDED_HOST, host);
}

fn append(headers: &mut HeaderMap, name: HeaderName, last: &HeaderValue) {
    if !headers.contains_key(&name) {
        headers.insert(name, last.clone());
        return;
    }
    let mut chain = BytesMut::new();
    for line in headers.get_all(&name) {
        chain.put_slice(line.as_bytes());
        chain.put_slice(b", ");
    }
    chain.put_slice(last.as_bytes());
    // Made of valid values and `, `, so it is one; and if not, ours is the part we vouch for.
    let value = HeaderValue::from_maybe_shared(chain.freeze()).unwrap_or_else(|_| last.clone());
    headers.insert(name, value);
}

/// The path and query as received, byte for byte, behind the base's path.
fn rewrite(uri: &Uri, prefix: &str) -> Result<Uri, http::Error> {
    let received = uri.path_and_query();
    let path = match received {
        Some(path) if prefix.is_empty() => path.clone(),
        Some(path) => {
            let mut joined = BytesMut::with_capacity(prefix.len() + path.as_str().len());
            joined.put_slice(prefix.as_bytes());
            joined.put_slice(path.as_str().as_bytes());
            PathAndQuery::from_maybe_shared(joined.freeze())?
        }
        None => PathAndQuery::from_static("/"),
    };
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(path);
    Ok(Uri::from_parts(parts)?)
}

#[cfg(test)]
mod tests;
