//! The tenant of a request, from something that the *server* knows.
//!
//! Any function from a request's head to a name can be used; these make the usual ones. Where it
//! returns `None`, the request is refused: a record without a tenant could be read by every caller.
//!
//! ```
//! use semel_http::{Layer, tenant};
//! use semel_core::Memory;
//!
//! // Set by an authentication layer outside of this one …
//! #[derive(Clone)]
//! struct Account(String);
//! let by_account = |head: &http::request::Parts| {
//!     head.extensions.get::<Account>().map(|account| account.0.clone())
//! };
//! let layer = Layer::new(Memory::default()).tenant(by_account);
//! // … or by a proxy in front …
//! let layer = Layer::new(Memory::default()).tenant(tenant::header("X-Account-Id"));
//! // … or there is explicitly only one.
//! let layer = Layer::new(Memory::default()).tenant(tenant::only_one());
//! ```

use std::fmt::Write as _;

use http::header::{AUTHORIZATION, AsHeaderName, HeaderValue};
use http::request::Parts;
use semel_core::identity::MAX_TENANT_BYTES;
use sha2::{Digest as _, Sha256};

/// The name of the one tenant of [`only_one`].
pub const ONLY_ONE: &str = "default";

/// The tenant of callers without any credential, under [`authorization`].
pub const ANONYMOUS: &str = "anonymous";

/// There is only one tenant: every caller may see every other caller's answers, given the
/// key.
pub fn only_one() -> impl Fn(&Parts) -> Option<Box<str>> + Send + Sync + 'static {
    |_| Some(ONLY_ONE.into())
}

/// The value of a header that a trusted proxy sets, and that no client can. Missing, empty or
/// repeated, there is no tenant.
pub fn header(
    name: impl AsHeaderName + Clone + Send + Sync + 'static,
) -> impl Fn(&Parts) -> Option<Box<str>> + Send + Sync + 'static {
    move |head| {
        let mut lines = head.headers.get_all(name.clone()).iter();
        let value = lines.next()?.to_str().ok()?.trim();
        // A name cut short would be another tenant's.
        let fits = (1..=MAX_TENANT_BYTES).contains(&value.len());
        (lines.next().is_none() && fits).then(|| value.into())
    }
}

/// The hash of the `Authorization` header, else of `X-Api-Key`, else [`ANONYMOUS`].
///
/// A credential that changes between two attempts is another tenant, and the second attempt
/// executes: only for credentials that live longer than retries do.
pub fn authorization() -> impl Fn(&Parts) -> Option<Box<str>> + Send + Sync + 'static {
    |head| {
        for (tag, name) in [("a", AUTHORIZATION.as_str()), ("k", "x-api-key")] {
            let mut lines = head.headers.get_all(name).iter();
            match (lines.next(), lines.next()) {
                (None, _) => {}
                (Some(credential), None) if !credential.is_empty() => {
                    return Some(hashed(tag, credential));
                }
                // It is not known which of two credentials the application uses, nor what it takes
                // an empty one for.
                (Some(_), _) => return None,
            }
        }
        Some(ANONYMOUS.into())
    }
}

/// 128 bits are enough to distinguish tenants, and do not disclose the credential.
fn hashed(tag: &str, credential: &HeaderValue) -> Box<str> {
    let digest = Sha256::new()
        .chain_update(tag.as_bytes())
        .chain_update(credential.as_bytes())
        .finalize();
    let mut name = String::with_capacity(34);
    name.push_str(tag);
    name.push('_');
    for byte in &digest[..16] {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &[(&'static str, &str)]) -> Parts {
        let mut request = http::Request::new(());
        for (name, value) in lines {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        request.into_parts().0
    }

    #[test]
    fn a_header_counts_only_alone_and_with_a_value() {
        let tenant = header("X-Account-Id");
        assert_eq!(
            tenant(&head(&[("x-account-id", " acme ")])).as_deref(),
            Some("acme")
        );
        assert_eq!(tenant(&head(&[])), None);
        assert_eq!(tenant(&head(&[("x-account-id", " ")])), None);
        assert_eq!(
            tenant(&head(&[("x-account-id", "a"), ("x-account-id", "a")])),
            None
        );
    }

    #[test]
    fn credentials_are_told_apart_and_never_shown() {
        let tenant = authorization();
        let names: Vec<_> = [
            &[("authorization", "Bearer one")][..],
            &[("authorization", "Bearer two")],
            &[("x-api-key", "Bearer one")],
            &[],
        ]
        .iter()
        .map(|lines| tenant(&head(lines)).unwrap())
        .collect();
        for (at, name) in names.iter().enumerate() {
            assert!(!name.contains("one"));
            assert!(!names[..at].contains(name));
        }
        assert_eq!(names[3].as_ref(), ANONYMOUS);
        let both = [("authorization", "Bearer one"), ("x-api-key", "k")];
        assert_eq!(tenant(&head(&both)).as_ref(), Some(&names[0]));
        let twice = [("authorization", "a"), ("authorization", "a")];
        assert_eq!(tenant(&head(&twice)), None);
    }
}
