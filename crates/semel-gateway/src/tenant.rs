//! Finds the tenant of a request.

pub mod jwt;

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use semel_core::identity::MAX_TENANT_BYTES;
use semel_http::tenant;
use serde_json::Value;

use crate::config::TenantFrom;

/// Returns the tenant of a request; `None` refuses the request.
pub type TenantOf = Arc<dyn Fn(&Parts) -> Option<Box<str>> + Send + Sync>;

/// The resolver for a configured tenant source.
///
/// ```
/// use semel_gateway::config::TenantFrom;
/// use semel_gateway::tenant;
///
/// let tenant_of = tenant::resolver(&TenantFrom::Header(http::HeaderName::from_static("x-account-id")));
/// let (known, ()) = http::Request::builder()
///     .header("X-Account-Id", "acme")
///     .body(())?
///     .into_parts();
/// assert_eq!(tenant_of(&known).as_deref(), Some("acme"));
///
/// let (without_header, ()) = http::Request::new(()).into_parts();
/// assert_eq!(tenant_of(&without_header), None);
/// # Ok::<(), http::Error>(())
/// ```
pub fn resolver(from: &TenantFrom) -> TenantOf {
    match from {
        TenantFrom::Authorization => Arc::new(tenant::authorization()),
        TenantFrom::Header(name) => Arc::new(tenant::header(name.clone())),
        TenantFrom::Jwt { claim, keys } => {
            let (claim, keys) = (claim.clone(), Arc::clone(keys));
            Arc::new(move |request| {
                let value = single_value(&request.headers, &AUTHORIZATION).ok()??;
                let claims = keys.verify(bearer(value.to_str().ok()?)?)?;
                match claims.get(&*claim)? {
                    Value::String(text) => checked_name(text),
                    // Integers only: `7.0` and `7` are equal numbers but different names.
                    Value::Number(number) if !number.is_f64() => checked_name(&number.to_string()),
                    Value::Number(_)
                    | Value::Null
                    | Value::Bool(_)
                    | Value::Array(_)
                    | Value::Object(_) => None,
                }
            })
        }
        TenantFrom::None => Arc::new(tenant::only_one()),
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

/// Too long names are refused, not truncated: a truncated name could be another tenant's.
fn checked_name(text: &str) -> Option<Box<str>> {
    let text = text.trim_matches([' ', '\t']);
    (!text.is_empty() && text.len() <= MAX_TENANT_BYTES).then(|| text.into())
}

#[cfg(test)]
mod tests;
