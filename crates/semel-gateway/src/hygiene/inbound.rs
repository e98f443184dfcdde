//! Refuses requests whose parsed head is ambiguous, for HTTP/1 and HTTP/2 alike. The byte scanner
//! has already checked the framing.

use std::borrow::Cow;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{Method, StatusCode, Uri, Version, request};

use super::scan::MAX_FIELDS;

/// Why a request was refused before it reached the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// `CONNECT` would open a tunnel that bypasses the layer.
    Connect,
    /// A target that is neither a path nor an absolute URI.
    Target,
    /// No `Host` where there must be one, more than one, or one that is not a host.
    Host,
    /// The target names one host and `Host` another.
    HostMismatch,
    /// `Connection` names an end-to-end header.
    Connection,
    /// More than one `Content-Length`.
    Length,
    /// The head is over the limits on its size and its fields.
    LargeHead,
    /// A chunk or a trailer that is not in the one form that all parsers agree on.
    Chunk,
}

impl Refusal {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::LargeHead => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Connect
            | Self::Target
            | Self::Host
            | Self::HostMismatch
            | Self::Connection
            | Self::Length
            | Self::Chunk => StatusCode::BAD_REQUEST,
        }
    }

    /// The body of the problem response.
    pub(crate) fn render(self, max_header_bytes: usize) -> String {
        let status = self.status();
        let code = if status == StatusCode::BAD_REQUEST {
            "request_malformed"
        } else {
            "request_head_too_large"
        };
        format!(
            r#"{{"type":"about:blank","title":"{}","status":{},"detail":"{}","code":"{code}","retryable":false}}"#,
            status.canonical_reason().unwrap_or_default(),
            status.as_u16(),
            self.detail(max_header_bytes),
        )
    }

    fn detail(self, max_header_bytes: usize) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Connect => "CONNECT is not supported.",
            Self::Target => "The request target must be a path or an absolute http(s) URI.",
            Self::Host => "Send exactly one valid Host header.",
            Self::HostMismatch => "The Host header differs from the host in the request target.",
            Self::Connection => {
                "The Connection header names an end-to-end header; the gateway would have to remove \
                 it before the application sees it."
            }
            Self::Length => "Send one Content-Length.",
            Self::LargeHead => {
                return Cow::Owned(format!(
                    "The request line and the header fields together may have {max_header_bytes} \
                     bytes, and there may be {MAX_FIELDS} header fields. Nothing was executed."
                ));
            }
            Self::Chunk => "The request body is not framed as RFC 9112 says.",
        })
    }
}

/// Checks the head of a request.
pub(crate) fn check(
    method: &Method,
    uri: &Uri,
    version: Version,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    if *method == Method::CONNECT {
        return Err(Refusal::Connect);
    }
    if uri.path().as_bytes().first() != Some(&b'/') {
        return Err(Refusal::Target);
    }
    if let Some(scheme) = uri.scheme_str()
        && scheme != "http"
        && scheme != "https"
    {
        return Err(Refusal::Target);
    }
    check_host(uri.authority(), version, headers)?;
    // On HTTP/1 hyper merges the lines, so the scanner checks this. On HTTP/2 the frames carry the
    // length, but the layer may read the header.
    if more_than_one(headers, &header::CONTENT_LENGTH) {
        return Err(Refusal::Length);
    }
    check_connection(headers)
}

/// [`check`] for a whole request, and the limits on its head. On HTTP/1 the scanner has already
/// checked them.
pub(crate) fn check_parts(parts: &request::Parts, max_header_bytes: usize) -> Result<(), Refusal> {
    if parts.version == Version::HTTP_2 && is_large(parts, max_header_bytes) {
        return Err(Refusal::LargeHead);
    }
    check(&parts.method, &parts.uri, parts.version, &parts.headers)
}

