//! Which headers of a response are stored, and how they are restored.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};

/// Headers that describe the response itself, and are always stored.
const ALWAYS: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::LOCATION,
    header::ETAG,
    header::LINK,
    header::RETRY_AFTER,
];

/// Headers of one connection, one moment or one caller, which would be wrong or dangerous in a
/// replay. A route that lists one of these is invalid.
const NEVER: [&str; 25] = [
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "date",
    "age",
    "via",
    "server",
    "server-timing",
    "traceparent",
    "tracestate",
    "baggage",
    "retry-attempt",
    "x-request-id",
    "x-correlation-id",
    "x-trace-id",
    "idempotency-key",
    "idempotency-key-expires",
    "semel-outcome",
    "semel-resource",
    "semel-schema-version",
    "set-cookie",
];

/// As [`NEVER`], by prefix.
const NEVER_PREFIXES: [&str; 5] = [
    "proxy-",
    "access-control-",
    "ratelimit",
    "x-ratelimit",
    "x-b3-",
];

/// The headers that a route stores besides [`ALWAYS`].
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredHeaders {
    pub(crate) names: Vec<HeaderName>,
    pub(crate) set_cookie: bool,
}

impl StoredHeaders {
    /// Whether a route may list a header.
    pub(crate) fn allowed(name: &HeaderName) -> bool {
        let name = name.as_str();
        !NEVER.contains(&name) && !NEVER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    }

    /// The lines to store, in order.
    pub(crate) fn take(&self, headers: &HeaderMap) -> Vec<(Box<str>, Bytes)> {
        // `Connection` names further headers of the connection.
        let hops: Vec<&str> = headers
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','))
            .map(str::trim)
            .collect();
        headers
            .iter()
            .filter(|(name, _)| {
                self.wants(name)
                    && !hops
                        .iter()
                        .any(|hop| hop.eq_ignore_ascii_case(name.as_str()))
            })
            .map(|(name, value)| {
                (
                    name.as_str().into(),
                    Bytes::copy_from_slice(value.as_bytes()),
                )
            })
            .collect()
    }

    fn wants(&self, name: &HeaderName) -> bool {
        ALWAYS.contains(name)
            || self.names.contains(name)
            || (self.set_cookie && name == header::SET_COOKIE)
    }
}

/// The head of a stored response; `None` where it is not valid.
pub(crate) fn head(stored: &semel_core::Response) -> Option<Response<()>> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(stored.status).ok()?;
    for (name, value) in &stored.headers {
        response.headers_mut().append(
            HeaderName::from_bytes(name.as_bytes()).ok()?,
            HeaderValue::from_maybe_shared(value.clone()).ok()?,
        );
    }
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(stored: &StoredHeaders, lines: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        stored
            .take(&headers)
            .into_iter()
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(&value)))
            .collect()
    }

    #[test]
    fn repeated_lines_keep_number_and_order() {
        let kept = lines(
            &StoredHeaders::default(),
            &[("link", "<a>"), ("etag", "1"), ("link", "<b>")],
        );
        assert_eq!(kept, ["link: <a>", "link: <b>", "etag: 1"]);
    }

    #[test]
    fn only_headers_that_describe_the_response_are_stored() {
        let all = [
            ("content-type", "a/b"),
            ("content-encoding", "gzip"),
            ("content-language", "la"),
            ("location", "/p/1"),
            ("etag", "x"),
            ("link", "<a>"),
            ("retry-after", "1"),
            ("connection", "x-cost"),
            ("x-cost", "7"),
            ("x-other", "8"),
            ("date", "now"),
            ("content-length", "3"),
            ("set-cookie", "a=b"),
        ];
        assert_eq!(lines(&StoredHeaders::default(), &all).len(), 7);
        let mut stored = StoredHeaders {
            names: vec![HeaderName::from_static("x-cost")],
            set_cookie: true,
        };
        // `Connection` names x-cost.
        assert_eq!(lines(&stored, &all).len(), 8);
        stored.names.push(HeaderName::from_static("x-other"));
        assert_eq!(lines(&stored, &all).len(), 9);
    }

    #[test]
    fn a_header_that_is_never_stored_is_not_allowed() {
        for name in [
            "date",
            "set-cookie",
            "proxy-authenticate",
            "access-control-allow-origin",
            "ratelimit-remaining",
            "x-ratelimit-limit",
            "traceparent",
            "x-b3-traceid",
            "upgrade",
        ] {
            assert!(
                !StoredHeaders::allowed(&HeaderName::from_static(name)),
                "{name}"
            );
        }
        assert!(StoredHeaders::allowed(&HeaderName::from_static(
            "x-request-cost"
        )));
    }

    #[test]
    fn values_that_are_not_text_are_restored() {
        let stored = semel_core::Response {
            status: 201,
            headers: vec![("etag".into(), Bytes::from_static(b"\xff\xfe"))],
            body: None,
            schema_version: 0,
        };
        let head = head(&stored).unwrap();
        assert_eq!(head.headers()["etag"].as_bytes(), b"\xff\xfe");
    }

    /// `semel_complete` in SQL must not store what the layer would not.
    #[test]
    fn the_function_in_sql_leaves_out_the_same_headers() {
        let migrations = concat!(env!("CARGO_MANIFEST_DIR"), "/../semel-postgres/migrations");
        let sql = std::fs::read_to_string(format!("{migrations}/0007_complete.sql")).unwrap();
        let (_, rest) = sql.split_once("CONTINUE WHEN name IN (").unwrap();
        let (names, rest) = rest.split_once(") OR name ~ '^(").unwrap();
        let (prefixes, _) = rest.split_once(")'").unwrap();
        let names: Vec<_> = names
            .split(',')
            .map(|name| name.trim().trim_matches('\''))
            .collect();
        assert_eq!(names, NEVER);
        assert_eq!(prefixes.split('|').collect::<Vec<_>>(), NEVER_PREFIXES);
    }
}
