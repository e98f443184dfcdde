//! Which headers are forwarded, to the upstream and back.

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

/// The only protocol that may be upgraded to. Any other could carry HTTP requests that bypass the
/// layer (`h2c` does exactly this), so it is not forwarded to the upstream.
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// The path prefix of the upstream, and the host for clients that send none (HTTP/1.0).
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Without a trailing slash; empty for a base at the root.
    pub(crate) prefix: String,
    pub(crate) host: HeaderValue,
}

/// Whether the connection may become a raw stream after the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tunnel {
    /// The client asked for a WebSocket.
    Requested,
    /// An ordinary exchange.
    No,
}

/// Rewrites a received request for the upstream.
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
    if tunnel == Tunnel::Requested {
        parts
            .headers
            .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, WEBSOCKET);
    }

    // The client's `Host` is forwarded: applications build links and choose tenants from it.
    let host = parts
        .headers
        .entry(header::HOST)
        .or_insert_with(|| target.host.clone())
        .clone();
    if let Some(peer) = parts.extensions.get::<Peer>() {
        add_forwarded(&mut parts.headers, peer, host);
    }
    annotate(&mut parts.headers, &parts.extensions);

    parts.uri = rewrite(&parts.uri, &target.prefix)?;
    parts.version = Version::HTTP_11;
    Ok(tunnel)
}

/// Rewrites the upstream's response for the client.
pub(crate) fn response(parts: &mut response::Parts) {
    let switching = parts.status == StatusCode::SWITCHING_PROTOCOLS;
    strip(&mut parts.headers, Direction::ToClient);
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
    if asked { Tunnel::Requested } else { Tunnel::No }
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
    ToClient,
}

/// Removes hop-by-hop headers in one pass over the names.
fn strip(headers: &mut HeaderMap, direction: Direction) {
    // Empty for most messages, and then without an allocation.
    let mut removed: Vec<HeaderName> = Vec::new();
    for name in headers.keys() {
        let text = name.as_str();
        let remove = super::is_hop_by_hop(text)
            || (direction == Direction::ToUpstream
                // The gateway's own server answers `Expect` when the service reads the body. If it
                // were forwarded, the upstream would answer it as well.
                && (super::is_semel_header(text) || text == "content-length" || text == "expect"));
        if remove {
            removed.push(name.clone());
        }
    }
    if direction == Direction::ToClient {
        named_in_connection(headers, &mut removed);
    }
    for name in removed {
        headers.remove(name);
    }
}

/// Also removes what the upstream names in `Connection`, except headers that frame or describe the
/// response. (A request that does this was refused on arrival.)
fn named_in_connection(headers: &HeaderMap, removed: &mut Vec<HeaderName>) {
    for line in headers.get_all(header::CONNECTION) {
        for token in line.as_bytes().split(|byte| *byte == b',') {
            if let Ok(name) = HeaderName::from_bytes(token.trim_ascii())
                && !name.as_str().starts_with("content-")
                && name != header::LOCATION
                && name != header::SET_COOKIE
                && !super::is_semel_header(name.as_str())
            {
                removed.push(name);
            }
        }
    }
}

/// Sets the framing headers from the body alone. hyper would send a `POST` without a length and
/// drop the body of a `GET` without one.
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

/// Adds the client's address. `X-Forwarded-For` and `Forwarded` are appended to, as RFC 7239 says:
/// only the last entry is verified. Scheme and host replace what the client sent.
fn add_forwarded(headers: &mut HeaderMap, peer: &Peer, host: HeaderValue) {
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
    // Valid values joined by `, ` are a valid value; the fallback keeps the verified part.
    let value = HeaderValue::from_maybe_shared(chain.freeze()).unwrap_or_else(|_| last.clone());
    headers.insert(name, value);
}

/// The path and query as received, byte for byte, after the prefix.
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
