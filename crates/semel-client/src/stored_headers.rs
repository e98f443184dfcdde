//! Headers as a journal stores them: `[["name", "value"], …]`, a character for each byte of the value
//! (ISO 8859-1), because a header is bytes and JSON is text.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) type Pairs = Vec<(String, String)>;

/// All headers in order, those that are `secret` with an empty value: without its credentials a request is not
/// the same, and must not be sent again.
pub(crate) fn to_pairs(headers: &HeaderMap, secret: impl Fn(&HeaderName) -> bool) -> Pairs {
    headers
        .iter()
        .map(|(name, value)| {
            // It identifies the request, and is no credential.
            let is_secret = name != CONTENT_TYPE && secret(name);
            let bytes = value.as_bytes().iter().copied();
            let value = bytes.filter(|_| !is_secret).map(char::from).collect();
            (name.as_str().to_owned(), value)
        })
        .collect()
}

/// `None` where a header is none: the journal was changed by another program.
pub(crate) fn from_pairs(pairs: &Pairs) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(pairs.len());
    for (name, value) in pairs {
        let bytes: Option<Vec<u8>> = value.chars().map(|c| u8::try_from(c).ok()).collect();
        headers.append(
            HeaderName::try_from(name.as_str()).ok()?,
            HeaderValue::from_bytes(&bytes?).ok()?,
        );
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_headers_and_bytes_survive() {
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("a"));
        headers.append("link", HeaderValue::from_static("b"));
        headers.append("x", HeaderValue::from_bytes(b"caf\xc3\xa9\xff").unwrap());
        let stored = serde_json::to_string(&to_pairs(&headers, |_| false)).unwrap();
        let read: Pairs = serde_json::from_str(&stored).unwrap();
        assert_eq!(from_pairs(&read).unwrap(), headers);
    }
}
