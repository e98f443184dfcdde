use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::HeaderValue;

/// Who is on the other end of a connection; in the extensions of every request.
#[derive(Debug, Clone)]
pub struct Peer(Arc<Facts>);

#[derive(Debug)]
struct Facts {
    address: SocketAddr,
    secure: bool,
    // Rendered once for all requests of a connection.
    forwarded_for: HeaderValue,
    forwarded: HeaderValue,
}

impl Peer {
    /// A peer at `address`; `secure` if it came by TLS.
    pub fn new(address: SocketAddr, secure: bool) -> Self {
        // An IPv4 caller on a dual-stack socket is an IPv4 caller.
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
        Self(Arc::new(Facts {
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

    /// `http` or `https`, as the peer spoke to us.
    pub fn scheme(&self) -> &'static str {
        scheme(self.0.secure)
    }

    /// For `X-Forwarded-For`.
    pub(crate) fn forwarded_for(&self) -> &HeaderValue {
        &self.0.forwarded_for
    }

    /// For `Forwarded` (RFC 7239). Without `host=`: the `Host` header goes on as it came.
    pub(crate) fn forwarded(&self) -> &HeaderValue {
        &self.0.forwarded
    }
}

fn scheme(secure: bool) -> &'static str {
    if secure { "https" } else { "http" }
}
