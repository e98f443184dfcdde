//! The resource that an operation created, as its application names it.

use http::{HeaderName, Response};
use semel_core::Resource;

/// The header in which an application in any language names the resource it created, as kind and
/// id: `payment/pay_789`. The layer removes it from the response. A provider's event is matched by
/// it where the outcome is unknown, and a retry is pointed to it where the response is no longer
/// stored.
pub const HEADER: HeaderName = HeaderName::from_static("semel-resource");

/// Longest kind or id, in bytes.
pub const MAX_BYTES: usize = 255;

/// Removes the resource from a response: the extension before the header, since only code in this
/// process can set it. A malformed or repeated header is ignored.
pub(crate) fn take<B>(response: &mut Response<B>) -> Option<Resource> {
    let by_header = response.headers().contains_key(&HEADER).then(|| {
        let mut lines = response.headers().get_all(&HEADER).iter();
        match (
            lines.next().and_then(|line| line.to_str().ok()),
            lines.next(),
        ) {
            (Some(line), None) => parse(line.trim()),
            (_, _) => None,
        }
    });
    if let Some(named) = &by_header {
        if named.is_none() {
            tracing::warn!("semel-resource is not KIND/ID once, such as payment/pay_789; ignored");
        }
        response.headers_mut().remove(&HEADER);
    }
    response
        .extensions_mut()
        .remove::<Resource>()
        .or(by_header.flatten())
}

fn parse(line: &str) -> Option<Resource> {
    let (kind, id) = line.split_once('/')?;
    let fits = |part: &str| !part.is_empty() && part.len() <= MAX_BYTES;
    (fits(kind) && fits(id)).then(|| Resource {
        kind: kind.into(),
        id: id.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(lines: &[&str]) -> Option<Resource> {
        let mut response = Response::new(());
        for line in lines {
            response.headers_mut().append(HEADER, line.parse().unwrap());
        }
        let resource = take(&mut response);
        assert!(!response.headers().contains_key(HEADER), "{lines:?}");
        resource
    }

    #[test]
    fn a_resource_is_removed_and_a_malformed_one_ignored() {
        let payment = Resource {
            kind: "payment".into(),
            id: "pay/7 89".into(),
        };
        assert_eq!(taken(&[" payment/pay/7 89 "]), Some(payment));
        let long = format!("payment/{}", "p".repeat(MAX_BYTES + 1));
        for none in [
            &[][..],
            &[""],
            &["payment"],
            &["/pay_789"],
            &["payment/"],
            &["payment/1", "payment/1"],
            &[&long],
        ] {
            assert_eq!(taken(none), None, "{none:?}");
        }
    }
}
