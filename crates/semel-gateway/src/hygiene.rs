//! What may cross the gateway, and in which form.
//!
//! Three places, each with one question:
//!
//! - [`scan`]: is this HTTP/1 byte stream framed so that nobody could read it in another way?
//! - [`inbound`]: does this request mean one thing only (one host, one target)?
//! - [`outbound`]: which headers go on to the next hop, in either direction?
//!
//! **Invariant:** the framing headers a client sent never reach the upstream; the message is
//! framed anew from the body that was really read.

pub(crate) mod inbound;
pub(crate) mod outbound;
pub(crate) mod scan;

/// Headers that concern one connection and never go on to the next (RFC 9110, 7.6.1, with the
/// older ones that some software still sends).
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

/// Headers that only Semel itself may set.
pub(crate) fn is_ours(name: &str) -> bool {
    name.starts_with("semel-")
}