fn is_large(parts: &request::Parts, max_header_bytes: usize) -> bool {
    let headers = &parts.headers;
    // A browser sends each cookie in a field of its own (RFC 9113, 8.2.3); they become one.
    let cookies = headers.get_all(header::COOKIE).iter().count();
    let fields = headers.len() - cookies.saturating_sub(1);
    // As HTTP/1 would write it: with `: ` and a line end.
    let length = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 4;
    let target = parts.uri.path_and_query().map_or(0, |it| it.as_str().len());
    let bytes = headers.iter().map(length).sum::<usize>() + target;
    fields > MAX_FIELDS || bytes > max_header_bytes
}

fn check_host(
    target: Option<&Authority>,
    version: Version,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    if more_than_one(headers, &header::HOST) {
        return Err(Refusal::Host);
    }
    let host = headers.get(header::HOST);
    if host.is_some_and(|host| !is_host(host.as_bytes())) {
        return Err(Refusal::Host);
    }
    match (target, host) {
        (Some(target), _) if !is_host(target.as_str().as_bytes()) => Err(Refusal::Host),
        (Some(target), Some(host)) if !same_host(target, host) => Err(Refusal::HostMismatch),
        (_, Some(_)) => Ok(()),
        (Some(_), None) if version == Version::HTTP_2 => Ok(()),
        (None, None) if version == Version::HTTP_10 => Ok(()),
        (Some(_) | None, None) => Err(Refusal::Host),
    }
}

fn same_host(target: &Authority, host: &HeaderValue) -> bool {
    host.as_bytes()
        .eq_ignore_ascii_case(target.as_str().as_bytes())
}

/// The characters of a host and port; no user name, path or list.
fn is_host(host: &[u8]) -> bool {
    !host.is_empty()
        && host
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=:[]".contains(byte))
}

/// A proxy removes headers named in `Connection`. A client could use that to hide its key from the
/// application while the gateway sees it, so naming an end-to-end header is refused, whatever the
/// key's header is called. Hop-by-hop headers may be named.
fn check_connection(headers: &HeaderMap) -> Result<(), Refusal> {
    for line in headers.get_all(header::CONNECTION) {
        for token in line.as_bytes().split(|byte| *byte == b',') {
            let token = token.trim_ascii();
            if token.eq_ignore_ascii_case(b"close") || token.eq_ignore_ascii_case(b"keep-alive") {
                continue;
            }
            // Not a valid header name, so no header can match.
            let Ok(name) = HeaderName::from_bytes(token) else {
                continue;
            };
            if !super::is_hop_by_hop(name.as_str()) && headers.contains_key(&name) {
                return Err(Refusal::Connection);
            }
        }
    }
    Ok(())
}

