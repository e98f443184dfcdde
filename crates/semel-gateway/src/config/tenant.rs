//! `[tenant]`: how the tenant of a request is found.

use std::str::FromStr;
use std::sync::Arc;

use http::HeaderName;
use toml::Spanned;

use super::problem::Origin;
use super::table::Table;
use super::{Environment, read_file};
use crate::tenant::jwt::{Expected, Keys};

/// Where the name of the tenant comes from.
#[derive(Clone, Debug)]
pub enum TenantFrom {
    /// A hash of the credential: `Authorization`, else `X-Api-Key`, else `anonymous`.
    Authorization,
    /// A header that a trusted proxy sets.
    Header(HeaderName),
    /// A claim of a verified token.
    Jwt {
        /// The claim.
        claim: Box<str>,
        /// The verification keys.
        keys: Arc<Keys>,
    },
    /// There is only one tenant.
    None,
}

impl TenantFrom {
    /// A warning to log at start, if any.
    pub fn warning(&self) -> Option<&'static str> {
        match self {
            Self::Authorization => Some(
                "tenants are identified by a hash of their credential: a credential that changes \
                 between two attempts is another tenant, and the retry executes again. If \
                 credentials are renewed, set `[tenant] from` to \"jwt:sub\" or \"header:X-Account-Id\"",
            ),
            Self::Header(_) | Self::Jwt { .. } | Self::None => None,
        }
    }
}

/// `from`, before the keys are read.
enum TenantSource {
    Authorization,
    Header(HeaderName),
    Jwt(Box<str>),
    None,
}

impl FromStr for TenantSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "authorization" => Ok(Self::Authorization),
            None if text == "none" => Ok(Self::None),
            Some(("header", name)) => {
                let name = super::header_name(name)?;
                // The tenant is stored and shown in clear text.
                if [
                    "authorization",
                    "proxy-authorization",
                    "cookie",
                    "x-api-key",
                ]
                .contains(&name.as_str())
                {
                    return Err(format!(
                        "`{name}` is a secret and cannot name a tenant: \
                         write \"authorization\", which hashes it"
                    ));
                }
                Ok(Self::Header(name))
            }
            Some(("jwt", claim)) if !claim.is_empty() => Ok(Self::Jwt(claim.into())),
            _ => Err(format!(
                "invalid tenant source {text:?}: write \"authorization\", \
                 \"header:X-Account-Id\", \"jwt:sub\" or \"none\""
            )),
        }
    }
}

/// Reads `[tenant]`, with the keys it names.
pub(super) fn read(table: Option<Table<'_>>, environment: &Environment) -> TenantFrom {
    let Some(mut table) = table else {
        return TenantFrom::Authorization;
    };
    let from = table.parsed("from", TenantSource::from_str);
    let jwks_file = table.text("jwks_file");
    let secret_env = table.text("secret_env");
    let issuer = table.parsed("issuer", non_empty);
    let audience = table.parsed("audience", non_empty);
    let problems = table.problems;
    let jwt = [
        jwks_file.as_ref().map(Spanned::span),
        secret_env.as_ref().map(Spanned::span),
        issuer.as_ref().map(Spanned::span),
        audience.as_ref().map(Spanned::span),
    ];
    // If `from` itself is invalid, it is unknown which keys belong to it.
    let from_invalid = from.is_none() && table.key_span("from").is_some();
    table.finish();

    let (span, claim) = match from.map(|from| (from.span(), from.into_inner())) {
        Some((span, TenantSource::Jwt(claim))) => (span, claim),
        other => {
            for span in jwt.into_iter().flatten().filter(|_| !from_invalid) {
                problems.at(
                    span,
                    "this applies to `from = \"jwt:…\"` only, and has no effect here",
                );
            }
            return match other {
                Some((_, TenantSource::Header(name))) => TenantFrom::Header(name),
                Some((_, TenantSource::None)) => TenantFrom::None,
                Some((_, TenantSource::Authorization | TenantSource::Jwt(_))) | None => {
                    TenantFrom::Authorization
                }
            };
        }
    };
    let expected = Expected {
        issuer: issuer.map(Spanned::into_inner),
        audience: audience.map(Spanned::into_inner),
    };
    let (span, keys) = match (jwks_file, secret_env) {
        (Some(file), None) => (file.span(), jwks(file.get_ref(), &expected)),
        (None, Some(name)) => (name.span(), secret(name.get_ref(), environment, &expected)),
        (Some(_), Some(name)) => {
            let message = "set `jwks_file` or `secret_env`, not both";
            (name.span(), Err(message.to_owned()))
        }
        (None, None) => {
            let message = "there are no keys to verify tokens with: \
                           add `jwks_file = \"jwks.json\"` or `secret_env = \"JWT_SECRET\"`";
            (span, Err(message.to_owned()))
        }
    };
    match keys {
        Ok(keys) => TenantFrom::Jwt {
            claim,
            keys: Arc::new(keys),
        },
        Err(problem) => {
            problems.report(Origin::File(span), problem);
            TenantFrom::None
        }
    }
}

fn jwks(path: &str, expected: &Expected) -> Result<Keys, String> {
    let text = read_file(path.as_ref())?;
    Keys::from_jwks(&text, expected).map_err(|problem| format!("{path}: {problem}"))
}

fn secret(name: &str, environment: &Environment, expected: &Expected) -> Result<Keys, String> {
    match environment.require(name)? {
        secret if !secret.is_empty() => Ok(Keys::from_secret(secret.as_bytes(), expected)),
        _ => Err(format!(
            "environment variable {name} is empty: anyone could sign tokens"
        )),
    }
}

fn non_empty(text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        return Err("this must not be empty; remove it to skip the check");
    }
    Ok(text.to_owned())
}
