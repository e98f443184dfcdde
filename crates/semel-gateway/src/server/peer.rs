use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::HeaderValue;

/// The client's address and scheme; in the extensions of every request.
#[derive(Debug, Clone)]
pub struct Peer(Arc<PeerInfo>);

#[derive(Debug)]
struct PeerInfo {
    address: SocketAddr,
    secure: bool,
    // Rendered once for all requests of a connection.
    forwarded_for: HeaderValue,
    forwarded: HeaderValue,
}

impl Peer {
    /// A peer at `address`; `secure` if it connected with TLS.
    pub fn new(address: SocketAddr, secure: bool) -> Self {
        // On a dual-stack socket, an IPv4 client has an IPv4-mapped IPv6 address.
        let ip = address.ip().to_canonical();
        let scheme = scheme(secure);
        let node = match ip {
            IpAddr::V4(ip) => format!("for={ip};proto={scheme}"),
            IpAddr::V6(ip) => format!("for=\"[{ip}]\";proto={scheme}"),
        };
        let value = |text: String| {
            // Digits, dots, colons and letters: always a valid value.
            HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
        };
        Self(Arc::new(PeerInfo {
            address,
            secure,
            forwarded_for: value(ip.to_string()),
            forwarded: value(node),
        }))
    }

    /// Address and port.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        scheme(self.0.secure)
    }

    /// For `X-Forwarded-For`.
    pub(crate) fn forwarded_for(&self) -> &HeaderValue {
        &self.0.forwarded_for
    }

    /// For `Forwarded` (RFC 7239). Without `host=`: the `Host` header is forwarded unchanged.
    pub(crate) fn forwarded(&self) -> &HeaderValue {
        &self.0.forwarded
    }
}

fn scheme(secure: bool) -> &'static str {
    if secure { "https" } else { "http" }
}