fn more_than_one(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.get_all(name).iter().nth(1).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn check_request(
        method: &str,
        uri: &str,
        version: Version,
        headers: &[(&str, &str)],
    ) -> Result<(), Refusal> {
        let mut request = Request::builder().method(method).uri(uri).version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check_parts(&request.body(()).unwrap().into_parts().0, 32 << 10)
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn ambiguous_hosts_and_targets_are_refused() {
        use Version as V;
        let host = ("host", "a.example");
        for (method, uri, version, headers, expected) in [
            ("GET", "/", V::HTTP_11, &[host][..], Ok(())),
            ("GET", "/", V::HTTP_11, &[("host", "[::1]:80")], Ok(())),
            ("GET", "/", V::HTTP_10, &[], Ok(())),
            ("GET", "/", V::HTTP_11, &[], Err(Refusal::Host)),
            ("GET", "/", V::HTTP_11, &[host, host], Err(Refusal::Host)),
            ("GET", "/", V::HTTP_10, &[host, host], Err(Refusal::Host)),
            ("GET", "/", V::HTTP_11, &[("host", "")], Err(Refusal::Host)),
            (
                "GET",
                "/",
                V::HTTP_11,
                &[("host", "a b")],
                Err(Refusal::Host),
            ),
            (
                "GET",
                "/",
                V::HTTP_11,
                &[("host", "a,b")],
                Err(Refusal::Host),
            ),
            (
                "GET",
                "/",
                V::HTTP_11,
                &[("host", "a/b")],
                Err(Refusal::Host),
            ),
            (
                "GET",
                "/",
                V::HTTP_11,
                &[("host", "u@a")],
                Err(Refusal::Host),
            ),
            ("GET", "http://a.example/x", V::HTTP_11, &[host], Ok(())),
            ("GET", "http://A.EXAMPLE/x", V::HTTP_11, &[host], Ok(())),
            (
                "GET",
                "http://a.example/x",
                V::HTTP_11,
                &[],
                Err(Refusal::Host),
            ),
            (
                "GET",
                "http://u@a.example/x",
                V::HTTP_11,
                &[host],
                Err(Refusal::Host),
            ),
            (
                "GET",
                "http://b.example/x",
                V::HTTP_11,
                &[host],
                Err(Refusal::HostMismatch),
            ),
            (
                "GET",
                "http://a.example:81/x",
                V::HTTP_11,
                &[host],
                Err(Refusal::HostMismatch),
            ),
            (
                "GET",
                "ftp://a.example/x",
                V::HTTP_11,
                &[host],
                Err(Refusal::Target),
            ),
            ("GET", "https://a.example/x", V::HTTP_2, &[], Ok(())),
            ("GET", "https://a.example/x", V::HTTP_2, &[host], Ok(())),
            (
                "GET",
                "https://b.example/x",
                V::HTTP_2,
                &[host],
                Err(Refusal::HostMismatch),
            ),
            ("GET", "/x", V::HTTP_2, &[], Err(Refusal::Host)),
            ("OPTIONS", "*", V::HTTP_11, &[host], Err(Refusal::Target)),
            (
                "CONNECT",
                "a.example:443",
                V::HTTP_11,
                &[host],
                Err(Refusal::Connect),
            ),
            (
                "GET",
                "a.example:443",
                V::HTTP_11,
                &[host],
                Err(Refusal::Target),
            ),
            (
                "POST",
                "/",
                V::HTTP_2,
                &[host, ("content-length", "1"), ("content-length", "1")],
                Err(Refusal::Length),
            ),
        ] {
            assert_eq!(
                check_request(method, uri, version, headers),
                expected,
                "{method} {uri} {headers:?}"
            );
        }
    }

    #[test]
    fn connection_may_not_name_an_end_to_end_header() {
        for (connection, other, expected) in [
            ("keep-alive", "idempotency-key", Ok(())),
            ("close, TE", "te", Ok(())),
            ("Upgrade, HTTP2-Settings", "http2-settings", Ok(())),
            ("x-absent", "idempotency-key", Ok(())),
            ("@nonsense", "idempotency-key", Ok(())),
            (
                "Idempotency-Key",
                "idempotency-key",
                Err(Refusal::Connection),
            ),
            (
                "close,idempotency-key",
                "idempotency-key",
                Err(Refusal::Connection),
            ),
            (
                "paypal-request-id",
                "paypal-request-id",
                Err(Refusal::Connection),
            ),
            ("Authorization", "authorization", Err(Refusal::Connection)),
            ("cookie", "cookie", Err(Refusal::Connection)),
            ("host", "host", Err(Refusal::Connection)),
            ("content-length", "content-length", Err(Refusal::Connection)),
            ("content-type", "content-type", Err(Refusal::Connection)),
            (
                "x-forwarded-for",
                "x-forwarded-for",
                Err(Refusal::Connection),
            ),
        ] {
            let mut headers = vec![("connection", connection), (other, "1")];
            if other != "host" {
                headers.push(("host", "a"));
            }
            assert_eq!(
                check_request("POST", "/", Version::HTTP_11, &headers),
                expected,
                "{connection}"
            );
        }
    }
}
