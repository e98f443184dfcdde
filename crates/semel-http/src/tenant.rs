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

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, AsHeaderName, HeaderValue};
use http::request::Parts;
use semel_core::hex;
use semel_core::identity::MAX_TENANT_BYTES;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// The name of the one tenant of [`only_one`].
pub const ONLY_ONE: &str = "default";

/// The tenant of callers without any credential, under [`authorization`].
pub const ANONYMOUS: &str = "anonymous";

/// What a tenant function found. `Option` of a name becomes [`Known`](Self::Known) or
/// [`Unresolved`](Self::Unresolved).
pub enum Tenant {
    /// The name of the tenant.
    Known(Box<str>),
    /// The request has no tenant: 403 `tenant_unresolved`.
    Unresolved,
    /// The tenant cannot be found out now: 503 `tenant_unavailable`, and nothing executes.
    Unavailable {
        /// When the client may ask again.
        retry_after: Duration,
    },
    /// The tenant is known after this, for example after the keys of an issuer were fetched. The
    /// future has to end in bounded time.
    Pending(Pin<Box<dyn Future<Output = Self> + Send>>),
}

impl<T: Into<Box<str>>> From<Option<T>> for Tenant {
    fn from(name: Option<T>) -> Self {
        name.map_or(Self::Unresolved, |name| Self::Known(name.into()))
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Known(_) => "Known",
            Self::Unresolved => "Unresolved",
            Self::Unavailable { .. } => "Unavailable",
            Self::Pending(_) => "Pending",
        })
    }
}

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
/// For credentials that do not change between two attempts. A JSON Web Token that expires is
/// refused: the token that replaces it would be another tenant, and the retry would execute again.
pub fn authorization() -> impl Fn(&Parts) -> Option<Box<str>> + Send + Sync + 'static {
    let logged = AtomicBool::new(false);
    move |head| {
        let credential = credential(head).ok()?;
        if credential.is_some_and(|(_, value)| is_expiring_jwt(value)) {
            // Once: every request of such a client is refused.
            if !logged.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "requests are refused with 403 tenant_unresolved: their credential is a JSON Web \
                     Token that expires, and a retry with a renewed token would be another tenant and \
                     execute again. Take the tenant from a claim of the token, such as `jwt:sub`"
                );
            }
            return None;
        }
        Some(name_of(credential))
    }
}

/// As [`authorization`], but takes JSON Web Tokens that expire: a retry with a renewed token is
/// another tenant's and executes again. Only where clients never renew a token between attempts.
pub fn rotating_authorization() -> impl Fn(&Parts) -> Option<Box<str>> + Send + Sync + 'static {
    |head| credential(head).ok().map(name_of)
}

/// A credential, with the tag of its header.
type Credential<'a> = (&'static str, &'a HeaderValue);

/// It is not known which credential of a request counts.
struct Ambiguous;

/// The credential of a request, if there is one.
fn credential(head: &Parts) -> Result<Option<Credential<'_>>, Ambiguous> {
    for (tag, name) in [("a", AUTHORIZATION.as_str()), ("k", "x-api-key")] {
        let mut lines = head.headers.get_all(name).iter();
        match (lines.next(), lines.next()) {
            (None, _) => {}
            (Some(credential), None) if !credential.is_empty() => {
                return Ok(Some((tag, credential)));
            }
            // It is not known which of two credentials the application uses, nor what it takes
            // an empty one for.
            (Some(_), _) => return Err(Ambiguous),
        }
    }
    Ok(None)
}

fn name_of(credential: Option<Credential<'_>>) -> Box<str> {
    credential.map_or_else(|| ANONYMOUS.into(), |(tag, value)| hashed(tag, value))
}

/// Whether a credential, after its scheme, is a JSON Web Token with an `exp`.
fn is_expiring_jwt(credential: &HeaderValue) -> bool {
    let value = credential.as_bytes().trim_ascii();
    let token = value.rsplit(|byte| *byte == b' ').next().unwrap_or(value);
    let mut parts = token.split(|byte| *byte == b'.');
    let (Some(_), Some(claims), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let claims = URL_SAFE_NO_PAD.decode(claims).unwrap_or_default();
    serde_json::from_slice::<Map<String, Value>>(&claims)
        .is_ok_and(|claims| claims.contains_key("exp"))
}

/// 128 bits are enough to distinguish tenants, and do not disclose the credential.
fn hashed(tag: &str, credential: &HeaderValue) -> Box<str> {
    let digest = Sha256::new()
        .chain_update(tag.as_bytes())
        .chain_update(credential.as_bytes())
        .finalize();
    format!("{tag}_{}", hex(&digest[..16])).into()
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

    /// As an issuer writes it; the signature does not matter here.
    fn jwt(claims: &str) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.c2ln", part(r#"{"alg":"RS256"}"#), part(claims))
    }

    #[test]
    fn a_jwt_that_expires_is_no_static_credential() {
        let expiring = jwt(r#"{"sub":"acme","exp":1763430000}"#);
        for (line, refused) in [
            (("authorization", format!("Bearer {expiring}")), true),
            (("authorization", format!("bearer  {expiring} ")), true),
            (("authorization", format!("DPoP {expiring}")), true),
            (("authorization", expiring.clone()), true),
            (("x-api-key", expiring.clone()), true),
            (
                ("authorization", format!("Bearer {}", jwt(r#"{"sub":"a"}"#))),
                false,
            ),
            (("authorization", "Bearer sk_live.a.b".to_owned()), false),
            (("authorization", format!("Bearer {expiring}.x")), false),
            (("authorization", "Basic YTpi".to_owned()), false),
        ] {
            let head = head(&[(line.0, &line.1)]);
            assert_eq!(authorization()(&head).is_none(), refused, "{line:?}");
            assert!(rotating_authorization()(&head).is_some(), "{line:?}");
        }
        let renewed = jwt(r#"{"sub":"acme","exp":1763433600}"#);
        let names = [expiring, renewed].map(|token| {
            let line = format!("Bearer {token}");
            rotating_authorization()(&head(&[("authorization", &line)]))
        });
        assert_ne!(names[0], names[1]);
    }
}
