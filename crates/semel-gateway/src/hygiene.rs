//! Protection against request smuggling and ambiguous requests.
//!
//! - [`scan`]: is this HTTP/1 byte stream framed in the one form that all parsers agree on?
//! - [`inbound`]: is the parsed request unambiguous (one host, one target)?
//! - [`outbound`]: which headers are forwarded, in either direction?
//!
//! **Invariant:** the framing headers of a client never reach the upstream; the request is framed
//! again from the body that was actually read.

pub(crate) mod inbound;
pub(crate) mod outbound;
pub(crate) mod scan;

/// Headers that concern one connection and are never forwarded (RFC 9110, 7.6.1, and older ones
/// that some software still sends).
pub(crate) fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "http2-settings"
    )
}

/// Headers that only Semel may set.
pub(crate) fn is_semel_header(name: &str) -> bool {
    name.starts_with("semel-")
}

/// Headers that say where a request came from.
pub(crate) fn is_forwarding_header(name: &str) -> bool {
    name == "forwarded" || name.starts_with("x-forwarded-")
}

/// The header that an application may take this one for; `None` if it is the header itself. CGI and
/// its descendants (WSGI, Rack, PHP) name headers in letters, digits and `_` only, so
/// `Semel_Attempt` and `Semel.Attempt` look like `Semel-Attempt` to them.
pub(crate) fn folded_name(name: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if name.bytes().all(is_plain) {
        return None;
    }
    let fold = |byte: u8| if is_plain(byte) { byte.into() } else { '-' };
    Some(name.bytes().map(fold).collect())
}
