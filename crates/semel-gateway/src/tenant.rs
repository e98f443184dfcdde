//! Finds the tenant of a request.

pub mod jwks;
pub mod jwt;

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use semel_core::identity::MAX_TENANT_BYTES;
use semel_http::tenant::{self, Tenant};
use serde_json::Value;

use crate::config::TenantFrom;
use jwks::{NotFetched, RemoteKeys};
use jwt::{Keys, Verified};

/// Where the keys that verify tokens come from.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// From a file or a secret, read with the configuration.
    Fixed(Arc<Keys>),
    /// From a URL.
    Remote(Arc<RemoteKeys>),
}

/// Returns the tenant of a request.
pub type TenantOf = Arc<dyn Fn(&Parts) -> Tenant + Send + Sync>;

/// The resolver for a configured tenant source.
///
/// ```
/// use semel_gateway::config::TenantFrom;
/// use semel_gateway::tenant;
/// use semel_http::tenant::Tenant;
///
/// let tenant_of = tenant::resolver(&TenantFrom::Header(http::HeaderName::from_static("x-account-id")));
/// let (known, ()) = http::Request::builder()
///     .header("X-Account-Id", "acme")
///     .body(())?
///     .into_parts();
/// assert!(matches!(tenant_of(&known), Tenant::Known(name) if &*name == "acme"));
///
/// let (without_header, ()) = http::Request::new(()).into_parts();
/// assert!(matches!(tenant_of(&without_header), Tenant::Unresolved));
/// # Ok::<(), http::Error>(())
/// ```
pub fn resolver(from: &TenantFrom) -> TenantOf {
    match from {
        TenantFrom::Authorization { rotating: false } => optional(tenant::authorization()),
        TenantFrom::Authorization { rotating: true } => optional(tenant::rotating_authorization()),
        TenantFrom::Header(name) => optional(tenant::header(name.clone())),
        TenantFrom::Jwt { claim, keys } => {
            let (claim, keys) = (claim.clone(), keys.clone());
            Arc::new(move |request| match token(request) {
                Some(token) => by_token(token, &claim, &keys),
                None => Tenant::Unresolved,
            })
        }
        TenantFrom::None => optional(tenant::only_one()),
    }
}

fn optional(tenant: impl Fn(&Parts) -> Option<Box<str>> + Send + Sync + 'static) -> TenantOf {
    Arc::new(move |request| tenant(request).into())
}

fn token(request: &Parts) -> Option<&str> {
    let value = single_value(&request.headers, &AUTHORIZATION).ok()??;
    bearer(value.to_str().ok()?)
}

/// The tenant that a token names. Where a key of the issuer is not known yet, after fetching it.
fn by_token(token: &str, claim: &Arc<str>, keys: &KeySource) -> Tenant {
    let keys = match keys {
        KeySource::Fixed(keys) => return claimed(keys.verify(token), claim),
        KeySource::Remote(keys) => keys,
    };
    let verified = keys.verify(token);
    if !matches!(verified, Verified::UnknownKey) {
        return claimed(verified, claim);
    }
    let (token, claim, keys) = (token.to_owned(), Arc::clone(claim), Arc::clone(keys));
    Tenant::Pending(Box::pin(async move {
        let fetched = keys.fetch().await;
        // Also after a failure: another request may have fetched the key meanwhile.
        match (keys.verify(&token), fetched) {
            (Verified::UnknownKey, Err(NotFetched { retry_after })) => {
                Tenant::Unavailable { retry_after }
            }
            (verified, _) => claimed(verified, &claim),
        }
    }))
}

/// The tenant in the claims of a verified token.
fn claimed(verified: Verified, claim: &str) -> Tenant {
    let Verified::Claims(claims) = verified else {
        return Tenant::Unresolved;
    };
    match claims.get(claim) {
        Some(Value::String(text)) => checked_name(text).into(),
        // Integers only: `7.0` and `7` are equal numbers but different names.
        Some(Value::Number(number)) if !number.is_f64() => checked_name(&number.to_string()).into(),
        Some(
            Value::Number(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_),
        )
        | None => Tenant::Unresolved,
    }
}

/// The tenant source as it is written in the configuration, without its keys. It is part of the
/// contract: another source gives callers other names.
pub fn rule(from: &TenantFrom) -> String {
    match from {
        TenantFrom::Authorization { .. } => "authorization".to_owned(),
        TenantFrom::Header(name) => format!("header:{name}"),
        TenantFrom::Jwt { claim, .. } => format!("jwt:{claim}"),
        TenantFrom::None => "none".to_owned(),
    }
}

/// The token of `Bearer TOKEN`.
pub(crate) fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim_matches(' '))
}

/// A header occurs more than once.
pub(crate) struct Repeated;

/// The value of a header that may occur once. A repeated header is refused, because two readers may
/// use different values.
pub(crate) fn single_value<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h HeaderValue>, Repeated> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (line, None) => Ok(line),
        (_, Some(_)) => Err(Repeated),
    }
}

/// Too long names are refused, not truncated: a truncated name could be another tenant's. So are
/// names with NUL, which PostgreSQL cannot store.
fn checked_name(text: &str) -> Option<Box<str>> {
    let text = text.trim_matches([' ', '\t']);
    let is_storable = (1..=MAX_TENANT_BYTES).contains(&text.len()) && !text.contains('\0');
    is_storable.then(|| text.into())
}

#[cfg(test)]
mod tests;
