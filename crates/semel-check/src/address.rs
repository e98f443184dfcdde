//! The URL of a target.

use std::fmt;
use std::str::FromStr;

use http::Uri;

use crate::Error;

/// A parsed `http://` or `https://` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Without the brackets of IPv6.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Whether the connection is encrypted.
    pub(crate) secure: bool,
    /// With the query.
    pub(crate) path: String,
    /// As the `Host` header has it.
    pub(crate) authority: String,
}

impl Address {
    /// The name or number of the machine, and the port.
    pub fn endpoint(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Path and query.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let wrong = |reason| Error::Address {
            url: url.to_owned(),
            reason,
        };
        let uri: Uri = url
            .parse()
            .map_err(|_| wrong("write it as http://host:port/path"))?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) | None => return Err(wrong("start it with http:// or https://")),
        };
        let authority = uri
            .authority()
            .ok_or_else(|| wrong("add a host, for example http://127.0.0.1:8080/payments"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("pass credentials with --header instead"));
        }
        let host = authority.host();
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            secure,
            path: path.to_owned(),
            authority: authority.as_str().to_owned(),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(formatter, "{scheme}://{}{}", self.authority, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_or_refused() {
        for (url, host, port, path) in [
            (
                "http://127.0.0.1:8080/payments?a=b",
                "127.0.0.1",
                8080,
                "/payments?a=b",
            ),
            ("http://shop", "shop", 80, "/"),
            ("https://shop/x", "shop", 443, "/x"),
            ("http://[::1]:1/", "::1", 1, "/"),
        ] {
            let address: Address = url.parse().unwrap();
            assert_eq!(address.endpoint(), (host, port), "{url}");
            assert_eq!(address.path(), path, "{url}");
        }
        for wrong in [
            "",
            "shop",
            "ftp://shop/",
            "http://",
            "http://a:b@shop/",
            "/payments",
        ] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong:?}");
        }
    }
}
