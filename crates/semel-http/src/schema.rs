//! The schema version of a response, as its application states it.

use http::{HeaderName, Response};

/// The header in which an application in any language states the schema version of its response:
/// `3`. The layer removes it. A replay carries the stored version in it, where that differs from
/// the route's.
pub const HEADER: HeaderName = HeaderName::from_static("semel-schema-version");

/// Removes the version from a response. A malformed or repeated header is ignored.
pub(crate) fn take<B>(response: &mut Response<B>) -> Option<u16> {
    if !response.headers().contains_key(&HEADER) {
        return None;
    }
    let mut lines = response.headers().get_all(&HEADER).iter();
    let stated = match (
        lines.next().and_then(|line| line.to_str().ok()),
        lines.next(),
    ) {
        (Some(line), None) => parse(line.trim()),
        (_, _) => None,
    };
    if stated.is_none() {
        tracing::warn!("semel-schema-version is not one number from 0 to 65535; ignored");
    }
    response.headers_mut().remove(&HEADER);
    stated
}

fn parse(text: &str) -> Option<u16> {
    // `parse` alone would take a sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_removed_and_a_malformed_one_ignored() {
        for (lines, expected) in [
            (&[][..], None),
            (&[" 3 "], Some(3)),
            (&["65535"], Some(u16::MAX)),
            (&["65536"], None),
            (&["+3"], None),
            (&["v3"], None),
            (&[""], None),
            (&["3", "3"], None),
        ] {
            let mut response = Response::new(());
            for line in lines {
                response.headers_mut().append(HEADER, line.parse().unwrap());
            }
            assert_eq!(take(&mut response), expected, "{lines:?}");
            assert!(!response.headers().contains_key(HEADER), "{lines:?}");
        }
    }
}
