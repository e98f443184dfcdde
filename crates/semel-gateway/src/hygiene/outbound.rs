//! Which headers are forwarded, to the upstream and back.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery};
use http::{Extensions, Method, StatusCode, Uri, Version, request, response};
use http_body::Body;
use ipnet::IpNet;
use semel_http::{FromRegion, Operation};

use crate::regions::RegionRequest;
use crate::server::Peer;

const OPERATION_ID: HeaderName = HeaderName::from_static("semel-operation-id");
const ATTEMPT: HeaderName = HeaderName::from_static("semel-attempt");
const DOWNSTREAM_KEY: HeaderName = HeaderName::from_static("semel-downstream-key");

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
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
    /// Peers whose `Forwarded` and `X-Forwarded-*` are kept.
    pub(crate) trusted_proxies: Vec<IpNet>,
}

impl Target {
    fn trusts(&self, peer: &Peer) -> bool {
        // On a dual-stack socket, an IPv4 client has an IPv4-mapped IPv6 address.
        let ip = peer.address().ip().to_canonical();
        self.trusted_proxies.iter().any(|net| net.contains(&ip))
    }
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

    if parts.version == Version::HTTP_2 {
        join_cookies(&mut parts.headers);
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
        // Another region has added its own client to what its proxies said.
        if !target.trusts(peer) && parts.extensions.get::<FromRegion>().is_none() {
            remove_forwarded(&mut parts.headers);
        }
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
    if let Some(region) = extensions.get::<RegionRequest>() {
        region.sign(headers);
    }
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
                && (super::is_semel_header(text)
                    || text == "content-length"
                    || text == "expect"
                    || folds_onto_another(text, headers)));
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

/// Whether the application may take the header for one that the gateway sets or removes, or that the
/// request has as well.
fn folds_onto_another(name: &str, headers: &HeaderMap) -> bool {
    super::folded_name(name).is_some_and(|folded| {
        super::is_semel_header(&folded)
            || super::is_hop_by_hop(&folded)
            || super::is_forwarding_header(&folded)
            || matches!(&folded[..], "content-length" | "expect" | "host")
            || headers.contains_key(&folded)
    })
}

/// HTTP/2 sends cookies in several fields, HTTP/1 in one (RFC 9113, 8.2.3). An application that finds
/// several may read only the first.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_none() {
        return;
    }
    let lines = headers.get_all(header::COOKIE).iter();
    let joined = lines.map(HeaderValue::as_bytes).collect::<Vec<_>>();
    // Valid values joined by `; ` are a valid value.
    if let Ok(joined) = HeaderValue::from_bytes(&joined.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
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

fn remove_forwarded(headers: &mut HeaderMap) {
    let names: Vec<_> = headers
        .keys()
        .filter(|name| super::is_forwarding_header(name.as_str()))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
}

/// Adds the client's address, scheme and host. Only a trusted proxy's headers are left at this
/// point: its lists are extended, and what it says about scheme, host and port is kept. If it sent
/// only one of `Forwarded` and `X-Forwarded-*`, the other is not added: it would describe the proxy
/// and not the client.
fn add_forwarded(headers: &mut HeaderMap, peer: &Peer, host: HeaderValue) {
    let sent = |headers: &HeaderMap| {
        let is_legacy = |name: &HeaderName| name.as_str().starts_with("x-forwarded-");
        (
            headers.keys().any(is_legacy),
            headers.contains_key(header::FORWARDED),
        )
    };
    let (legacy, standard) = sent(headers);
    if standard || !legacy {
        append(headers, header::FORWARDED, peer.forwarded());
    }
    if legacy || !standard {
        append(headers, X_FORWARDED_FOR, peer.forwarded_for());
        let scheme = HeaderValue::from_static(peer.scheme());
        let scheme = headers.entry(X_FORWARDED_PROTO).or_insert(scheme).clone();
        let host = headers.entry(X_FORWARDED_HOST).or_insert(host).clone();
        if let Some(port) = port(&host, &scheme) {
            headers.entry(X_FORWARDED_PORT).or_insert(port);
        }
    }
}

/// The port in a host, or the default of the scheme.
fn port(host: &HeaderValue, scheme: &HeaderValue) -> Option<HeaderValue> {
    let given = Authority::try_from(host.as_bytes()).ok()?.port_u16();
    let port = given.or(match scheme.as_bytes() {
        b"http" => Some(80),
        b"https" => Some(443),
        _ => None,
    });
    port.map(HeaderValue::from)
}

/// Whether a redirect only changes the scheme: `location` names the same path and query.
pub(crate) fn changes_scheme_only(path: &PathAndQuery, location: &HeaderValue) -> bool {
    let Ok(location) = Uri::try_from(location.as_bytes()) else {
        return false;
    };
    location.scheme().is_some() && location.path_and_query() == Some(path)
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
